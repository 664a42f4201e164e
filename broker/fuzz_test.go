package broker_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/sessions"
)

// fuzzPackets in the environment is how many packets TestRawWire sends; make fuzz sends
// a million. TestRawTLS and TestRawWebSocket make a connection for each ten of them.
const fuzzPackets = "COLONY_FUZZ_PACKETS"

// toSend is how many packets a fuzzer sends: those of the environment, or else few.
func toSend(t *testing.T, few int64) int64 {
	t.Helper()
	s := os.Getenv(fuzzPackets)
	if s == "" {
		return few
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// seeds are valid packets, by protocol version, to be mutated. The first is CONNECT, of a client with an id, and with a
// session that outlives its connection where lasting is set.
func seeds(t *testing.T, version byte, id string, lasting bool) (out [][]byte) {
	t.Helper()
	add := func(p packets.Packet, encode func(*packets.Packet, *bytes.Buffer) error) {
		var buf bytes.Buffer
		p.ProtocolVersion, p.Mods.AllowResponseInfo = version, true
		if err := encode(&p, &buf); err != nil {
			t.Fatal(err)
		}
		out = append(out, buf.Bytes())
	}
	kind := func(k, qos byte) packets.FixedHeader { return packets.FixedHeader{Type: k, Qos: qos} }
	props := packets.Properties{
		PayloadFormatFlag: true, MessageExpiryInterval: 60, ContentType: "text/plain", ResponseTopic: "r/1", CorrelationData: []byte("123"),
		User: []packets.UserProperty{{Key: "a", Val: "b"}, {Key: "c", Val: "d"}},
	}
	connect := packets.ConnectParams{
		ProtocolName: []byte("MQTT"), Clean: !lasting, ClientIdentifier: id, Keepalive: 60, UsernameFlag: true, Username: []byte("fuzz"),
		PasswordFlag: true, Password: []byte("secret"), WillFlag: true, WillQos: 1, WillTopic: "w/1", WillPayload: []byte("offline"), WillProperties: props,
	}
	asks := packets.Properties{ReceiveMaximum: 5, MaximumPacketSize: 10_000, TopicAliasMaximum: 3, User: props.User}
	if lasting {
		asks.SessionExpiryInterval, asks.SessionExpiryIntervalFlag = 3600, true
		connect.WillProperties.WillDelayInterval = 3600
	}
	add(packets.Packet{FixedHeader: kind(packets.Connect, 0), Connect: connect, Properties: asks}, (*packets.Packet).ConnectEncode)
	for qos := range byte(3) {
		h := kind(packets.Publish, qos)
		h.Retain = qos > 0
		p := packets.Packet{FixedHeader: h, TopicName: "t/1/x", Payload: []byte("payload"), Properties: props, PacketID: uint16(qos)}
		p.Properties.TopicAlias, p.Properties.TopicAliasFlag = 1, true
		add(p, (*packets.Packet).PublishEncode)
	}
	filters := packets.Subscriptions{{Filter: "t/+/x", Qos: 1}, {Filter: "w/#", Qos: 2, RetainHandling: 1 * (version - 4)}, {Filter: "$share/g/t/#"}}
	sub := packets.Packet{FixedHeader: kind(packets.Subscribe, 1), PacketID: 7, Filters: filters, Properties: packets.Properties{User: props.User}}
	add(sub, (*packets.Packet).SubscribeEncode)
	sub.FixedHeader.Type = packets.Unsubscribe
	add(sub, (*packets.Packet).UnsubscribeEncode)
	reason := packets.Properties{ReasonString: "why", User: props.User}
	for k, qos := range map[byte]byte{packets.Puback: 0, packets.Pubrec: 0, packets.Pubrel: 1, packets.Pubcomp: 0} {
		add(packets.Packet{FixedHeader: kind(k, qos), PacketID: 1, Properties: reason}, (*packets.Packet).PubackEncode)
	}
	add(packets.Packet{FixedHeader: kind(packets.Pingreq, 0)}, (*packets.Packet).PingreqEncode)
	add(packets.Packet{FixedHeader: kind(packets.Disconnect, 0), ReasonCode: 4, Properties: reason}, (*packets.Packet).DisconnectEncode)
	if version == 5 {
		add(packets.Packet{FixedHeader: kind(packets.Auth, 0), ReasonCode: 0x18, Properties: packets.Properties{AuthenticationMethod: "m"}}, (*packets.Packet).AuthEncode)
	}
	return out
}

// mutate returns a packet with some bytes changed, inserted, taken out or repeated; in
// half of the cases its length is made true again, so that the change reaches deeper.
func mutate(d *rand.Rand, seed []byte) []byte {
	p := bytes.Clone(seed)
	for range 1 + d.IntN(3) {
		at := d.IntN(len(p))
		switch d.IntN(7) {
		case 0:
			p[at] ^= 1 << d.IntN(8)
		case 1:
			p[at] = byte(d.IntN(256))
		case 2:
			p[at] = []byte{0, 1, 0x7f, 0x80, 0xff, '#', '+', '/', '$'}[d.IntN(9)]
		case 3:
			p = append(p[:at:at], append([]byte{byte(d.IntN(256))}, p[at:]...)...)
		case 4:
			if len(p) > 2 {
				p = append(p[:at:at], p[at+1:]...)
			}
		case 5:
			if len(p) > 2 {
				p = p[:2+d.IntN(len(p)-2)]
			}
		case 6:
			end := at + d.IntN(len(p)-at)
			p = append(p[:end:end], append(bytes.Clone(p[at:end]), p[end:]...)...)
		}
	}
	if n := len(p) - 2; d.IntN(2) == 0 && n >= 0 && n < 128 && seed[1] < 0x80 {
		p[1] = byte(n)
	}
	return p
}

// fuzzer is one of several that send to a broker at once.
type fuzzer struct {
	d     *rand.Rand
	addr  string
	seeds [][][]byte // of MQTT 3.1.1 and 5, without a session and with one
	sent  *atomic.Int64
}

// round makes one connection: in three cases of four it connects as it should, and then
// sends mutated packets. It ends when the broker has answered everything.
func (f *fuzzer) round() error {
	c, err := net.Dial("unix", f.addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	set := f.seeds[f.d.IntN(len(f.seeds))]
	var out []byte
	if f.d.IntN(4) > 0 {
		out = append(out, set[0]...)
		for range 1 + f.d.IntN(4) {
			out = append(out, mutate(f.d, set[f.d.IntN(len(set))])...)
			f.sent.Add(1)
		}
	} else {
		out = mutate(f.d, set[0])
		f.sent.Add(1)
	}
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	_, err = c.Write(out)
	if err == nil {
		err = c.(*net.UnixConn).CloseWrite()
	}
	if err == nil {
		_, err = io.Copy(io.Discard, c) // until the broker closes
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("after %x the broker neither answers nor closes", out)
	}
	return nil // it may close, or reset, at any time
}

// Mutated packets, before and after CONNECT, end nothing but their connection: a client
// beside them is served throughout, and memory and goroutines are back at the end, once the sessions that are left have ended.
func TestRawWire(t *testing.T) {
	packetsToSend := toSend(t, 10_000)
	addr := filepath.Join(t.TempDir(), "mqtt.sock")
	b, reg := start(t, free{}, func(o *broker.Options) {
		o.Logger = slog.New(slog.DiscardHandler)
		o.Listeners = append(o.Listeners, broker.Listener{Name: "unix", Network: broker.Unix, Address: addr})
		o.Limits.RetainedBytes = 1 << 20
		o.Sessions = broker.Sessions{Dir: filepath.Join(t.TempDir(), "sessions"), Limits: sessions.Limits{Messages: 1000}}
	})
	canary := guest(t, b, "canary")
	const topic = "canary/7c1f/x"
	canary.subscribe(topic, 1)
	serve := func() {
		canary.publish(topic, "x", 1, 1)
		p := canary.want(packets.Publish)
		canary.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: p.PacketID})
		canary.wantCode(packets.Puback, 0)
		canary.ping()
	}
	goroutines, before := runtime.NumGoroutine(), heap()
	var sent atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, 8)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range uint64(4) {
		id := fmt.Sprint("fuzz", i)
		f := &fuzzer{d: rand.New(rand.NewPCG(seed, i)), addr: addr, sent: &sent, seeds: [][][]byte{
			seeds(t, 4, id, false), seeds(t, 5, id, false), seeds(t, 4, id, true), seeds(t, 5, id, true),
		}}
		wg.Go(func() {
			for sent.Load() < packetsToSend {
				if err := f.round(); err != nil && !errors.Is(err, syscall.EAGAIN) { // its queue of connections is full
					failed <- err
					return
				}
			}
		})
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for sent.Load() < packetsToSend && len(failed) == 0 {
		<-tick.C
		serve()
	}
	wg.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	serve()
	until(t, "all connections have ended", func() bool {
		return metric(t, reg, "clients_connected") == 1 && metric(t, reg, "write_buffer_bytes") == 0 && runtime.NumGoroutine() <= goroutines
	})
	for _, c := range b.Clients() {
		if c.Client == "canary" {
			continue
		}
		if err := b.Disconnect(c.Client, true); err != nil {
			t.Errorf("end the session of %q: %v", c.Client, err)
		}
	}
	if n := metric(t, reg, "sessions") + metric(t, reg, "session_messages"); n != 0 {
		t.Errorf("%v sessions and messages in them are left", n)
	}
	for _, m := range b.Retained("#") {
		put(t, b, broker.Message{Topic: m.Topic, Retain: true})
	}
	if n := metric(t, reg, "refused_total", "panic"); n != 0 {
		t.Errorf("%v panics", n)
	}
	if n := metric(t, reg, "subscriptions"); n != 1 {
		t.Errorf("%v subscriptions are left, want that of the canary", n)
	}
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("the heap has grown by %d kB", grown>>10)
	}
	t.Logf("%d packets; of those that came through %v broke MQTT", sent.Load(), metric(t, reg, "refused_total", "packet"))
}
