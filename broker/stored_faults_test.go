package broker_test

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	paho3 "github.com/eclipse/paho.mqtt.golang"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/sessions"
)

// A ledger notes numbered messages as they arrive, each once. Safe for concurrent use.
type ledger struct {
	mu   sync.Mutex // protects what follows
	seen map[int]bool
	list []int // in the order of their first arrivals
}

func (l *ledger) note(payload []byte) {
	n, err := strconv.Atoi(string(payload))
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = make(map[int]bool)
	}
	if !l.seen[n] {
		l.seen[n] = true
		l.list = append(l.list, n)
	}
}

// first returns the first arrivals, in order.
func (l *ledger) first() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

// check expects the messages from 0 on, in order.
func (l *ledger) check(t *testing.T, messages int) {
	t.Helper()
	got := l.first()
	if len(got) != messages || !slices.IsSorted(got) {
		t.Errorf("%d of %d messages came, in order: %v", len(got), messages, slices.IsSorted(got))
	}
}

// longPatience is for what takes seconds on a quiet machine.
const longPatience = 2 * time.Minute

// A publisher with a session that does what MQTT says: what was not acknowledged it sends again, in order, if
// the broker still has the session, and else it drops it. Its link is cut in the middle of each window.
func TestPublisherOverCuts(t *testing.T) {
	t.Parallel()
	const messages, window = 3000, 100
	b, _ := start(t, free{}, stored(t, sessions.Limits{}))
	sub := dialStored(t, b, "sub", false, lasting(3600))
	sub.subscribe("t", 1)
	var got ledger
	received := make(chan struct{})
	go func() {
		defer close(received)
		for got.count() < messages {
			p, err := sub.next()
			if err != nil || p.FixedHeader.Type != packets.Publish {
				return
			}
			got.note(p.Payload)
			sub.ack(packets.Puback, p.PacketID)
		}
	}()
	for done := 0; done < messages; {
		pub := dialStored(t, b, "pub", done > 0, lasting(3600))
		for i := done; i < min(done+window, messages); i++ {
			pub.publish("t", fmt.Sprint(i), 1, uint16(1+i))
		}
		for range min(window/2, messages-done) {
			if p := pub.wantCode(packets.Puback, 0); int(p.PacketID) != done+1 {
				t.Fatalf("PUBACK of %d, want %d", p.PacketID, done+1)
			}
			done++
		}
		_ = pub.conn.Close()
	}
	<-received
	got.check(t, messages)
}

// The broker's process is killed again and again while messages are published: what was acknowledged comes
// to a subscriber with a session, once or more often, in order.
func TestKill(t *testing.T) {
	t.Parallel()
	const rounds, batch = 5, 300
	dir := t.TempDir()
	c := startChild(t, dir)
	sub := dialRaw(t, c.addr)
	sub.mustConnect("sub", lasting(3600))
	sub.subscribe("t", 1)
	_ = sub.conn.Close()
	acknowledged, sent := 0, 0
	var got ledger
	next := func() int { return len(got.first()) }
	for range rounds {
		pub := dialRaw(t, c.addr)
		pub.mustConnect("pub", lasting(3600))
		// What was not acknowledged is published again, as its publisher would.
		for i := acknowledged; i < acknowledged+batch; i++ {
			pub.publish("t", fmt.Sprint(i), 1, uint16(1+i%60_000))
		}
		sent = acknowledged + batch
		for acknowledged < sent-batch/3 { // the last ones are under way
			pub.wantCode(packets.Puback, 0)
			acknowledged++
		}
		c.kill()
		for {
			if _, err := pub.next(); err != nil { // acknowledgements that came before the end count
				break
			}
			acknowledged++
		}
		c = startChild(t, dir)
		sub = dialRaw(t, c.addr)
		if ack := sub.mustConnect("sub", lasting(3600)); !ack.SessionPresent {
			t.Fatal("the session is lost")
		}
		for next() < acknowledged {
			p := sub.want(packets.Publish)
			got.note(p.Payload)
			if next()%2 == 0 { // the others come again
				sub.ack(packets.Puback, p.PacketID)
			}
		}
		_ = sub.conn.Close()
	}
	got.check(t, next())
	if next() < acknowledged {
		t.Errorf("%d messages came of %d that were acknowledged", next(), acknowledged)
	}
}

// With a full disk a message for a session is refused, with the reason, and its publisher keeps it; others are
// not concerned. When there is room again everything goes on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := startChild(t, dir)
	sub := dialRaw(t, c.addr)
	sub.mustConnect("sub", lasting(3600))
	sub.subscribe("t", 1)
	plain := dialRaw(t, c.addr)
	plain.mustConnect("plain", nil)
	plain.subscribe("u", 1)
	pub, old := dialRaw(t, c.addr), dialRaw(t, c.addr)
	pub.mustConnect("pub", nil)
	old.version = 4
	old.mustConnect("old", nil)
	c.say("full")
	for id := range uint16(3) {
		pub.publish("t", "refused", 1+byte(id%2), id+1)
		p, err := pub.next()
		if err != nil || p.ReasonCode != packets.ErrQuotaExceeded.Code || !strings.Contains(p.Properties.ReasonString, "sessions") {
			t.Errorf("with a full disk: %+v, %v, want 0x97 with the reason", p, err)
		}
	}
	pub.publish("u", "others", 1, 9)
	pub.wantCode(packets.Puback, 0)
	plain.wantMessage("others", false)
	if code := sub.subscribe("more", 1); code != packets.ErrQuotaExceeded.Code {
		t.Errorf("SUBACK with 0x%02x, want 0x97", code)
	}
	old.publish("t", "refused", 1, 1)
	old.wantEnd() // MQTT 3.1.1 has no other answer
	c.say("not full")
	for id := uint16(20); ; id++ { // until the broker has noticed
		pub.publish("t", "stored", 1, id)
		if p := pub.want(packets.Puback); p.ReasonCode == 0 {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	sub.wantMessage("stored", false)
	c.kill()
	c = startChild(t, dir)
	sub = dialRaw(t, c.addr)
	if ack := sub.mustConnect("sub", lasting(3600)); !ack.SessionPresent {
		t.Fatal("the session is lost")
	}
	sub.wantMessage("stored", true)
	sub.ping()
}

// The MQTT 3.1.1 client of Eclipse without clean session: it subscribes once, and gets what came while it
// was away, in each QoS.
func TestPahoV3WithSession(t *testing.T) {
	t.Parallel()
	edit := stored(t, sessions.Limits{})
	b, reg := start(t, free{}, edit)
	got := make(chan paho3.Message, 100)
	connect := func() paho3.Client {
		o := paho3.NewClientOptions().AddBroker("tcp://" + b.Addr("main")).SetClientID("v3").SetUsername("v3").SetProtocolVersion(4).
			SetAutoReconnect(false).SetCleanSession(false).SetDefaultPublishHandler(func(_ paho3.Client, m paho3.Message) { got <- m })
		c := paho3.NewClient(o)
		finish(t, c.Connect())
		return c
	}
	c := connect()
	for qos := range byte(3) {
		finish(t, c.Subscribe(fmt.Sprint("t/", qos), qos, nil))
	}
	for range 3 {
		c.Disconnect(100)
		until(t, "it is away", func() bool { return metric(t, reg, "clients_connected") == 0 })
		for qos := range byte(3) {
			put(t, b, broker.Message{Topic: fmt.Sprint("t/", qos), Payload: []byte("hello"), QoS: 2})
		}
		b, reg = restart(t, b, edit)
		c = connect()
		var qos []byte // QoS 2 takes its client longer
		for range 2 {
			qos = append(qos, arrives(t, got).Qos())
		}
		if slices.Sort(qos); !slices.Equal(qos, []byte{1, 2}) {
			t.Errorf("messages of QoS %v, want 1 and 2", qos)
		}
		until(t, "they are acknowledged", func() bool { return metric(t, reg, "session_messages") == 0 })
	}
	c.Disconnect(100)
	if len(got) > 0 {
		t.Errorf("%d messages more", len(got))
	}
}

// Mosquitto's clients with sessions, in both versions: what is published while one is away comes when it is
// back. mosquitto_sub keeps nothing itself.
func TestMosquittoWithSession(t *testing.T) {
	t.Parallel()
	edit := stored(t, sessions.Limits{})
	b, reg := start(t, free{}, edit)
	for _, version := range []string{"311", "5"} {
		run := func(args ...string) (string, error) {
			host, port, err := net.SplitHostPort(b.Addr("main"))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if version == "5" && args[0] == "mosquitto_sub" {
				args = append(args, "-x", "3600")
			}
			cmd := exec.CommandContext(t.Context(), args[0], append(args[1:], "-h", host, "-p", port, "-V", version)...)
			cmd.Stdout, cmd.Stderr = &out, &out
			err = cmd.Run()
			return out.String(), err
		}
		sub := []string{"mosquitto_sub", "-c", "-i", "sub" + version, "-u", "sub" + version, "-t", "t" + version, "-q", "2", "-W", "20"}
		if out, err := run(append(sub, "-E")...); err != nil { // leaves once it has subscribed
			t.Fatalf("mosquitto_sub: %v\n%s", err, out)
		}
		until(t, "it is away", func() bool { return metric(t, reg, "clients_connected") == 0 })
		for i := range 3 {
			if out, err := run("mosquitto_pub", "-i", "pub", "-u", "pub", "-t", "t"+version, "-q", "1", "-m", fmt.Sprint(i)); err != nil {
				t.Fatalf("mosquitto_pub: %v\n%s", err, out)
			}
		}
		b, reg = restart(t, b, edit)
		if out, err := run(append(sub, "-C", "3")...); err != nil || out != "0\n1\n2\n" {
			t.Errorf("MQTT %s: %v, got %q", version, err, out)
		}
	}
}

// A last will with a delay is part of the session: when the broker is killed beside its client, it is sent after the delay
// that follows the restart, unless the client is back, or had connected without one. [MQTT-3.1.2-8] [MQTT-3.1.3-9]
func TestWillOverKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := startChild(t, dir)
	connect := func(id string, delay uint32, present bool) *raw {
		r := dialRaw(t, c.addr)
		if ack := r.mustConnect(id, func(p *packets.Packet) {
			lasting(3600)(p)
			if delay > 0 {
				p.Connect.WillFlag, p.Connect.WillTopic, p.Connect.WillPayload, p.Connect.WillQos = true, "will/"+id, []byte(id), 1
				p.Connect.WillProperties = packets.Properties{WillDelayInterval: delay, ContentType: "text/plain"}
			}
		}); ack.SessionPresent != present {
			t.Fatalf("%s: session present %v, want %v", id, ack.SessionPresent, present)
		}
		return r
	}
	connect("watch", 0, false).subscribe("will/#", 1)
	connect("gone", 1, false)
	for _, id := range []string{"back", "without", "patient"} {
		connect(id, 3600, false)
	}
	connect("without", 0, true)
	c.kill()
	c = startChild(t, dir)
	connect("back", 0, true)
	w := connect("watch", 0, true)
	if p := w.wantMessage("gone", false); p.Properties.ContentType != "text/plain" {
		t.Errorf("will with content type %q", p.Properties.ContentType)
	}
	for _, id := range []string{"back", "without", "patient"} { // the end of a session sends the will that waits
		dialRaw(t, c.addr).mustConnect(id, func(p *packets.Packet) { p.Connect.Clean = true })
	}
	w.wantMessage("patient", false)
	w.ping() // and no other one
}
