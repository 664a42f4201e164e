package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/time/rate"

	"github.com/colonyfleet/colony/protocol"
)

// takeover is how long a new connection waits for the old one of its client id to
// end, its last will included.
const takeover = 5 * time.Second

// A session is an accepted connection. It ends with the connection.
type session struct {
	id      Identity
	client  string
	v5      bool
	limiter *rate.Limiter // nil: no limit
	will    *Message
	conn    *conn
	// queue has an element for each message of QoS 1 and 2 in mochi's queue.
	queue chan struct{}
	// offered and encoded count the messages of any QoS before and after mochi's
	// queue; progress wakes one who waits for encoded to grow. See pace.
	offered, encoded atomic.Int64
	progress         chan struct{}
	// clean is set when the client said good-bye, so that its will is not sent.
	clean atomic.Bool
	done  chan struct{} // closed when all traces of the connection are gone
}

// accept decides on a CONNECT packet. A nil error means that the session is registered.
func (b *Broker) accept(c *conn, cl *mqtt.Client, p packets.Packet) error {
	info := ConnectInfo{
		Listener: c.listener.Name, Network: c.listener.Network, Remote: c.RemoteAddr().String(),
		ClientID: cl.ID, Username: string(p.Connect.Username), Password: p.Connect.Password, TLS: tlsState(c),
	}
	if strings.HasPrefix(info.ClientID, "$") || cl.Properties.Props.AssignedClientID != "" {
		return protocol.Errorf(protocol.Invalid, "client id %q: want one of your own that does not begin with $", p.Connect.ClientIdentifier)
	}
	id, err := b.o.Access.Connect(info)
	if err != nil {
		return err
	}
	if w := c.will; w != nil {
		if err := b.vetWill(id, w); err != nil {
			return err
		}
	}
	s := &session{
		id: id, client: cl.ID, v5: p.ProtocolVersion == 5, will: c.will, conn: c,
		queue: make(chan struct{}, pendingWrites/2), progress: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if b.o.Limits.PublishRate > 0 {
		s.limiter = rate.NewLimiter(rate.Limit(b.o.Limits.PublishRate), b.o.Limits.PublishBurst)
	}
	late := time.NewTimer(takeover)
	defer late.Stop()
	for {
		old, err := b.admit(s)
		if err != nil || old == nil {
			return err
		}
		b.disconnect(old.conn, packets.ErrSessionTakenOver)
		select {
		case <-old.done: // its will is out, and mochi has forgotten it
		case <-late.C:
			return protocol.Errorf(protocol.Unavailable, "the former connection of %s has not ended yet: try again", cl.ID)
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
func (b *Broker) vetWill(id Identity, w *Message) error {
	if w.Topic == "" || strings.ContainsAny(w.Topic, "+#\x00") || w.Topic[0] == '$' {
		return &connectError{packets.ErrTopicNameInvalid, fmt.Sprintf("last will on %q: want a topic without wildcards that does not begin with $", w.Topic)}
	}
	if !b.o.Access.MayPublish(id, w.Topic) {
		return protocol.Errorf(protocol.Denied, "last will on %s: %s may not publish there", w.Topic, id.Name)
	}
	return nil
}

// ended is called on a connection's goroutine when mochi is done with it.
func (b *Broker) ended(c *conn, err error) {
	s := c.session.Load()
	if s == nil {
		b.log.Debug("connection ended before its session", "listener", c.listener.Name, "remote", c.RemoteAddr().String(), "err", err)
		return
	}
	if s.will != nil && !s.clean.Load() && b.ctx.Err() == nil {
		b.sendWill(s)
	}
	b.mu.Lock()
	delete(b.sessions, s.client)
	if b.perName[s.id.Name]--; b.perName[s.id.Name] == 0 {
		delete(b.perName, s.id.Name)
	}
	b.mu.Unlock()
	close(s.done)
	b.log.Info("client disconnected", "client", s.client, "listener", c.listener.Name, "clean", s.clean.Load(), "err", err)
}

// sendWill does by itself what mochi does for a will, because mochi checks
// nothing, loses the will's properties, forgets it when it is the server that
// ends the connection, and may send it after the next connection's messages.
func (b *Broker) sendWill(s *session) {
	if err := b.take(s, *s.will); err != nil {
		b.log.Warn("last will not taken", "client", s.client, "topic", s.will.Topic, "err", err)
		return
	}
	if err := b.inject(*s.will); err != nil {
		b.log.Error("last will not sent", "client", s.client, "topic", s.will.Topic, "err", err)
		return
	}
	b.metrics.wills.Inc()
}

// take hands a message to the owner of the broker.
func (b *Broker) take(s *session, m Message) error {
	if b.o.Take == nil {
		return nil
	}
	begun := time.Now()
	err := b.o.Take(b.ctx, s.id, m)
	b.metrics.takeSeconds.Observe(time.Since(begun).Seconds())
	if err != nil {
		b.metrics.refused("publish", string(protocol.KindOf(err)))
	}
	return err
}

// tlsState is the state of the TLS connection under c, or nil.
func tlsState(c *conn) *tls.ConnectionState {
	raw := c.Conn
	if w, ok := raw.(*webConn); ok {
		raw = w.NetConn()
	}
	t, ok := raw.(*tls.Conn)
	if !ok {
		return nil
	}
	s := t.ConnectionState()
	return &s
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

// publishCode is the reason code with which a message is refused.
func publishCode(err error) packets.Code {
	code := packets.ErrImplementationSpecificError
	switch protocol.KindOf(err) {
	case protocol.Invalid:
		code = packets.ErrPayloadFormatInvalid
	case protocol.Denied:
		code = packets.ErrNotAuthorized
	case protocol.NotFound:
		code = packets.ErrTopicNameInvalid
	case protocol.Unavailable:
		code = packets.ErrQuotaExceeded
	case protocol.Conflict, protocol.Internal:
	}
	code.Reason = reasonString(err)
	return code
}

// reasonString is err as an MQTT reason string: short, valid UTF-8, no controls.
func reasonString(err error) string {
	s := strings.Map(func(r rune) rune {
		if r < 0x20 || r == utf8.RuneError || r == 0x7f {
			return ' '
		}
		return r
	}, err.Error())
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "")
	}
	return s
}

// wait keeps a client that publishes too fast from being read.
func (s *session) wait(ctx context.Context) {
	if s.limiter != nil {
		_ = s.limiter.Wait(ctx) // fails only when the broker stops
	}
}

// pace holds the publisher of a message, which may be a replay of what is
// retained, while the queue in mochi before this client is a quarter full: mochi
// would drop what finds it full. The goroutine that empties the queue never waits
// for the network, so this is a matter of the processor only.
//
// mochi also asks for access where no message follows, so offered can be too
// high. If nothing moves for a while the queue is empty, and the count starts anew.
func (s *session) pace() {
	const stale = 100 * time.Millisecond
	waited := false
	for n := s.offered.Add(1); n-s.encoded.Load() > pendingWrites/4; waited = true {
		select {
		case <-s.progress:
		case <-s.conn.gone:
			return
		case <-time.After(stale):
			s.offered.Store(s.encoded.Load())
		}
		n = min(n, s.offered.Load())
	}
	if waited {
		s.wake() // there may be others
	}
}

func (s *session) wake() {
	select {
	case s.progress <- struct{}{}:
	default:
	}
}

// left notes that a message has left mochi's queue.
func (s *session) left(qos byte) {
	s.encoded.Add(1)
	s.wake()
	if qos == 0 {
		return
	}
	select {
	case <-s.queue:
	default:
	}
}
