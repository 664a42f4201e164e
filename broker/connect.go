package broker

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/protocol"
)

// takeover is how long a new connection waits for the old one of its client id to
// end, its last will included.
const takeover = 5 * time.Second

// receiveMaximum is how many messages of QoS 2 a client may have under way to the
// broker. Those of QoS 1 are done with before the next packet is read.
const receiveMaximum = 1024

// aliasMaximum is how many topic aliases a client may set.
const aliasMaximum = 32

// greet serves a connection up to its CONNACK. The rest of its life has a
// goroutine, and so a small stack, of its own: decoding CONNECT takes a large one.
func (b *Broker) greet(c *conn) {
	err := b.connect(c)
	if err != nil {
		_ = c.Close() // never fails
		b.ended(c, err)
		b.untrack(c)
		return
	}
	go b.attend(c) // counted by track
}

// connect reads CONNECT and answers it. Without an error c has a session. A panic
// ends this connection alone.
func (b *Broker) connect(c *conn) (err error) {
	var body []byte
	defer func() {
		if r := recover(); r != nil {
			err = b.panicked(c, packets.Connect, r)
		}
		b.report(c, packets.Connect, body, err)
	}()
	fh, err := c.readHead(int64(b.o.Limits.ConnectBytes))
	if err != nil {
		return fmt.Errorf("read CONNECT: %w", err)
	}
	p := packets.Packet{FixedHeader: fh}
	if body, err = c.readBody(fh); err != nil {
		return fmt.Errorf("read CONNECT: %w", err)
	}
	if err := p.ConnectDecode(body); err != nil {
		b.metrics.refused("connect", "malformed")
		return fmt.Errorf("read CONNECT: %w", err)
	}
	will := willOf(&p)
	if p.Connect.PasswordFlag && len(p.Connect.Password) == 0 {
		p.Connect.PasswordFlag = false // an empty one is one too, but mochi refuses it. [MQTT 5, 3.1.3.6]
	}
	asked := p.Connect.Keepalive
	code := p.ConnectValidate() // [MQTT-3.1.4-1]
	switch {
	case code == packets.CodeSuccess && p.Properties.AuthenticationMethod != "": // [MQTT-4.12.0-1]
		code = packets.ErrBadAuthenticationMethod
	case code == packets.ErrProtocolViolationProtocolVersion:
		code = packets.ErrUnsupportedProtocolVersion // [MQTT-3.1.2-2]
	}
	if code != packets.CodeSuccess {
		err := &connectError{code, code.Reason}
		b.refuse(c, &p, err)
		return err
	}
	s, err := b.accept(c, &p, will)
	if err != nil {
		b.refuse(c, &p, err)
		return err
	}
	return b.welcome(s, asked, p.Connect.ClientIdentifier == "")
}

// willOf takes the last will out of CONNECT, because mochi refuses an empty one.
func willOf(p *packets.Packet) *message {
	if !p.Connect.WillFlag || p.Connect.WillQos > 2 {
		return nil
	}
	w := &message{
		topic: p.Connect.WillTopic, payload: p.Connect.WillPayload, qos: p.Connect.WillQos, retain: p.Connect.WillRetain,
		origin: p.Connect.ClientIdentifier, props: propertiesOf(&p.Connect.WillProperties),
	}
	p.Connect.WillFlag, p.Connect.WillRetain, p.Connect.WillQos = false, false, 0
	return w
}

// keepAlive is what counts of the keep-alive that a client asked for, in seconds;
// 0 is none. An MQTT 5 client is told if it differs.
func (b *Broker) keepAlive(asked uint16, v5 bool) uint16 {
	longest := uint16(min(b.o.Limits.KeepAlive/time.Second, 65_535))
	if v5 && (asked == 0 || asked > longest) {
		return longest
	}
	return asked
}

// accept decides on a CONNECT packet. Without an error the session is registered.
func (b *Broker) accept(c *conn, p *packets.Packet, will *message) (*session, error) {
	info := access.ConnectInfo{
		Listener: c.listener.Name, Network: string(c.listener.Network), Remote: c.RemoteAddr().String(),
		ClientID: p.Connect.ClientIdentifier, Username: string(p.Connect.Username), Password: bytes.Clone(p.Connect.Password), TLS: tlsState(c),
	}
	if strings.HasPrefix(info.ClientID, "$") {
		return nil, protocol.Errorf(protocol.Invalid, "client id %q: want one that does not begin with $", info.ClientID)
	}
	v5 := p.ProtocolVersion == 5
	if info.ClientID == "" && !v5 && !p.Connect.Clean { // [MQTT-3.1.1, 3.1.3-8]
		return nil, protocol.Errorf(protocol.Invalid, "no client id, and no clean session: want one of the two")
	}
	id, err := b.o.Access.Connect(info)
	if err != nil {
		return nil, err
	}
	if will != nil {
		if err := b.vetWill(id, will); err != nil {
			return nil, err
		}
	}
	s := newSession(b, c, id, p)
	if s.client == "" {
		s.client = id.Name + "/" + rand.Text()[:12] // [MQTT-3.1.3-6]
	}
	if will != nil {
		will.origin = s.client
		s.will, s.willExpiry = will, p.Connect.WillProperties.MessageExpiryInterval
	}
	return s, b.settle(s)
}

// settle registers s, once the former connection of its client id has ended.
func (b *Broker) settle(s *session) error {
	late := time.NewTimer(takeover)
	defer late.Stop()
	for {
		old, err := b.admit(s)
		if err != nil || old == nil {
			return err
		}
		b.metrics.takeovers.Inc()
		b.disconnect(old.conn, packets.ErrSessionTakenOver) // [MQTT-3.1.4-3]
		select {
		case <-old.done: // its will is out
		case <-late.C:
			return protocol.Errorf(protocol.Unavailable, "the former connection of %s has not ended yet: try again", s.client)
		}
	}
}

// admit registers s, unless there is a session of its client id, which it returns.
func (b *Broker) admit(s *session) (old *session, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == stopped {
		return nil, protocol.Errorf(protocol.Unavailable, "the broker is shutting down")
	}
	if old := b.sessions[s.client]; old != nil {
		if old.id.Name != s.id.Name {
			return nil, protocol.Errorf(protocol.Invalid, "client id %s is in use by %s", s.client, old.id.Name)
		}
		return old, nil
	}
	if n := b.perName[s.id.Name]; n >= b.o.Limits.ConnectionsPerIdentity {
		return nil, &connectError{packets.ErrQuotaExceeded, fmt.Sprintf("%s has %d connections: that is the limit", s.id.Name, n)}
	}
	b.sessions[s.client] = s
	b.perName[s.id.Name]++
	b.metrics.clients.up()
	s.conn.session.Store(s)
	return nil, nil
}

// A connectError refuses a CONNECT with a reason code that no Kind stands for.
type connectError struct {
	code    packets.Code
	message string
}

// Error says why.
func (e *connectError) Error() string { return e.message }

// vetWill refuses a last will that its client could not publish itself.
func (b *Broker) vetWill(id access.Identity, w *message) error {
	if w.topic == "" || strings.ContainsAny(w.topic, "+#\x00") || w.topic[0] == '$' {
		return &connectError{packets.ErrTopicNameInvalid, fmt.Sprintf("last will on %q: want a topic without wildcards that does not begin with $", w.topic)}
	}
	if !b.o.Access.MayPublish(id, w.topic) {
		return protocol.Errorf(protocol.Denied, "last will on %s: %s may not publish there", w.topic, id.Name)
	}
	return nil
}

// welcome sends the CONNACK of an accepted session.
func (b *Broker) welcome(s *session, asked uint16, assigned bool) error {
	ack := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Connack}, ProtocolVersion: s.version(),
		Properties: packets.Properties{
			ReceiveMaximum: receiveMaximum, MaximumPacketSize: b.o.Limits.PacketBytes, TopicAliasMaximum: aliasMaximum,
			SessionExpiryIntervalFlag: true, // 0: no session outlives its connection. [MQTT-3.2.2.3.2]
		},
	}
	if s.keepAlive != asked {
		ack.Properties.ServerKeepAlive, ack.Properties.ServerKeepAliveFlag = s.keepAlive, true // [MQTT-3.2.2-21]
	}
	if assigned {
		ack.Properties.AssignedClientID = s.client // [MQTT-3.2.2-16]
	}
	if err := s.conn.send(&ack, ack.ConnackEncode); err != nil {
		return fmt.Errorf("write CONNACK: %w", err)
	}
	b.metrics.connects.Inc()
	b.log.Info("client connected", "client", s.client, "listener", s.conn.listener.Name, "remote", s.conn.RemoteAddr().String(), "mqtt", s.version())
	return nil
}

// refuse sends the CONNACK of a connection that is not accepted, and counts it.
func (b *Broker) refuse(c *conn, p *packets.Packet, err error) {
	v5 := p.ProtocolVersion == 5
	code := refuseCode(err, v5)
	b.metrics.refused("connect", fmt.Sprintf("0x%02x", refuseCode(err, true).Code))
	b.log.Warn("connect refused", "client", p.Connect.ClientIdentifier, "user", string(p.Connect.Username), "listener", c.listener.Name,
		"remote", c.RemoteAddr().String(), "code", code.Code, "err", err)
	ack := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Connack}, ReasonCode: code.Code, ProtocolVersion: 4,
		Properties: packets.Properties{ReasonString: code.Reason},
	}
	if v5 {
		ack.ProtocolVersion = 5
	}
	_ = c.send(&ack, ack.ConnackEncode) // the connection ends now in any case
}

// refuseCode is the CONNACK reason code for an error of accept.
func refuseCode(err error, v5 bool) packets.Code {
	var code packets.Code
	if refused, ok := errors.AsType[*connectError](err); ok {
		code = refused.code
	} else {
		switch protocol.KindOf(err) {
		case protocol.Invalid, protocol.Conflict:
			code = packets.ErrClientIdentifierNotValid
		case protocol.Denied, protocol.NotFound:
			code = packets.ErrNotAuthorized
		case protocol.Unavailable, protocol.Internal:
			code = packets.ErrServerBusy
		}
	}
	if !v5 { // [MQTT-3.1.1 3.2.2.3]
		switch code {
		case packets.ErrUnsupportedProtocolVersion:
			return packets.Code{Code: 0x01}
		case packets.ErrClientIdentifierNotValid:
			return packets.Code{Code: 0x02}
		case packets.ErrNotAuthorized:
			return packets.Code{Code: 0x05}
		default:
			return packets.Code{Code: 0x03}
		}
	}
	code.Reason = reasonString(err)
	return code
}
