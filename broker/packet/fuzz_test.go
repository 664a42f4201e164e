package packet

import (
	"bytes"
	"testing"

	mochi "github.com/mochi-mqtt/server/v2/packets"
)

// Each target gives one reader any input. None may panic; what it lets through must
// decode, as the broker will do without looking again. An input is the version and
// the body.

func FuzzHeader(f *testing.F) {
	for _, s := range []string{"\xc0\x00", "\x30\xff\xff\xff\x7f", "\x82\x80\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := ReadHeader(bytes.NewReader(in))
		if err != nil {
			return
		}
		var want mochi.FixedHeader
		if err := want.Decode(in[0]); err != nil || want.Type != byte(h.Type) || h.Type == Publish && (want.Qos != h.QoS() || want.Retain != h.Retain()) {
			t.Errorf("read %+v, mochi %+v, %v", h, want, err)
		}
		if n, width, err := mochi.DecodeLength(bytes.NewReader(in[1:])); err != nil || n != h.Length || width+1 != h.Size {
			t.Errorf("read %+v, mochi %d in %d bytes, %v", h, n, width, err)
		}
	})
}

func FuzzConnect(f *testing.F) {
	f.Add([]byte(connect5("\xfe", "\x21\x00\x01\x15\x00\x01m", "\x00\x01c\x05\x18\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01u\x00\x01p")))
	f.Add([]byte("\x00\x04MQTT\x04\xc2\x00\x3c\x00\x01c\x00\x01u\x00\x01p"))
	f.Fuzz(func(t *testing.T, in []byte) {
		version, expires, err := CheckConnect(in, roomy)
		if err != nil {
			return
		}
		p := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: mochi.Connect, Remaining: len(in)}}
		if err := p.ConnectDecode(in); err != nil || p.ProtocolVersion != version || p.Connect.WillProperties.MessageExpiryInterval > 0 && !expires {
			t.Errorf("passed, but mochi says %v, version %d, an expiry of the last will of %d", err, p.ProtocolVersion, p.Connect.WillProperties.MessageExpiryInterval)
		}
	})
}

func FuzzPublish(f *testing.F) {
	f.Add(byte(2), true, []byte("\x00\x01t\x00\x01\x05\x02\x00\x00\x00\x09x"))
	f.Add(byte(0), false, []byte("\x00\x01tx"))
	f.Fuzz(func(t *testing.T, flags byte, v5 bool, in []byte) {
		h := Header{Type: Publish, Flags: flags & 15, Length: len(in)}
		if !h.flagsAllowed() {
			return
		}
		got, err := ReadPublish(h, bytes.Clone(in), v5, roomy)
		if err != nil {
			return
		}
		want := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: mochi.Publish, Qos: h.QoS(), Remaining: len(in)}, ProtocolVersion: 4}
		if v5 {
			want.ProtocolVersion = 5
		}
		if err := want.PublishDecode(in); err != nil {
			t.Fatalf("passed, but mochi says %v", err)
		}
		if string(got.Topic) != want.TopicName || !bytes.Equal(got.Payload, want.Payload) || got.ID != want.PacketID || got.Expiry != want.Properties.MessageExpiryInterval {
			t.Errorf("read %+v, mochi %+v", got, want)
		}
		p := DecodeProperties(got.Properties)
		if again := p.Encode(); len(again) > len(got.Properties) {
			t.Errorf("%x decoded and encoded is longer: %x", got.Properties, again)
		}
	})
}

func FuzzSubscribe(f *testing.F) {
	f.Add(true, []byte("\x00\x01\x02\x0b\x01\x00\x01t\x2e"))
	f.Add(true, []byte("\x00\x01\x00\x00\x07line1/a"))
	f.Add(false, []byte("\x00\x01\x00\x01t\x02"))
	f.Fuzz(func(t *testing.T, v5 bool, in []byte) {
		p := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: mochi.Subscribe, Qos: 1, Remaining: len(in)}, ProtocolVersion: 4}
		if v5 {
			p.ProtocolVersion = 5
		}
		if CheckSubscribe(in, v5, roomy) == nil {
			if err := p.SubscribeDecode(in); err != nil || p.SubscribeValidate() != mochi.CodeSuccess {
				t.Errorf("passed, but mochi says %v, %v", err, p.SubscribeValidate())
			}
		}
	})
}

func FuzzUnsubscribe(f *testing.F) {
	f.Add(true, []byte("\x00\x01\x00\x00\x01t"))
	f.Add(false, []byte("\x00\x01\x00\x01t"))
	f.Fuzz(func(t *testing.T, v5 bool, in []byte) {
		p := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: mochi.Unsubscribe, Qos: 1, Remaining: len(in)}, ProtocolVersion: 4}
		if v5 {
			p.ProtocolVersion = 5
		}
		if CheckUnsubscribe(in, v5, roomy) == nil {
			if err := p.UnsubscribeDecode(in); err != nil || p.UnsubscribeValidate() != mochi.CodeSuccess {
				t.Errorf("passed, but mochi says %v, %v", err, p.UnsubscribeValidate())
			}
		}
	})
}

func FuzzAck(f *testing.F) {
	f.Add(byte(0), true, []byte("\x00\x01\x10\x04\x1f\x00\x01r"))
	f.Add(byte(2), false, []byte("\x00\x01"))
	f.Fuzz(func(t *testing.T, which byte, v5 bool, in []byte) {
		kind := Puback + Type(which&3)
		p := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: byte(kind), Remaining: len(in)}, ProtocolVersion: 4}
		if v5 {
			p.ProtocolVersion = 5
		}
		id, reason, err := ReadAck(kind, in, v5, roomy)
		if err != nil {
			return
		}
		if err := p.PubackDecode(in); err != nil || p.PacketID != id || p.ReasonCode != reason {
			t.Errorf("read %d, 0x%02x, mochi %d, 0x%02x, %v", id, reason, p.PacketID, p.ReasonCode, err)
		}
	})
}

func FuzzDisconnect(f *testing.F) {
	f.Add(true, []byte("\x04\x05\x11\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, v5 bool, in []byte) {
		p := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: mochi.Disconnect, Remaining: len(in)}, ProtocolVersion: 4}
		if v5 {
			p.ProtocolVersion = 5
		}
		d, err := ReadDisconnect(in, v5, roomy)
		if err != nil {
			return
		}
		// A body of one byte, the reason alone, mochi does not read.
		if err := p.DisconnectDecode(in); err != nil || len(in) != 1 && p.ReasonCode != d.Reason || p.Properties.SessionExpiryInterval != d.Expiry || p.Properties.SessionExpiryIntervalFlag != d.HasExpiry {
			t.Errorf("read %+v, mochi %+v, %v", d, p, err)
		}
	})
}
