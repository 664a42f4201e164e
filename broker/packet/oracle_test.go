package packet

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mochi "github.com/mochi-mqtt/server/v2/packets"
)

// The oracle is mochi's codec: what it encodes must pass, and what this package reads
// or writes must be what mochi encodes or reads. What both have wrong in the same way
// is for the tables of packet_test.go.

// body encodes a packet with mochi's codec, and returns its header and body.
func body(t *testing.T, p *mochi.Packet, encode func(*bytes.Buffer) error) (Header, []byte) {
	t.Helper()
	p.Mods.AllowResponseInfo = true
	var buf bytes.Buffer
	if err := encode(&buf); err != nil {
		t.Fatal(err)
	}
	h, err := ReadHeader(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if buf.Len() != h.Length {
		t.Fatalf("header says %d bytes, there are %d", h.Length, buf.Len())
	}
	return h, buf.Bytes()
}

type dice struct{ *rand.Rand }

func (d dice) yes() bool { return d.IntN(2) == 0 }

func (d dice) text(most int) string {
	out := make([]rune, d.IntN(most))
	for i := range out {
		out[i] = []rune("ab/ é€😀z")[d.IntN(8)]
	}
	return string(out)
}

// message sets the properties of a message at random.
func (d dice) message(p *mochi.Properties) {
	if d.yes() {
		p.PayloadFormat, p.PayloadFormatFlag = byte(d.IntN(2)), true
	}
	if d.yes() {
		p.MessageExpiryInterval = d.Uint32()
	}
	p.ContentType, p.ResponseTopic = d.text(10), d.text(10)
	if d.yes() {
		p.CorrelationData = []byte(d.text(200))
	}
	p.User = d.users()
}

func (d dice) users() (out []mochi.UserProperty) {
	for range d.IntN(4) {
		out = append(out, mochi.UserProperty{Key: d.text(10), Val: d.text(100)})
	}
	return out
}

func (d dice) version() byte { return byte(4 + d.IntN(2)) }

func eachRound(t *testing.T, do func(d dice)) {
	t.Helper()
	seed := rand.Uint64()
	d := dice{rand.New(rand.NewPCG(seed, 0))}
	for round := range 500 {
		do(d)
		if t.Failed() {
			t.Fatalf("seed %d, round %d", seed, round)
		}
	}
}

func TestOraclePublish(t *testing.T) {
	t.Parallel()
	eachRound(t, func(d dice) {
		in := mochi.Packet{
			FixedHeader:     mochi.FixedHeader{Type: mochi.Publish, Qos: byte(d.IntN(3)), Retain: d.yes()},
			ProtocolVersion: d.version(), TopicName: "t/" + d.text(300), Payload: []byte(d.text(500)),
		}
		if in.FixedHeader.Qos > 0 {
			in.PacketID = uint16(1 + d.IntN(65535))
		}
		v5 := in.ProtocolVersion == 5
		if v5 {
			d.message(&in.Properties)
			if d.yes() {
				in.Properties.TopicAlias, in.Properties.TopicAliasFlag = uint16(1+d.IntN(65535)), true
			}
		}
		h, b := body(t, &in, in.PublishEncode)
		want := mochi.Packet{FixedHeader: in.FixedHeader, ProtocolVersion: in.ProtocolVersion}
		if err := want.PublishDecode(bytes.Clone(b)); err != nil {
			t.Fatal(err)
		}
		got, err := ReadPublish(h, b, v5, Limits{1000, 1000, 1000})
		if err != nil {
			t.Fatal(err)
		}
		p := DecodeProperties(got.Properties)
		if string(got.Topic) != want.TopicName || !bytes.Equal(got.Payload, want.Payload) || got.ID != want.PacketID ||
			h.QoS() != want.FixedHeader.Qos || h.Retain() != want.FixedHeader.Retain {
			t.Errorf("read %+v, want %+v", got, want)
		}
		asRead := mochi.Properties{
			PayloadFormat: p.Format, PayloadFormatFlag: p.HasFormat, ContentType: p.ContentType, ResponseTopic: p.ResponseTopic,
			CorrelationData: p.Correlation, MessageExpiryInterval: got.Expiry, TopicAlias: got.Alias, TopicAliasFlag: got.HasAlias,
		}
		for _, u := range p.User {
			asRead.User = append(asRead.User, mochi.UserProperty(struct{ Key, Val string }{u.Key, u.Value}))
		}
		if diff := cmp.Diff(want.Properties, asRead); diff != "" {
			t.Errorf("properties (-want +got):\n%s", diff)
		}
	})
}

// What is written, mochi reads.
func TestOracleFrame(t *testing.T) {
	t.Parallel()
	now := time.Now()
	eachRound(t, func(d dice) {
		var in mochi.Properties
		d.message(&in)
		props := Properties{
			Format: in.PayloadFormat, HasFormat: in.PayloadFormatFlag, ContentType: in.ContentType, ResponseTopic: in.ResponseTopic, Correlation: in.CorrelationData,
		}
		for _, u := range in.User {
			props.User = append(props.User, UserProperty{u.Key, u.Val})
		}
		o := Outgoing{Topic: "t/" + d.text(300), Payload: []byte(d.text(500)), Properties: props.Encode(), QoS: byte(d.IntN(3)), Retain: d.yes(), V5: d.yes()}
		if diff := cmp.Diff(props, DecodeProperties(o.Properties)); diff != "" && len(props.Correlation) > 0 {
			t.Errorf("properties (-encoded +decoded):\n%s", diff)
		}
		if in.MessageExpiryInterval > 0 {
			o.Expires = now.Add(time.Duration(in.MessageExpiryInterval) * time.Second)
		}
		for range d.IntN(3) {
			o.Identifiers = append(o.Identifiers, 1+d.IntN(268_435_455))
		}
		f := NewFrame(o)
		wire := append(f.AppendHead(nil, 4711, now), f.Payload()...)
		if len(wire) != f.Size() || f.QoS() != o.QoS {
			t.Errorf("%d bytes of QoS %d written, the frame says %d of %d", len(wire), o.QoS, f.Size(), f.QoS())
		}
		r := bytes.NewBuffer(wire)
		h, err := ReadHeader(r)
		if err != nil || h.Total() != len(wire) {
			t.Fatalf("header %+v of %d bytes: %v", h, len(wire), err)
		}
		got := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: mochi.Publish, Qos: h.QoS(), Retain: h.Retain()}, ProtocolVersion: 4}
		if o.V5 {
			got.ProtocolVersion = 5
			in.SubscriptionIdentifier = o.Identifiers
		} else {
			in = mochi.Properties{}
		}
		if err := got.PublishDecode(r.Bytes()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, got.Properties, cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) })); diff != "" {
			t.Errorf("properties (-want +got):\n%s", diff)
		}
		if got.TopicName != o.Topic || !bytes.Equal(got.Payload, o.Payload) || o.QoS > 0 && got.PacketID != 4711 || h.Retain() != o.Retain {
			t.Errorf("mochi reads %+v of %+v", got, o)
		}
	})
}

// The expiry that is written is what is left when it is written. [MQTT-3.3.2-6]
func TestFrameCountsExpiryDown(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	f := NewFrame(Outgoing{Topic: "t", V5: true, Expires: begun.Add(10 * time.Second)})
	for after, want := range map[time.Duration]byte{0: 10, time.Millisecond: 10, 1001 * time.Millisecond: 9, 9500 * time.Millisecond: 1, 9750 * time.Millisecond: 0} {
		now := begun.Add(after)
		if b := f.AppendHead(nil, 0, now); b[len(b)-1] != want || f.Expired(now) {
			t.Errorf("after %s: %d s left, expired %v, want %d s", after, b[len(b)-1], f.Expired(now), want)
		}
	}
	if !f.Expired(begun.Add(10 * time.Second)) {
		t.Error("not expired at its end")
	}
}

func TestOracleConnect(t *testing.T) {
	t.Parallel()
	eachRound(t, func(d dice) {
		in := mochi.Packet{
			FixedHeader: mochi.FixedHeader{Type: mochi.Connect}, ProtocolVersion: d.version(),
			Connect: mochi.ConnectParams{ProtocolName: []byte("MQTT"), Clean: d.yes(), ClientIdentifier: d.text(50), Keepalive: uint16(d.IntN(65536))},
		}
		c := &in.Connect
		if d.yes() {
			c.WillFlag, c.WillQos, c.WillRetain, c.WillTopic, c.WillPayload = true, byte(d.IntN(3)), d.yes(), d.text(20), []byte(d.text(100))
			if in.ProtocolVersion == 5 {
				d.message(&c.WillProperties)
				c.WillProperties.WillDelayInterval = d.Uint32()
			}
		}
		if d.yes() {
			c.UsernameFlag, c.Username = true, []byte(d.text(50))
			if d.yes() {
				c.PasswordFlag, c.Password = true, []byte(d.text(50))
			}
		}
		if in.ProtocolVersion == 5 {
			in.Properties = mochi.Properties{
				SessionExpiryInterval: d.Uint32(), SessionExpiryIntervalFlag: d.yes(), ReceiveMaximum: uint16(d.IntN(65536)), MaximumPacketSize: d.Uint32(),
				TopicAliasMaximum: uint16(d.IntN(65536)), RequestResponseInfo: byte(d.IntN(2)), RequestProblemInfo: byte(d.IntN(2)), RequestProblemInfoFlag: d.yes(),
				AuthenticationMethod: d.text(10), User: d.users(),
			}
		}
		_, b := body(t, &in, in.ConnectEncode)
		if version, expires, err := CheckConnect(b, roomy); err != nil || version != in.ProtocolVersion || expires != (in.Connect.WillProperties.MessageExpiryInterval > 0) {
			t.Errorf("version %d: %v, read as %d; the last will names an expiry: %v", in.ProtocolVersion, err, version, expires)
		}
		checkCut(t, b, func(b []byte) error { _, _, err := CheckConnect(b, roomy); return err })
	})
}

func TestOracleSubscribe(t *testing.T) {
	t.Parallel()
	eachRound(t, func(d dice) {
		in := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: mochi.Subscribe, Qos: 1}, ProtocolVersion: d.version(), PacketID: uint16(1 + d.IntN(65535))}
		for i := range 1 + d.IntN(5) {
			s := mochi.Subscription{Filter: fmt.Sprint(i, d.text(50)), Qos: byte(d.IntN(3))}
			if in.ProtocolVersion == 5 {
				s.NoLocal, s.RetainAsPublished, s.RetainHandling = d.yes(), d.yes(), byte(d.IntN(3))
			}
			in.Filters = append(in.Filters, s)
		}
		if in.ProtocolVersion == 5 {
			in.Properties.User = d.users()
			if d.yes() {
				in.Properties.SubscriptionIdentifier = []int{1 + d.IntN(268_435_455)}
			}
		}
		v5 := in.ProtocolVersion == 5
		_, b := body(t, &in, in.SubscribeEncode)
		if err := CheckSubscribe(b, v5, roomy); err != nil {
			t.Error(err)
		}
		in.FixedHeader.Type, in.Properties.SubscriptionIdentifier = mochi.Unsubscribe, nil
		_, b = body(t, &in, in.UnsubscribeEncode)
		if err := CheckUnsubscribe(b, v5, roomy); err != nil {
			t.Error(err)
		}
	})
}

func TestOracleAcks(t *testing.T) {
	t.Parallel()
	eachRound(t, func(d dice) {
		kind := []Type{Puback, Pubrec, Pubrel, Pubcomp}[d.IntN(4)]
		in := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: byte(kind)}, ProtocolVersion: 5, PacketID: uint16(1 + d.IntN(65535))}
		if kind == Pubrel {
			in.FixedHeader.Qos = 1
		}
		in.ReasonCode = ackCodes[kind][d.IntN(len(ackCodes[kind]))]
		in.Properties.ReasonString, in.Properties.User = d.text(20), d.users()
		_, b := body(t, &in, in.PubackEncode)
		want := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: byte(kind), Remaining: len(b)}, ProtocolVersion: 5}
		if err := want.PubackDecode(b); err != nil {
			t.Fatal(err)
		}
		id, reason, err := ReadAck(kind, b, true, roomy)
		if err != nil || id != want.PacketID || reason != want.ReasonCode {
			t.Errorf("%s: read %d, 0x%02x, %v, want %d, 0x%02x", kind, id, reason, err, want.PacketID, want.ReasonCode)
		}
	})
}

// checkCut expects that no head of a valid body is valid.
func checkCut(t *testing.T, b []byte, check func([]byte) error) {
	t.Helper()
	for n := range len(b) {
		if check(b[:n]) == nil {
			t.Errorf("the first %d of %d bytes pass as the whole: %x", n, len(b), b)
			return
		}
	}
}
