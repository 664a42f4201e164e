// Package live carries the output of live commands, such as the lines of a log that a person follows, from the nodes of a site to the CO. It does
// so as long as a reader renews its lease; the reader's credit is forwarded to the nodes. The output has a lower priority than all that is in a
// journal, and is sent in pieces that occupy the link for a moment only. Output without room is dropped, the oldest first, and counted.
package live

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	lease = command.LeaseMillis * time.Millisecond
	// maxBuffer bounds what waits of one command, in bytes, and maxBuffers that of all.
	maxBuffer  = 1 << 20
	maxBuffers = 16 << 20
	// maxStreams bounds the commands that are followed at a time, maxNodes the nodes of each.
	maxStreams = 64
	maxNodes   = 256
	// underWay is how many pieces may wait for their acknowledgement.
	underWay = 256
	// mostSmall bounds what goes at once, in bytes, see pace.Bulk.Small.
	mostSmall = 512
	// overhead is what the topic and the rest of a message take beside its data, in bytes.
	overhead = 128
)

// A Gate decides when something may go, see pace.Bulk.
type Gate interface {
	// Room returns how large a piece may be, in bytes.
	Room() int
	// Wait waits until a piece of n bytes may be sent; end is called once it is acknowledged, or given up.
	Wait(ctx context.Context, n int) (end func(acked bool), err error)
	// Small is Wait for a small piece, without the wait; nil: too much was sent so lately.
	Small(n int) (end func(acked bool))
}

// Options of a Live. All must be given, but for Registerer.
type Options struct {
	Site protocol.SiteID
	Gate Gate
	// Begin begins to send a message to the CO.
	Begin func(ctx context.Context, name string, payload []byte) (outcome func(context.Context) error, err error)
	// Publish publishes a message to a node; it may get lost.
	Publish func(ctx context.Context, name string, payload []byte, retained bool) error
	// Open returns the nodes that have not ended a command, at most so many.
	Open       func(id command.ID, most int) []protocol.NodeID
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// frame is one that waits.
type frame struct {
	node protocol.NodeID
	command.Frame
}

// loss is what was left out of a node.
type loss struct{ items, bytes uint64 }

// stream is one command whose output is followed.
type stream struct {
	id      command.ID
	until   time.Time // the end of the lease
	credit  command.Credit
	forward bool // the credit is to be handed on
	frames  []frame
	bytes   int
	lost    map[protocol.NodeID]loss
	seq     map[protocol.NodeID]uint64
	waiting bool // a piece of it waits for its turn, or is being sent: nothing overtakes that
}

// A Live is what is live of a site. Its methods may be called concurrently.
type Live struct {
	o    Options
	log  *slog.Logger
	news notify.Signal // something may be sent
	// urgent says that something small may be sent, or credit handed on.
	urgent notify.Signal
	lost   prometheus.Counter
	sent   prometheus.Counter

	arrived notify.Signal // there is input

	mu      sync.Mutex // protects what follows
	inputs  []input
	streams []*stream
	bytes   int
	turn    int
}

// New returns a Live. Call Run.
func New(o Options) (*Live, error) {
	l := &Live{
		o: o, log: o.Logger.With("component", "live"), news: notify.New(), urgent: notify.New(), arrived: notify.New(),
		lost: prometheus.NewCounter(prometheus.CounterOpts{Name: "colony_lo_live_lost_bytes_total", Help: "Bytes that nodes sent live and that were left out for want of room."}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{Name: "colony_lo_live_sent_bytes_total", Help: "Bytes that nodes sent live and that were sent to the CO."}),
	}
	if o.Registerer == nil {
		return l, nil
	}
	for _, c := range []prometheus.Collector{l.lost, l.sent} {
		if err := o.Registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Credit takes an encoded Credit of the CO for a command.
func (l *Live) Credit(id command.ID, payload []byte) error {
	var m command.Credit
	if err := command.Unmarshal(payload, &m); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.find(id)
	if s == nil {
		if m.End || len(l.streams) >= maxStreams {
			return nil
		}
		s = &stream{id: id, lost: map[protocol.NodeID]loss{}, seq: map[protocol.NodeID]uint64{}}
		l.streams = append(l.streams, s)
	}
	s.until, s.forward = time.Now().Add(lease), true
	s.credit.V, s.credit.Bytes, s.credit.End = protocol.Version, max(s.credit.Bytes, m.Bytes), s.credit.End || m.End
	l.news.Notify()
	l.urgent.Notify()
	return nil
}

// Began says that a node has begun a command: it needs the credit that there is, and not only the next one.
func (l *Live) Began(id command.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.find(id); s != nil {
		s.forward = true
		l.urgent.Notify()
	}
}

func (l *Live) find(id command.ID) *stream {
	for _, s := range l.streams {
		if s.id == id {
			return s
		}
	}
	return nil
}

// Frame takes an encoded Frame of a node. If its command is not followed, the frame is dropped.
func (l *Live) Frame(node protocol.NodeID, id command.ID, payload []byte) error {
	var m command.Frame
	if err := command.Unmarshal(payload, &m); err != nil {
		return err
	}
	if len(m.Data) > command.MaxFrame || len(m.Message) > command.MaxMessage {
		return protocol.Errorf(protocol.Invalid, "frame of %d bytes: the limit is %d", len(m.Data), command.MaxFrame)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.find(id)
	if s == nil || time.Now().After(s.until) {
		return nil
	}
	if m.Data != nil {
		m.Data = slices.Clone(m.Data) // of the broker's buffer
	}
	l.push(s, frame{node, m})
	for n := len(s.frames); n > 1 && (s.bytes > maxBuffer || l.bytes > maxBuffers); n-- {
		l.drop(s)
	}
	l.news.Notify()
	l.urgent.Notify()
	return nil
}

func size(m *command.Frame) int { return len(m.Data) + overhead }

// drop leaves out the oldest frame of a stream.
func (l *Live) drop(s *stream) { l.leaveOut(s, l.pop(s)) }

// leaveOut counts what a frame of a stream holds as lost. That a node has ended is not left out.
func (l *Live) leaveOut(s *stream, f frame) {
	was := s.lost[f.node]
	s.lost[f.node] = loss{was.items + f.Items + f.LostItems, was.bytes + uint64(len(f.Data)) + f.LostBytes}
	l.lost.Add(float64(len(f.Data)))
	if f.End {
		f.Items, f.Data, f.LostItems, f.LostBytes = 0, nil, 0, 0
		l.push(s, f)
	}
}

// pop takes the oldest frame.
func (l *Live) pop(s *stream) frame {
	f := s.frames[0]
	s.frames = s.frames[1:]
	s.bytes -= size(&f.Frame)
	l.bytes -= size(&f.Frame)
	return f
}

// mostJoined bounds the data of frames that were joined while they waited, in bytes.
const mostJoined = 1 << 10

// push puts a frame behind the others. Small ones of a node that wait go together.
func (l *Live) push(s *stream, f frame) {
	if n := len(s.frames); n > 0 {
		last := &s.frames[n-1]
		if last.node == f.node && !last.End && last.LostItems+f.LostItems == 0 && len(last.Data)+len(f.Data) <= mostJoined {
			last.Data = append(last.Data, f.Data...)
			last.Items += f.Items
			last.End, last.Code, last.Message = f.End, f.Code, f.Message
			last.TotalItems, last.TotalBytes = max(last.TotalItems, f.TotalItems), max(last.TotalBytes, f.TotalBytes)
			s.bytes += len(f.Data)
			l.bytes += len(f.Data)
			return
		}
	}
	s.frames = append(s.frames, f)
	s.bytes += size(&f.Frame)
	l.bytes += size(&f.Frame)
}

// outgoing is what is on its way.
type outgoing struct {
	slots chan struct{} // of so many pieces
	waits sync.WaitGroup
}

// Run sends until ctx ends.
func (l *Live) Run(ctx context.Context) {
	out := outgoing{slots: make(chan struct{}, underWay)}
	defer out.waits.Wait()
	out.waits.Go(func() { l.deliver(ctx) })
	out.waits.Go(func() { l.hurry(ctx, &out) })
	for ctx.Err() == nil {
		id, f, ok := l.next()
		if !ok {
			_, _ = retry.SleepOr(ctx, l.expire(), l.news.C()) // its end ends the loop, too
			continue
		}
		out.slots <- struct{}{}
		end := l.o.Gate.Small(size(&f))
		if end == nil {
			var err error
			if end, err = l.o.Gate.Wait(ctx, size(&f)); err != nil {
				return
			}
		}
		sent := l.begin(ctx, id, f, end, &out)
		l.passed(id)
		if !sent {
			_ = retry.Sleep(ctx, time.Second) // the loop looks for its end
		}
	}
}

// hurry sends what is small at once, and hands credit on, while larger pieces wait for their turn, until ctx ends.
func (l *Live) hurry(ctx context.Context, out *outgoing) {
	for ctx.Err() == nil {
		l.handOn(ctx)
		id, f, end, wait := l.nextSmall()
		if end == nil {
			_, _ = retry.SleepOr(ctx, wait, l.urgent.C()) // its end ends the loop, too
			continue
		}
		out.slots <- struct{}{}
		sent := l.begin(ctx, id, f, end, out)
		l.passed(id)
		if !sent {
			_ = retry.Sleep(ctx, time.Second) // likewise
		}
	}
}

// begin sends a piece, whose end is to be called, and reports false where the link is down: what is live is not kept.
func (l *Live) begin(ctx context.Context, id command.ID, f command.Frame, end func(bool), out *outgoing) bool {
	outcome, err := l.o.Begin(ctx, topic.ForCommand(topic.SiteLive, l.o.Site, string(id)), protocol.Marshal(&f))
	if err != nil {
		end(false)
		l.missed(id, f)
		<-out.slots
		return false
	}
	l.sent.Add(float64(len(f.Data)))
	out.waits.Go(func() {
		end(outcome(ctx) == nil)
		<-out.slots
	})
	return true
}

// handOn publishes credit to the nodes that have not ended a command.
func (l *Live) handOn(ctx context.Context) {
	l.mu.Lock()
	var credits []stream
	for _, s := range l.streams {
		if s.forward {
			s.forward = false
			credits = append(credits, stream{id: s.id, credit: s.credit})
		}
	}
	l.mu.Unlock()
	for _, s := range credits {
		payload := protocol.Marshal(&s.credit)
		for _, n := range l.o.Open(s.id, maxNodes) {
			if err := l.o.Publish(ctx, topic.ForNodeCommand(topic.NodeCredit, l.o.Site, n, string(s.id)), payload, false); err != nil {
				l.log.DebugContext(ctx, "credit not handed on", "node_id", n, "command_id", string(s.id), "err", err)
			}
		}
	}
}

// next returns the next piece to send: the streams have their turns.
func (l *Live) next() (id command.ID, piece command.Frame, ok bool) {
	room := l.o.Gate.Room()
	l.mu.Lock()
	defer l.mu.Unlock()
	for range l.streams {
		l.turn++
		s := l.streams[l.turn%len(l.streams)]
		if s.waiting || len(s.frames) == 0 {
			continue
		}
		f := l.pop(s)
		s.waiting = true
		piece, rest := cut(f, room)
		if rest != nil {
			s.frames = append([]frame{*rest}, s.frames...)
			s.bytes += size(&rest.Frame)
			l.bytes += size(&rest.Frame)
		}
		return s.id, s.number(f.node, piece), true
	}
	return "", command.Frame{}, false
}

// number gives a piece of a node its number, and what was left out before it.
func (s *stream) number(node protocol.NodeID, piece command.Frame) command.Frame {
	was := s.lost[node]
	delete(s.lost, node)
	piece.LostItems += was.items
	piece.LostBytes += was.bytes
	s.seq[node]++
	piece.V, piece.Seq, piece.Node = protocol.Version, s.seq[node], node
	return piece
}

// smallWait is how often is looked whether what is small may go.
const smallWait = 50 * time.Millisecond

// nextSmall returns a piece that goes at once, with what is to be called at its end; without one how long to wait for the next look.
func (l *Live) nextSmall() (id command.ID, piece command.Frame, end func(bool), wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait = time.Hour
	for _, s := range l.streams {
		if s.waiting || len(s.frames) == 0 || size(&s.frames[0].Frame) > mostSmall {
			continue
		}
		if end = l.o.Gate.Small(size(&s.frames[0].Frame)); end == nil {
			return "", command.Frame{}, nil, smallWait
		}
		f := l.pop(s)
		s.waiting = true
		return s.id, s.number(f.node, f.Frame), end, 0
	}
	return "", command.Frame{}, nil, wait
}

// passed says that no piece of a command waits for its turn any more.
func (l *Live) passed(id command.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.find(id); s != nil {
		s.waiting = false
	}
	l.news.Notify()
	l.urgent.Notify()
}

// missed counts a piece that could not be sent.
func (l *Live) missed(id command.ID, f command.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.find(id)
	if s == nil {
		return
	}
	s.seq[f.Node]-- // nothing was sent since
	l.leaveOut(s, frame{f.Node, f})
}

// expire forgets the commands that are not followed any more, and returns when the next lease ends.
func (l *Live) expire() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := time.Hour
	keep := l.streams[:0]
	for _, s := range l.streams {
		left := time.Until(s.until)
		if left <= 0 {
			l.bytes -= s.bytes
			continue
		}
		keep, next = append(keep, s), min(next, left)
	}
	clear(l.streams[len(keep):])
	l.streams = keep
	return next
}
