package broker_test

import (
	"bufio"
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
)

// A raw client speaks MQTT packet by packet, so that a test can do what no
// decent client does.
type raw struct {
	t       *testing.T
	conn    net.Conn
	r       *bufio.Reader
	version byte
}

func dialRaw(t *testing.T, addr string) *raw {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return rawOver(t, c)
}

// rawOver speaks MQTT 5 over a connection.
func rawOver(t *testing.T, c net.Conn) *raw {
	return &raw{t: t, conn: c, r: bufio.NewReader(c), version: 5}
}

// connect sends CONNECT as user id, changed by edit, and returns the CONNACK.
func (r *raw) connect(id string, edit func(*packets.Packet)) packets.Packet {
	r.t.Helper()
	p := packets.Packet{
		FixedHeader:     packets.FixedHeader{Type: packets.Connect},
		ProtocolVersion: r.version,
		Connect: packets.ConnectParams{
			ProtocolName: []byte("MQTT"), Clean: true, ClientIdentifier: id, Keepalive: 60,
			UsernameFlag: true, Username: []byte(id),
		},
	}
	if edit != nil {
		edit(&p)
	}
	r.send(p)
	return r.want(packets.Connack)
}

// mustConnect connects and expects to be accepted.
func (r *raw) mustConnect(id string, edit func(*packets.Packet)) packets.Packet {
	r.t.Helper()
	ack := r.connect(id, edit)
	if ack.ReasonCode != 0 {
		r.t.Fatalf("connect as %s: refused with 0x%02x %s", id, ack.ReasonCode, ack.Properties.ReasonString)
	}
	return ack
}

func (r *raw) send(p packets.Packet) {
	r.t.Helper()
	p.ProtocolVersion = r.version
	p.Mods.AllowResponseInfo = true
	var buf bytes.Buffer
	encode := map[byte]func(*bytes.Buffer) error{
		packets.Connect: p.ConnectEncode, packets.Publish: p.PublishEncode, packets.Puback: p.PubackEncode,
		packets.Pubrel: p.PubrelEncode, packets.Subscribe: p.SubscribeEncode, packets.Pingreq: p.PingreqEncode,
		packets.Disconnect: p.DisconnectEncode, packets.Pubrec: p.PubrecEncode, packets.Pubcomp: p.PubcompEncode,
		packets.Unsubscribe: p.UnsubscribeEncode, packets.Auth: p.AuthEncode,
	}[p.FixedHeader.Type]
	if err := encode(&buf); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.conn.Write(buf.Bytes()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) publish(topic, payload string, qos byte, id uint16) {
	r.t.Helper()
	r.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: qos}, TopicName: topic, Payload: []byte(payload), PacketID: id,
	})
}

// subscribe returns the reason code of the SUBACK.
func (r *raw) subscribe(filter string, qos byte) byte {
	r.t.Helper()
	return r.subscribeAs(packets.Subscription{Filter: filter, Qos: qos}).ReasonCodes[0]
}

// subscribeAs returns the SUBACK.
func (r *raw) subscribeAs(sub packets.Subscription) packets.Packet {
	r.t.Helper()
	p := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 60000, Filters: packets.Subscriptions{sub},
	}
	if sub.Identifier > 0 {
		p.Properties.SubscriptionIdentifier = []int{sub.Identifier}
	}
	r.send(p)
	return r.want(packets.Suback)
}

// wantCode expects a packet of a type with a reason code.
func (r *raw) wantCode(kind, code byte) packets.Packet {
	r.t.Helper()
	p := r.want(kind)
	if p.ReasonCode != code {
		r.t.Errorf("%s with 0x%02x %q, want 0x%02x", packets.PacketNames[kind], p.ReasonCode, p.Properties.ReasonString, code)
	}
	return p
}

// next reads the next packet; an error is the end of the connection.
func (r *raw) next() (p packets.Packet, err error) {
	r.t.Helper()
	return r.within(patience)
}

// within is next with a deadline.
func (r *raw) within(d time.Duration) (p packets.Packet, err error) {
	r.t.Helper()
	if err := r.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		return p, err
	}
	head, err := r.r.ReadByte()
	if err != nil {
		return p, err
	}
	p.ProtocolVersion = r.version
	if err := p.FixedHeader.Decode(head); err != nil {
		r.t.Fatal(err)
	}
	size, _, err := packets.DecodeLength(r.r)
	if err != nil {
		return p, err
	}
	p.FixedHeader.Remaining = size
	body := make([]byte, size)
	for n := 0; n < size; {
		m, err := r.r.Read(body[n:])
		if err != nil {
			return p, err
		}
		n += m
	}
	decode := map[byte]func([]byte) error{
		packets.Connack: p.ConnackDecode, packets.Publish: p.PublishDecode, packets.Puback: p.PubackDecode,
		packets.Pubrec: p.PubrecDecode, packets.Pubcomp: p.PubcompDecode, packets.Suback: p.SubackDecode,
		packets.Pubrel: p.PubrelDecode, packets.Unsuback: p.UnsubackDecode,
		packets.Disconnect: p.DisconnectDecode, packets.Pingresp: func([]byte) error { return nil },
	}[p.FixedHeader.Type]
	if decode == nil {
		r.t.Fatalf("unexpected packet type %d", p.FixedHeader.Type)
	}
	if err := decode(body); err != nil {
		r.t.Fatalf("decode packet type %d: %v", p.FixedHeader.Type, err)
	}
	return p, nil
}

// want reads the next packet, which must be of a type.
func (r *raw) want(kind byte) packets.Packet {
	r.t.Helper()
	p, err := r.next()
	if err != nil {
		r.t.Fatalf("want packet type %s: %v", packets.PacketNames[kind], err)
	}
	if p.FixedHeader.Type != kind {
		r.t.Fatalf("got packet type %s (0x%02x), want %s", packets.PacketNames[p.FixedHeader.Type], p.ReasonCode, packets.PacketNames[kind])
	}
	return p
}

// wantEnd expects the connection to end without another packet.
func (r *raw) wantEnd() {
	r.t.Helper()
	if p, err := r.next(); err == nil {
		r.t.Fatalf("got packet type %s, want the end of the connection", packets.PacketNames[p.FixedHeader.Type])
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		r.t.Fatal("the connection stays open")
	}
}

func (r *raw) ping() {
	r.t.Helper()
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	r.want(packets.Pingresp)
}
