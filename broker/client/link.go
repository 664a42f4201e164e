package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/colonyfleet/colony/broker/layers"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

const writeChunk = 16 << 10 // bytes that one write deadline covers

var (
	errStopped = errors.New("client stopped")
	// errAnew ends a link that another one is to follow at once.
	errAnew = errors.New("connects anew")
)

// A link is one connection to the broker, from CONNECT to its end. Four
// goroutines serve it: read takes packets off the wire, work hands messages to
// Handle and acknowledges them, watch pings and gives up a silent link, and the
// callers of publish write.
type link struct {
	conn    net.Conn
	r       *bufio.Reader
	o       *Options
	log     *slog.Logger
	session string

	// ctx ends with the link, with the reason as its cause.
	ctx context.Context
	end context.CancelCauseFunc

	terms   terms
	quota   chan struct{}       // one element per unacknowledged publish
	inbound chan inboundMessage // from read to work
	pulse   pulse

	wmu sync.Mutex     // serialises packets onto conn, and keeps ids in their order
	wg  sync.WaitGroup // the goroutines of start
	// why is set by disconnect: the end that follows is ours, for this reason.
	why atomic.Pointer[error]
	// term ends the link with the broker's certificate; nil: it has none.
	term *time.Timer
	// refused are the optional subscriptions that the broker does not make; they are known before the link is up.
	refused []string

	mu      sync.Mutex // protects what follows
	pending map[uint16]request
	nextID  uint16
}

// terms are what CONNACK says.
type terms struct {
	keepAlive time.Duration // that of Options, or a shorter one of the broker
	maxPacket uint32        // the largest packet the broker takes; 0: any
	maxQoS    byte
}

// A pulse is what the link knows of its life. Times are nanoseconds since begun.
type pulse struct {
	begun    time.Time
	lastRead atomic.Int64
	lastSent atomic.Int64
	written  atomic.Int64 // bytes
	// handing is set while read waits for work: the broker is then not heard, and
	// its silence proves nothing.
	handing atomic.Bool
}

func (p *pulse) now() time.Duration { return time.Since(p.begun) }
func (p *pulse) read()              { p.lastRead.Store(int64(p.now())) }
func (p *pulse) sent()              { p.lastSent.Store(int64(p.now())) }

// A request is a packet whose answer is due.
type request struct {
	answer chan reply // takes one reply
	want   byte       // the packet type that answers it
	codes  int        // how many reason codes the answer must carry
}

// A reply is the broker's answer to a request. It has as many codes as the request wants.
type reply struct {
	codes  []byte
	reason string
}

type inboundMessage struct {
	m  Message
	id uint16 // 0 for QoS 0
}

func newLink(conn net.Conn, o *Options, log *slog.Logger) *link {
	l := &link{
		conn: conn, r: bufio.NewReaderSize(conn, 4<<10), o: o, log: log,
		session: o.Random.Text("session/" + o.ClientID),
		terms:   terms{keepAlive: o.KeepAlive, maxQoS: 2},
		inbound: make(chan inboundMessage, o.ReceiveMaximum),
		pending: make(map[uint16]request),
		pulse:   pulse{begun: time.Now()},
	}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	return l
}

// fail ends the link for a reason; the first reason stays.
func (l *link) fail(err error) {
	if why := l.why.Load(); why != nil {
		err = *why
	}
	l.end(err)
	_ = l.conn.Close() // the reason to close is what matters
}

func (l *link) cause() error { return context.Cause(l.ctx) }

// disconnect sends DISCONNECT with a reason, so that the broker drops the last will. Then it waits
// a moment for the broker to close, because closing first could reset the connection while
// DISCONNECT is on its way.
func (l *link) disconnect(why error) {
	if !l.why.CompareAndSwap(nil, &why) && !errors.Is(why, errStopped) {
		return // it is being ended
	}
	l.why.Store(&why)
	late := time.AfterFunc(time.Second, func() { l.fail(why) })
	defer late.Stop()
	err := l.send(&packets.Disconnect{Properties: &packets.Properties{}}, packets.DISCONNECT)
	half, ok := l.conn.(interface{ CloseWrite() error })
	if err == nil && ok && half.CloseWrite() == nil {
		<-l.ctx.Done()
	}
	l.fail(why)
}

// connect sends CONNECT and takes the broker's answer.
func (l *link) connect() error {
	if err := l.send(l.connectPacket(), packets.CONNECT); err != nil {
		return err
	}
	if err := l.conn.SetReadDeadline(time.Now().Add(l.o.ConnectTimeout)); err != nil {
		return fmt.Errorf("set read deadline: %w", err)
	}
	p, err := l.readPacket()
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, "wait for CONNACK: %w", err)
	}
	ack, ok := p.Content.(*packets.Connack)
	if !ok {
		return protocol.Errorf(protocol.Unavailable, "broker answered CONNECT with %s", p.PacketType())
	}
	if ack.ReasonCode >= 0x80 {
		return refusal("connect as "+l.o.ClientID, ack.ReasonCode, ack.Properties.ReasonString)
	}
	quota := uint16(65535)
	if ack.Properties.ReceiveMaximum != nil {
		quota = max(1, *ack.Properties.ReceiveMaximum)
	}
	l.quota = make(chan struct{}, quota)
	l.agree(ack)
	if err := l.conn.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("clear read deadline: %w", err)
	}
	return nil
}

// agree takes the broker's terms. A link that is stopped meanwhile sends its DISCONNECT by them.
func (l *link) agree(ack *packets.Connack) {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if k := ack.Properties.ServerKeepAlive; k != nil && *k > 0 {
		l.terms.keepAlive = min(l.terms.keepAlive, time.Duration(*k)*time.Second)
	}
	if n := ack.Properties.MaximumPacketSize; n != nil {
		l.terms.maxPacket = *n
	}
	if q := ack.Properties.MaximumQOS; q != nil {
		l.terms.maxQoS = *q
	}
}

func (l *link) connectPacket() packets.Packet {
	largest, receive := uint32(maxPacket), l.o.ReceiveMaximum
	c := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5,
		ClientID: l.o.ClientID, CleanStart: l.o.SessionExpiry == 0,
		KeepAlive:    uint16((l.o.KeepAlive + time.Second - 1) / time.Second),
		Username:     l.o.Username,
		UsernameFlag: l.o.Username != "",
		Password:     []byte(l.o.Password),
		PasswordFlag: l.o.Password != "",
		Properties:   &packets.Properties{MaximumPacketSize: &largest, ReceiveMaximum: &receive},
	}
	if keep := uint32(l.o.SessionExpiry / time.Second); keep > 0 {
		c.Properties.SessionExpiryInterval = &keep
	}
	if l.o.Will == nil {
		return connect{c}
	}
	will := l.o.Will(l.session)
	if will != nil && max(len(will.Payload), len(will.Topic)) > 1<<16-1 {
		l.log.Error("last will left out: over 65,535 bytes", "topic", will.Topic[:min(100, len(will.Topic))], "bytes", len(will.Payload))
	} else if will != nil {
		c.WillFlag, c.WillTopic, c.WillMessage = true, will.Topic, will.Payload
		c.WillQOS, c.WillRetain = will.QoS, will.Retain
		c.WillProperties = properties(*will)
	}
	return connect{c}
}

// expire has the link made anew before the certificate of the broker ends, in the last tenth of what is left of it:
// those of all its clients end at one time. The time is measured from now on: a clock that is set ends no link.
func (l *link) expire() {
	s := layers.TLS(l.conn)
	if s == nil || l.o.Proof.Left == nil {
		return
	}
	left := l.o.Proof.Left(*s)
	wait := retry.Policy{Min: left, Max: left, Jitter: 0.1}.Delay(0, l.o.Random.Rand("anew/"+l.o.ClientID))
	l.term = time.AfterFunc(wait, func() { l.disconnect(errAnew) })
}

// start begins to serve the link; wg waits for its goroutines.
func (l *link) start(ctx context.Context) {
	l.wg.Go(l.read)
	l.wg.Go(func() { l.work(ctx) })
	l.wg.Go(l.watch)
}

// subscribe makes all subscriptions in one packet.
func (l *link) subscribe() error {
	if len(l.o.Subscriptions) == 0 {
		return nil
	}
	s := &packets.Subscribe{Properties: &packets.Properties{}}
	for _, sub := range l.o.Subscriptions {
		s.Subscriptions = append(s.Subscriptions, packets.SubOptions{Topic: sub.Filter, QoS: sub.QoS, RetainAsPublished: true})
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.o.ConnectTimeout)
	defer cancel()
	answer, err := l.request(ctx, request{want: packets.SUBACK, codes: len(s.Subscriptions)}, func(id uint16) error {
		s.PacketID = id
		return l.sendLocked(s, packets.SUBSCRIBE)
	})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	for i, sub := range l.o.Subscriptions {
		if answer.codes[i] < 0x80 {
			continue
		}
		if !sub.Optional {
			return refusal("subscribe "+sub.Filter, answer.codes[i], answer.reason)
		}
		l.log.Info("broker refuses a subscription that may be missing", "filter", sub.Filter, "reason", answer.reason)
		l.refused = append(l.refused, sub.Filter)
	}
	return nil
}

func (l *link) lost(what string) error {
	return protocol.Errorf(protocol.Unavailable, "%s: link lost: %w", what, l.cause())
}

// register gives a request an id that no other request has.
func (l *link) register(r request) uint16 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for { // ends: there are fewer requests than ids, see quota
		l.nextID++
		if _, received := l.pending[l.nextID]; !received && l.nextID != 0 {
			l.pending[l.nextID] = r
			return l.nextID
		}
	}
}

// forget frees the id of a request that was not sent.
func (l *link) forget(id uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if req, ok := l.pending[id]; ok {
		l.endLocked(id, req)
	}
}

// endLocked frees the id of a request, and its place in the broker's Receive
// Maximum. l.mu is held.
func (l *link) endLocked(id uint16, req request) {
	delete(l.pending, id)
	if req.want == packets.PUBACK {
		<-l.quota // never blocks: begin put one element in for each of these requests
	}
}

// settle hands the broker's answer to the request with an id; an answer to no
// request is ignored. An answer of another type than the request's, or with another
// number of reason codes, is an error: such a broker does not speak MQTT, and what
// it acknowledges is worth nothing.
func (l *link) settle(kind byte, id uint16, r reply) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	req, ok := l.pending[id]
	switch {
	case !ok:
		return nil
	case req.want != kind:
		return protocol.Errorf(protocol.Invalid, "broker answered packet id %d with %s: want %s", id, packetName(kind), packetName(req.want))
	case len(r.codes) != req.codes:
		return protocol.Errorf(protocol.Invalid, "%s for packet id %d with %d reason codes: want %d", packetName(kind), id, len(r.codes), req.codes)
	}
	l.endLocked(id, req)
	req.answer <- r // has room for it
	return nil
}

// packetName is the name of a packet type in the MQTT specification.
func packetName(kind byte) string {
	return (&packets.ControlPacket{FixedHeader: packets.FixedHeader{Type: kind}}).PacketType()
}

func (l *link) send(p packets.Packet, kind byte) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	return l.sendLocked(p, kind)
}

// sendLocked writes one packet, in pieces that each have the write deadline, so
// that a big packet may take its time on a slow link but a stuck one may not.
func (l *link) sendLocked(p packets.Packet, kind byte) error {
	if l.ctx.Err() != nil {
		return l.lost("send")
	}
	cp := packets.NewControlPacket(kind)
	cp.Content = p
	var buf bytes.Buffer
	if _, err := cp.WriteTo(&buf); err != nil {
		return fmt.Errorf("encode %s: %w", cp.PacketType(), err)
	}
	if l.terms.maxPacket > 0 && buf.Len() > int(l.terms.maxPacket) {
		return protocol.Errorf(protocol.Invalid, "packet of %d bytes: the broker takes up to %d", buf.Len(), l.terms.maxPacket)
	}
	for buf.Len() > 0 {
		err := l.conn.SetWriteDeadline(time.Now().Add(l.o.WriteTimeout))
		if err == nil {
			var n int
			n, err = l.conn.Write(buf.Next(writeChunk))
			l.pulse.written.Add(int64(n))
		}
		if err != nil {
			l.fail(fmt.Errorf("write: %w", err))
			return l.lost("send")
		}
		l.pulse.sent()
	}
	return nil
}

// readPacket reads one packet, bounded in size.
func (l *link) readPacket() (p *packets.ControlPacket, err error) {
	defer func() { // the codec must not let a malformed packet stop the program
		if r := recover(); r != nil {
			p, err = nil, protocol.Errorf(protocol.Invalid, "malformed packet: %v", r)
		}
	}()
	size := 0
	for i := 1; ; i++ { // remaining length: up to four bytes of seven bits
		head, err := l.r.Peek(i + 1)
		if err != nil {
			return nil, err
		}
		size |= int(head[i]&0x7f) << (7 * (i - 1))
		if head[i]&0x80 == 0 {
			break
		}
		if i == 4 {
			return nil, protocol.Errorf(protocol.Invalid, "malformed packet length")
		}
	}
	if size > maxPacket {
		return nil, protocol.Errorf(protocol.Invalid, "packet of %d bytes: the limit is %d", size, maxPacket)
	}
	if size > l.r.Buffered() { // a big packet on a slow link is a sign of life as it comes
		return packets.ReadPacket(heard{l})
	}
	return packets.ReadPacket(l.r)
}

// heard notes each piece of a packet as a sign of life.
type heard struct{ l *link }

func (h heard) Read(p []byte) (int, error) {
	n, err := h.l.r.Read(p)
	h.l.pulse.read()
	return n, err
}

var _ io.Reader = heard{}
