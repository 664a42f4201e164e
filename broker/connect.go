package broker

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/answer"
	"github.com/colonyfleet/colony/broker/layers"
	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/peers"
	"github.com/colonyfleet/colony/broker/reason"
	"github.com/colonyfleet/colony/broker/routing"
	"github.com/colonyfleet/colony/broker/term"
	"github.com/colonyfleet/colony/broker/wills"
	"github.com/colonyfleet/colony/internal/refusals"
	"github.com/colonyfleet/colony/protocol"
)

// takeover is how long a new connection waits for the old one of its client id to
// end, its last will included.
const takeover = 5 * time.Second

// receiveMaximum is how many messages of QoS 2 a client may have under way to the
// broker. Those of QoS 1 are done with before the next packet is read.
const receiveMaximum = 1024

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
	held := 0
	defer func() {
		if r := recover(); r != nil {
			err = b.panicked(c, packet.Connect.String(), r)
		}
		c.Hold(-held)
		b.report(c, packet.Connect, body, err)
	}()
	var h packet.Header
	if err = b.door.Secure(c.Raw(), c.entry, c.listener.Name); err == nil {
		h, err = packet.ReadHeader(c)
	}
	if err == nil {
		err = b.checkHeader(h, int64(b.o.Limits.ConnectBytes), "limits.connectBytes")
	}
	if err == nil && h.Type != packet.Connect { // [MQTT-3.1.0-1]
		err = &packet.Error{Code: packet.ProtocolError, Clause: "MQTT-3.1.0-1", Reason: "the first packet is " + h.Type.String() + ": want CONNECT"}
	}
	if err != nil {
		b.countEarly(err)
		return fmt.Errorf("read CONNECT: %w", err)
	}
	held = h.Length // and not as it arrives: it is small
	c.Hold(held)
	b.relieve()
	if body, err = packet.ReadBody(c, h.Length, func(int) error { return nil }); err != nil {
		b.countEarly(err)
		return fmt.Errorf("read CONNECT: %w", err)
	}
	version, willExpires, err := packet.CheckConnect(body, b.bounds) // [MQTT-3.1.4-1]
	p := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connect, Remaining: h.Length}}
	if err == nil {
		err = p.ConnectDecode(body)
	}
	if err != nil {
		return b.refuseMalformed(c, version, err)
	}
	if p.Properties.AuthenticationMethod != "" { // [MQTT-4.12.0-1]
		err := &reason.Refusal{Code: packets.ErrBadAuthenticationMethod, Message: "enhanced authentication is not supported: connect without an authentication method"}
		b.refuse(c, &p, err)
		return err
	}
	message.NoteWillExpiry(&p, willExpires)
	s, err := b.accept(c, &p)
	if errors.Is(err, errGaveWay) {
		return err
	}
	var begun resumed
	if err == nil {
		if begun, err = b.resume(s, p.Connect.Clean); err != nil {
			s.clean.Store(true) // nothing is published for a client that is refused
		}
	}
	if err != nil {
		b.refuse(c, &p, err)
		return err
	}
	return b.welcome(s, &p, begun)
}

// countEarly counts the end of a connection before its CONNECT has arrived.
func (b *Broker) countEarly(err error) {
	if _, bad := reason.Of(err); bad {
		b.metrics.Refused("connect", "malformed")
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		b.metrics.Refused("connect", "timeout")
	}
}

// refuseMalformed ends a connection whose CONNECT breaks the protocol. A client gets the
// reason if its version has a way to say it: MQTT 3.1.1 knows of the version alone.
func (b *Broker) refuseMalformed(c *conn, version byte, err error) error {
	code, _ := reason.Of(reason.Malformed(err))
	p := packets.Packet{ProtocolVersion: version}
	if version == 5 || code.Code == packets.ErrUnsupportedProtocolVersion.Code { // [MQTT-3.1.2-1] [MQTT-3.1.2-2]
		b.refuse(c, &p, &reason.Refusal{Code: code, Message: code.Reason})
	} else {
		b.metrics.Refused("connect", "malformed")
	}
	return fmt.Errorf("read CONNECT: %w", err)
}

// accept decides on a CONNECT packet. Without an error the session is registered.
func (b *Broker) accept(c *conn, p *packets.Packet) (*session, error) {
	info := access.ConnectInfo{
		Listener: c.listener.Name, Network: string(c.listener.Network), Remote: c.remote(),
		ClientID: strings.Clone(p.Connect.ClientIdentifier), Username: string(p.Connect.Username), Password: bytes.Clone(p.Connect.Password), TLS: layers.TLS(c.Raw()),
	}
	if err := access.CheckClientID(info.ClientID, b.o.Limits.ClientIDBytes, p.ProtocolVersion, p.Connect.Clean); err != nil {
		return nil, err
	}
	if !c.listener.AllowsUser(info.Username) {
		return nil, protocol.Errorf(protocol.Denied, "user %q may not connect on listener %s: see its users", info.Username, c.listener.Name)
	}
	if c.entry.Verdict() == peers.TooFast && (info.TLS == nil || len(info.TLS.PeerCertificates) == 0) { // before access control, which may verify a password
		return nil, b.tooFast(c)
	}
	id, err := b.o.Access.Connect(info)
	if err != nil {
		return nil, err
	}
	if err := b.placeAt(c, id, &info); err != nil {
		return nil, err
	}
	will := wills.Of(p)
	if err := b.wills.Check(id, will.Message); err != nil {
		return nil, err
	}
	if err := b.mayEnter(id, info, will.Message); err != nil {
		return nil, err
	}
	s := newSession(b, c, id, p)
	if s.client == "" {
		s.client = id.Name + "/" + rand.Text()[:12] // [MQTT-3.1.3-6]
	}
	s.sub = &routing.Subscriber{Client: s.client, ID: s.id, Address: c.address()}
	s.account = access.Account(id, s.sub.Address, info.TLS)
	if m := will.Message; m != nil {
		m.Origin, m.Owner, will.Held = s.client, s.account, m.Size()
		if ok, whose := b.routes.Held.Take(s.sub.Address, will.Held); !ok {
			return nil, &reason.Refusal{Code: packets.ErrQuotaExceeded, Message: routing.NoRoom("last will", whose)}
		}
		s.will = will
	}
	if !b.restForWill(c, s) {
		b.routes.Held.Add(s.sub.Address, -s.will.Held)
		return nil, errLeft
	}
	if err := b.settle(s); err != nil {
		b.routes.Held.Add(s.sub.Address, -s.will.Held)
		return nil, err
	}
	// What was revoked before it was registered, Recheck has not seen.
	if s.term, err = term.Begin(b.o.Access, c.listener.Name, info.TLS, func() {
		b.log.Info("connection ended with its certificate: the client connects anew with its next one", "client", refusals.Shortened(s.client), "listener", c.listener.Name, "remote", c.remote())
		b.disconnect(c, packets.ErrMaxConnectTime)
	}); err != nil {
		s.clean.Store(true) // nothing is published for a client that is refused
		return nil, err
	}
	return s, nil
}

// restForWill is rest for the last will of a client that connects, which counts at once where its account is watched.
func (b *Broker) restForWill(c *conn, s *session) (here bool) {
	m := s.will.Message
	if m == nil {
		return true
	}
	turn, here := b.rest(c, s.client, m)
	defer turn.End()
	if here && turn != nil {
		b.routes.ChargeWill(m)
	}
	return here
}

// errGaveWay ends a connection that is closed and counted already: it gave way while access control looked at its client.
var errGaveWay = errors.New("it gave way to another connection before its client was known")

// errLeft ends a connection whose client has left before its last will could be accepted.
var errLeft = &reason.Refusal{Code: packets.ErrQuotaExceeded, Message: "the connection has ended while its last will waited for the messages of its account; see limits.matchRate"}

// placeAt refuses a client where its address, or all but machines, have as many connections as they may, unless the
// client takes over one of them.
func (b *Broker) placeAt(c *conn, id access.Identity, info *access.ConnectInfo) error {
	if id.Machine() {
		c.entry.Machine(id.Proved(info.TLS), time.Now())
	}
	c.entry.Known()
	verdict := c.entry.Verdict()
	switch {
	case verdict == peers.Welcome:
		return nil
	case verdict.Refusal() != "":
		return errGaveWay
	}
	b.mu.RLock()
	old := b.sessions[info.ClientID]
	b.mu.RUnlock()
	if verdict != peers.TooFast && old != nil && old.id.Name == id.Name && (verdict == peers.Trial || old.conn.address() == c.address()) {
		if !c.entry.Replace() {
			return errGaveWay
		}
		return nil
	}
	if verdict == peers.TooFast {
		return b.tooFast(c)
	}
	return &reason.Refusal{Code: packets.ErrQuotaExceeded, Message: b.o.Limits.TooMany(c.address(), verdict == peers.Trial)}
}

// tooFast refuses a client whose address begins more connections per second than it may.
func (b *Broker) tooFast(c *conn) error {
	return &reason.Refusal{Code: packets.ErrConnectionRateExceeded, Message: fmt.Sprintf("%s connects more than %v times per second: connect later, or raise limits.connectRatePerAddress", c.address(), b.o.Limits.ConnectRatePerAddress)}
}

// mayEnter asks the owner of the broker about a client.
func (b *Broker) mayEnter(id access.Identity, info access.ConnectInfo, will *message.Message) error {
	if b.o.Admit == nil {
		return nil
	}
	var m *Message
	if will != nil {
		public := will.Public()
		m = &public
	}
	return b.o.Admit(b.ctx, id, info, m)
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
		b.metrics.Takeovers.Inc()
		b.supersede(old) // [MQTT-3.1.4-3]
		select {
		case <-old.done: // its will is out
		case <-late.C:
			return protocol.Errorf(protocol.Unavailable, "the former connection of %s has not ended yet: try again", s.client)
		}
	}
}

// drainTime is how long a connection that is taken over may take to serve what it had sent before.
const drainTime = time.Second

// supersede ends a connection for a new one of its client id, once it has served what has arrived: its
// client may have said DISCONNECT, whose will must not be sent then. [MQTT-3.14.4-3]
func (b *Broker) supersede(old *session) {
	if old.conn.Drain() {
		late := time.NewTimer(drainTime)
		defer late.Stop()
		select {
		case <-old.done:
			return
		case <-late.C:
		}
	}
	b.disconnect(old.conn, packets.ErrSessionTakenOver)
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
			return nil, reason.Held(s.client, old.id.Name, true)
		}
		return old, nil
	}
	if err := b.mayResume(s); err != nil { // before it has the client id: whose session it is may connect at any moment
		return nil, err
	}
	use := b.identities[s.id.Name]
	if use == nil {
		use = &identity{}
	}
	if use.sessions >= b.o.Limits.ConnectionsPerIdentity {
		return nil, &reason.Refusal{Code: packets.ErrQuotaExceeded, Message: fmt.Sprintf("%s has %d connections: that is the limit; see limits.connectionsPerIdentity", s.id.Name, use.sessions)}
	}
	b.sessions[s.client] = s
	b.identities[s.id.Name] = use
	use.sessions++
	s.use = use
	b.metrics.Clients.Up()
	s.conn.session.Store(s)
	return nil, nil
}

// welcome sends the CONNACK of an accepted session.
func (b *Broker) welcome(s *session, p *packets.Packet, begun resumed) error {
	ack := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Connack}, ProtocolVersion: s.version(),
		SessionPresent: begun.present && p.ProtocolVersion > 3, // MQTT 3.1 has no such flag
		Properties: packets.Properties{
			ReceiveMaximum: receiveMaximum, MaximumPacketSize: b.o.Limits.PacketBytes, TopicAliasMaximum: answer.AliasMaximum,
			SessionExpiryInterval: s.expiry, SessionExpiryIntervalFlag: true, // [MQTT 5, 3.2.2.3.2]
		},
	}
	if s.keepAlive != p.Connect.Keepalive {
		ack.Properties.ServerKeepAlive, ack.Properties.ServerKeepAliveFlag = s.keepAlive, true // [MQTT-3.2.2-21]
	}
	if ack.Properties.ReasonString = cmp.Or(b.noteNotStored(s), begun.note); s.terse {
		ack.Properties.ReasonString = ""
	}
	if p.Connect.ClientIdentifier == "" {
		ack.Properties.AssignedClientID = s.client // [MQTT-3.2.2-16]
	}
	answer.Shorten(&ack, s.takes(), s.expiry == s.asked)
	s.conn.greeting.Lock() // a client that has read CONNACK gets the reason for which the connection ends
	err := b.send(s.conn, &ack, ack.ConnackEncode)
	s.conn.greeted = err == nil
	s.conn.greeting.Unlock()
	if err != nil {
		return fmt.Errorf("write CONNACK: %w", err)
	}
	s.sub.Connect(s)
	if s.link != nil { // nothing of the session comes before CONNACK
		s.conn.SetSource(s.link)
		s.conn.Wake()
	}
	b.metrics.Connects.Inc()
	b.changed(s, true, nil)
	b.log.Debug("client connected", "client", refusals.Shortened(s.client), "listener", s.conn.listener.Name, "remote", s.conn.remote(), "mqtt", s.version(),
		"session_expiry_s", s.expiry, "session_present", begun.present)
	return nil
}

// noteNotStored counts a client that asks for a session which outlives its connection, and returns
// a text for CONNACK, which is logged, too. A library that subscribes once, and relies on the
// session, would receive nothing after its first reconnect.
func (b *Broker) noteNotStored(s *session) string {
	if b.store != nil || s.asked == 0 {
		return ""
	}
	b.metrics.NotStored.Inc()
	b.refused.Warn("session", s.account, s.client, "client asks for a session that outlives its connection, and sessions are off: turn them on (sessions.off), or let the client subscribe after each connect",
		"client", refusals.Shortened(s.client), "mqtt", s.version(), "asked_expiry_s", s.asked)
	return "sessions are off at this broker and end with their connection: subscribe after each connect"
}

// refuse sends the CONNACK of a connection that is not accepted, and counts it.
func (b *Broker) refuse(c *conn, p *packets.Packet, err error) {
	v5 := p.ProtocolVersion == 5
	code := reason.OfConnect(err, v5)
	b.metrics.Refused("connect", fmt.Sprintf("0x%02x", reason.OfConnect(err, true).Code))
	b.refused.Warn("connect", c.address(), err.Error(), "connect refused", "client", refusals.Shortened(p.Connect.ClientIdentifier),
		"user", refusals.Shortened(string(p.Connect.Username)), "listener", c.listener.Name, "remote", c.remote(), "code", code.Code, "err", err)
	frame, err := answer.Refuse(answer.Client{V5: v5, Largest: int(p.Properties.MaximumPacketSize)}, code)
	_ = b.write(c, frame, err) // the connection ends now in any case
}
