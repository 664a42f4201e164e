package broker_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/limits"
)

func limited(l limits.Limits) func(*broker.Options) {
	return func(o *broker.Options) { o.Limits = l }
}

func TestConnectDeadline(t *testing.T) {
	t.Parallel()
	server, _ := testTLS(t)
	b, reg := start(t, free{}, func(o *broker.Options) {
		o.Limits.ConnectTimeout = 300 * time.Millisecond
		o.Listeners = append(o.Listeners, broker.Listener{Name: "tls", Network: broker.TLS, Address: "127.0.0.1:0", TLS: server},
			broker.Listener{Name: "ws", Network: broker.WS, Address: "127.0.0.1:0"})
	})
	for _, name := range []string{"main", "tls", "ws"} {
		silent, slow := dialRaw(t, b.Addr(name)), dialRaw(t, b.Addr(name))
		begun := time.Now()
		if _, err := slow.conn.Write([]byte{0x10}); err != nil && name == "main" {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, silent.conn) // ends when the broker closes
		_, _ = io.Copy(io.Discard, slow.conn)
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("%s: closed after %s", name, d)
		}
	}
	if n := metric(t, reg, "refused_total", "connect", "timeout"); n < 2 {
		t.Errorf("%v time-outs counted, want 2 or more", n)
	}
	// A client that is in time stays.
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", nil)
	silent := dialRaw(t, b.Addr("main"))
	_, _ = io.Copy(io.Discard, silent.conn) // the deadline passes once more
	r.ping()
}

func TestFirstPacketIsBounded(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, nil)
	for name, head := range map[string][]byte{
		"announces 256 MB": {0x10, 0xff, 0xff, 0xff, 0x7f},
		"announces 70 kB":  {0x10, 0xf0, 0xa2, 0x04},
		"no length":        {0x10, 0xff, 0xff, 0xff, 0xff, 0xff},
		"not CONNECT":      {0x30, 0x05},
		"HTTP":             []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		r := dialRaw(t, b.Addr("main"))
		for _, c := range head { // byte by byte: the check must not need them at once
			if _, err := r.conn.Write([]byte{c}); err != nil {
				break
			}
		}
		r.wantEnd()
		t.Log(name)
	}
	if n := metric(t, reg, "refused_total", "connect", "malformed"); n != 5 {
		t.Errorf("%v refusals counted, want 5", n)
	}
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", func(p *packets.Packet) {
		p.Connect.PasswordFlag, p.Connect.Password = true, bytes.Repeat([]byte("p"), 60_000)
	})
}

func TestPacketSize(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, limited(limits.Limits{PacketBytes: 10_000}))
	r := dialRaw(t, b.Addr("main"))
	if ack := r.mustConnect("c", nil); ack.Properties.MaximumPacketSize != 10_000 {
		t.Errorf("CONNACK says maximum packet size %d", ack.Properties.MaximumPacketSize)
	}
	r.publish("t", string(make([]byte, 20_000)), 0, 0)
	if p := r.want(packets.Disconnect); p.ReasonCode != packets.ErrPacketTooLarge.Code {
		t.Errorf("DISCONNECT with 0x%02x, want 0x95", p.ReasonCode)
	}
	r.wantEnd()
}

func TestConnectRefusals(t *testing.T) {
	t.Parallel()
	b, reg := start(t, access.Site("plant1"), nil)
	const own = "colony/v1/plant1/node/n1/"
	for _, c := range []struct {
		what   string
		edit   func(*packets.Packet)
		v5, v3 byte
	}{
		{"foreign client id", func(p *packets.Packet) { p.Connect.ClientIdentifier = "n2.plant1" }, 0x85, 2},
		{"no client id", func(p *packets.Packet) { p.Connect.ClientIdentifier = "" }, 0x85, 2},
		{"other site", func(p *packets.Packet) {
			p.Connect.ClientIdentifier, p.Connect.Username = "n1.plant2", []byte("n1.plant2")
		}, 0x87, 5},
		{"no user name", func(p *packets.Packet) { p.Connect.Username, p.Connect.UsernameFlag = nil, false }, 0x87, 5},
		{"will of another node", withWill("colony/v1/plant1/node/n2/online", "x"), 0x87, 5},
		{"will with a wildcard", withWill(own+"+", "x"), 0x90, 3},
		{"will on $SYS", withWill("$SYS/x", "x"), 0x90, 3},
		{"will on desired", withWill(own+"desired", "x"), 0x87, 5},
	} {
		r := dialRaw(t, b.Addr("main"))
		if ack := r.connect("n1.plant1", c.edit); ack.ReasonCode != c.v5 {
			t.Errorf("%s: CONNACK 0x%02x %q, want 0x%02x", c.what, ack.ReasonCode, ack.Properties.ReasonString, c.v5)
		}
		r.wantEnd()
		r = dialRaw(t, b.Addr("main"))
		r.version = 4
		if ack := r.connect("n1.plant1", c.edit); ack.ReasonCode != c.v3 {
			t.Errorf("%s, MQTT 3.1.1: CONNACK %d, want %d", c.what, ack.ReasonCode, c.v3)
		}
		r.wantEnd()
	}
	if n := metric(t, reg, "refused_total", "connect"); n != 16 {
		t.Errorf("%v refusals counted, want 16", n)
	}
	dialRaw(t, b.Addr("main")).mustConnect("n1.plant1", withWill(own+"online", ""))
}

// asks is an Access that takes down what connections say of themselves.
type asks struct {
	free
	infos chan access.ConnectInfo
}

func (a asks) Connect(i access.ConnectInfo) (access.Identity, error) {
	a.infos <- i
	return a.free.Connect(i)
}

// A password of no bytes is one: whether it will do is for access control to say.
// [MQTT 5, 3.1.3.6] [MQTT-3.1.1, 3.1.3.5]
func TestPasswords(t *testing.T) {
	t.Parallel()
	a := asks{infos: make(chan access.ConnectInfo, 1)}
	b, _ := start(t, a, nil)
	for _, version := range []byte{4, 5} {
		for _, password := range []string{"", "secret"} {
			r := dialRaw(t, b.Addr("main"))
			r.version = version
			r.mustConnect("c", func(p *packets.Packet) { p.Connect.PasswordFlag, p.Connect.Password = true, []byte(password) })
			if got := <-a.infos; string(got.Password) != password || got.Username != "c" || got.Network != "tcp" || got.Listener != "main" {
				t.Errorf("version %d, password %q: access control gets %+v", version, password, got)
			}
			_ = r.conn.Close()
		}
	}
}

// A client id belongs to the identity that uses it: no other identity gets its place.
func TestForeignTakeover(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	first := dialRaw(t, b.Addr("main"))
	first.mustConnect("c", nil)
	thief := dialRaw(t, b.Addr("main"))
	ack := thief.connect("c", func(p *packets.Packet) { p.Connect.Username = []byte("thief") })
	if ack.ReasonCode != 0x85 {
		t.Errorf("CONNACK 0x%02x, want 0x85", ack.ReasonCode)
	}
	first.ping()
}

func TestAccessOnTheWire(t *testing.T) {
	t.Parallel()
	b, reg := start(t, access.Site("plant1"), func(o *broker.Options) {
		o.Accept = func(_ context.Context, _ access.Identity, m broker.Message) error {
			if m.Topic != "colony/v1/plant1/data/ok" {
				t.Errorf("accepted: %s", m.Topic)
			}
			return nil
		}
	})
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("n1.plant1", nil)
	for filter, want := range map[string]byte{
		"#": 0x87, "$SYS/#": 0x87, "colony/v1/plant1/#": 0x87, "colony/v1/plant1/node/+/desired": 0x87,
		"$share/g/colony/v1/plant1/#": 0x87, "$share/g/colony/v1/plant1/data/#": 1,
		"colony/v1/plant1/node/n2/desired": 0x87, "colony/v1/plant1/node/n1/desired": 1, "colony/v1/plant1/data/#": 1,
	} {
		if got := r.subscribe(filter, 1); got != want {
			t.Errorf("subscribe %s: 0x%02x, want 0x%02x", filter, got, want)
		}
	}
	for _, topic := range []string{"colony/x", "$SYS/broker/version", "$share/g/x", "colony/v1/plant1/node/n1/desired", "colony/v1/plant1/node/n2/online"} {
		r.publish(topic, "x", 1, 7)
		if p := r.want(packets.Puback); p.ReasonCode != 0x87 {
			t.Errorf("publish %s: PUBACK 0x%02x, want 0x87", topic, p.ReasonCode)
		}
	}
	r.publish("colony/v1/plant1/data/ok", "x", 1, 7)
	r.want(packets.Publish) // of the two subscriptions, before the acknowledgement
	r.want(packets.Publish)
	if p := r.want(packets.Puback); p.ReasonCode != 0 {
		t.Errorf("PUBACK 0x%02x, want success", p.ReasonCode)
	}
	if n := metric(t, reg, "refused_total", "publish", "access"); n != 5 {
		t.Errorf("%v refused publishes counted, want 5", n)
	}
	if n := metric(t, reg, "refused_total", "subscribe"); n != 6 {
		t.Errorf("%v refused subscribes counted, want 6", n)
	}
}

// Sessions end with their connection, also when the client asks for more.
func TestNoSessionSurvives(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{4, 5} {
		b, reg := start(t, free{}, nil)
		lasting := func(p *packets.Packet) {
			p.Connect.Clean = false
			p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 3600, true
		}
		r := dialRaw(t, b.Addr("main"))
		r.version = version
		ack := r.mustConnect("c", lasting)
		if version == 5 && (!ack.Properties.SessionExpiryIntervalFlag || ack.Properties.SessionExpiryInterval != 0) {
			t.Error("CONNACK does not say that the session ends with the connection")
		}
		r.subscribe("t", 1)
		_ = r.conn.Close()
		r = dialRaw(t, b.Addr("main"))
		r.version = version
		if ack := r.mustConnect("c", lasting); ack.SessionPresent {
			t.Error("the session is there again")
		}
		if n := metric(t, reg, "subscriptions"); n != 0 {
			t.Errorf("%v subscriptions are there again", n)
		}
		if err := b.Publish(t.Context(), broker.Message{Topic: "t", QoS: 1}); err != nil {
			t.Fatal(err)
		}
		r.ping() // and nothing before its answer
	}
}

// mochi with a Receive Maximum loses messages and can lock its own loop. Here it
// never learns of one: every message arrives, never more than the maximum
// unacknowledged.
func TestReceiveMaximum(t *testing.T) {
	t.Parallel()
	const rounds, messages, publishers = 20, 2000, 4
	b, reg := start(t, free{}, nil)
	for round := range rounds {
		r := dialRaw(t, b.Addr("main"))
		r.mustConnect("sub", func(p *packets.Packet) { p.Properties.ReceiveMaximum = 10 })
		r.subscribe("t/#", 1)
		for p := range publishers {
			go func() {
				for i := range messages / publishers {
					_ = b.Publish(t.Context(), broker.Message{Topic: fmt.Sprint("t/", p), Payload: fmt.Append(nil, i), QoS: 1})
				}
			}()
		}
		next := map[string]int{}
		var unacked []uint16
		for range messages {
			p := r.want(packets.Publish)
			if string(p.Payload) != fmt.Sprint(next[p.TopicName]) {
				t.Fatalf("round %d: %s: got %s, want %d", round, p.TopicName, p.Payload, next[p.TopicName])
			}
			next[p.TopicName]++
			if unacked = append(unacked, p.PacketID); len(unacked) > 10 {
				t.Fatalf("round %d: more than 10 unacknowledged", round)
			}
			// Acknowledge late, so that the window is full most of the time.
			if len(unacked) == 10 {
				for _, id := range unacked {
					r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: id})
				}
				unacked = nil
			}
		}
		_ = r.conn.Close()
	}
	if d := metric(t, reg, "dropped_total"); d != 0 {
		t.Errorf("%v dropped, want none", d)
	}
}

// A subscriber that stops reading stops no other client, and is disconnected.
func TestStoppedReader(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{WriteBuffer: 1 << 20}))
	stuck := dialRaw(t, b.Addr("main"))
	stuck.mustConnect("stuck", nil)
	stuck.subscribe("t", 0)
	got := newBox()
	join(t, client.Options{URLs: tcpURL(b), Username: "reader", Handle: got.accept, Subscriptions: []client.Subscription{{Filter: "t", QoS: 1}}})
	c := join(t, client.Options{URLs: tcpURL(b), Username: "writer"})
	payload := make([]byte, 64<<10)
	worst := time.Duration(0)
	for i := range 2000 {
		begun := time.Now()
		if err := c.Publish(t.Context(), broker.Message{Topic: "t", Payload: payload, QoS: 1}); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(begun))
		got.next(t)
		if i%50 == 0 && metric(t, reg, "dropped_total", "slow_client") > 0 {
			break
		}
	}
	if n := metric(t, reg, "dropped_total", "slow_client"); n != 1 {
		t.Errorf("%v slow clients counted, want 1", n)
	}
	if worst > 3*time.Second {
		t.Errorf("the slowest acknowledgement took %s", worst)
	}
	if n := metric(t, reg, "clients_connected"); n > 3 {
		t.Errorf("%v clients connected", n)
	}
}

// A subscriber that reads and never acknowledges gets the reason why it is disconnected.
func TestNeverAcknowledging(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{Unacknowledged: 100, WriteBuffer: 4 << 10}))
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("sub", nil)
	r.subscribe("t", 1)
	for range 400 {
		if err := b.Publish(t.Context(), broker.Message{Topic: "t", QoS: 1}); err != nil {
			t.Fatal(err)
		}
	}
	for {
		p, err := r.next()
		if err != nil {
			t.Fatal("the connection ended without a reason")
		}
		if p.FixedHeader.Type == packets.Disconnect {
			if p.ReasonCode != packets.ErrQuotaExceeded.Code {
				t.Errorf("DISCONNECT with 0x%02x, want 0x97", p.ReasonCode)
			}
			break
		}
	}
	if n := metric(t, reg, "dropped_total", "unacknowledged"); n < 1 {
		t.Error("not counted")
	}
}

func TestTopicAliases(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	r := dialRaw(t, b.Addr("main"))
	ack := r.mustConnect("c", func(p *packets.Packet) { p.Properties.TopicAliasMaximum = 10 })
	if ack.Properties.TopicAliasMaximum != 32 {
		t.Errorf("CONNACK allows %d topic aliases", ack.Properties.TopicAliasMaximum)
	}
	r.subscribe("t", 1)
	for range 3 {
		if err := b.Publish(t.Context(), broker.Message{Topic: "t", QoS: 1}); err != nil {
			t.Fatal(err)
		}
		if p := r.want(packets.Publish); p.TopicName != "t" || p.Properties.TopicAliasFlag {
			t.Errorf("got topic %q", p.TopicName)
		}
	}
}

func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	var log lines
	b, reg := start(t, free{}, func(o *broker.Options) {
		log.logged(o)
		o.Limits = limits.Limits{Connections: 3, ConnectionsPerIdentity: 2}
	})
	as := func(user string) func(*packets.Packet) {
		return func(p *packets.Packet) { p.Connect.Username = []byte(user) }
	}
	var rs []*raw
	for i := range 2 {
		r := dialRaw(t, b.Addr("main"))
		r.mustConnect(fmt.Sprint("c", i), as("u"))
		rs = append(rs, r)
	}
	third := dialRaw(t, b.Addr("main"))
	if ack := third.connect("c3", as("u")); ack.ReasonCode != 0x97 {
		t.Errorf("third connection of one identity: CONNACK 0x%02x, want 0x97", ack.ReasonCode)
	}
	third.wantEnd()
	_ = third.conn.Close()
	until(t, "a client takes the place of its own", func() bool { // the third has its place for a moment after its end
		r := dialRaw(t, b.Addr("main"))
		_, err := r.conn.Write([]byte{0x10, 18, 0, 4, 'M', 'Q', 'T', 'T', 5, 0x82, 0, 60, 0, 0, 2, 'c', '0', 0, 1, 'u'})
		if err != nil {
			return false
		}
		ack, err := r.next()
		return err == nil && ack.FixedHeader.Type == packets.Connack && ack.ReasonCode == 0
	})
	rs[0].want(packets.Disconnect)
	for metric(t, reg, "refused_total", "connections") == 0 {
		extra, err := net.Dial("tcp", b.Addr("main"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = extra.Close() })
	}
	until(t, "the log has it", func() bool { return log.has("connection closed", "127.0.0.1", "limits.connections") })
	rs[1].ping()
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, limited(limits.Limits{KeepAlive: 100 * time.Second}))
	for asked, notified := range map[uint16]uint16{0: 100, 50: 0, 101: 100, 65535: 100} {
		r := dialRaw(t, b.Addr("main"))
		ack := r.mustConnect("c", func(p *packets.Packet) { p.Connect.Keepalive = asked })
		if ack.Properties.ServerKeepAlive != notified {
			t.Errorf("keep-alive %d: CONNACK says %d, want %d", asked, ack.Properties.ServerKeepAlive, notified)
		}
		r.ping()
	}
	r := dialRaw(t, b.Addr("main"))
	r.version = 4
	r.mustConnect("c", func(p *packets.Packet) { p.Connect.Keepalive = 65535 }) // 1.5 × that is no uint16
	r.ping()
	r.ping()

	silent := dialRaw(t, b.Addr("main"))
	begun := time.Now()
	silent.mustConnect("silent", func(p *packets.Packet) { p.Connect.Keepalive = 1 })
	if p := silent.want(packets.Disconnect); p.ReasonCode != packets.ErrKeepAliveTimeout.Code {
		t.Errorf("DISCONNECT with 0x%02x, want 0x8d", p.ReasonCode)
	}
	silent.wantEnd()
	if d := time.Since(begun); d < 1400*time.Millisecond || d > 5*time.Second { // 1.5 times. [MQTT-3.1.2-22]
		t.Errorf("a silent client was cut after %s", d)
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, limited(limits.Limits{PublishLimits: limits.PublishLimits{PublishRate: 100, PublishBurst: 10}, ConnectLimits: limits.ConnectLimits{ConnectRate: 20}}))
	c := join(t, client.Options{URLs: tcpURL(b), Username: "c"})
	begun := time.Now()
	for range 60 {
		if err := c.Publish(t.Context(), broker.Message{Topic: "t", QoS: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(begun); d < 450*time.Millisecond {
		t.Errorf("60 messages at 100/s with a burst of 10 took %s", d)
	}
	begun = time.Now()
	for i := range 30 { // one of the burst of 20 is used up
		dialRaw(t, b.Addr("main")).mustConnect(fmt.Sprint("r", i), nil)
	}
	if d := time.Since(begun); d < 400*time.Millisecond {
		t.Errorf("30 connects at 20/s with a burst of 20 took %s", d)
	}
}

// A burst of QoS 0 from several publishers at once is delivered whole to a
// subscriber that reads.
func TestBurstOfQoS0(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, nil)
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("sub", nil)
	r.subscribe("t", 0)
	const publishers, each = 4, 5000
	for range publishers {
		go func() {
			for range each {
				_ = b.Publish(t.Context(), broker.Message{Topic: "t", Payload: []byte("0123456789")})
			}
		}()
	}
	for range publishers * each {
		r.want(packets.Publish)
	}
	if d := metric(t, reg, "dropped_total"); d != 0 {
		t.Errorf("%v dropped, want none", d)
	}
}
