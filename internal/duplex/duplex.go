// Package duplex is one of the two ends of a session. It sends records, and receives those of the other end, by messages that may get lost; all
// records arrive, in their order. Package protocol/session decides what is sent; duplex holds the data and the waiting goroutines.
package duplex

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/session"
)

const (
	// ackDelay is how long an acknowledgement waits for something to go with: as a rule a terminal shows what was typed before.
	ackDelay = 20 * time.Millisecond
	// KeepAlive is how often an end says that it is there, where it has nothing else to say.
	KeepAlive = 5 * time.Second
)

// A batch is records that arrived together, and where they end.
type batch struct {
	records []command.Record
	end     uint64
}

// A Peer is one end. Its methods may be called concurrently; one goroutine calls Send, another one Serve.
type Peer struct {
	news notify.Signal // there may be something to send
	room notify.Signal // there is room for more to write
	work notify.Signal // something has arrived

	writing sync.Mutex // held while a record is written; taken before mu

	mu      sync.Mutex // protects what follows
	out     session.Sender
	in      session.Receiver
	decoder session.Decoder
	done    uint64 // up to where of what arrived everything was done: that is acknowledged
	todo    []batch
	ackAt   time.Time // when to acknowledge; zero: nothing is to be
	heard   time.Time
	closed  bool // nothing more is written
}

// New returns an end.
func New() *Peer {
	return &Peer{news: notify.New(), room: notify.New(), work: notify.New(), heard: time.Now()}
}

// Write writes a record; one whose data is longer than a record may have goes as several. It waits for room until ctx ends: the rest of what has begun is
// lost then, and nothing may be written after it.
func (p *Peer) Write(ctx context.Context, r *command.Record) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	for rest := r.Data; ; {
		piece := *r
		piece.Data = rest[:min(len(rest), command.MaxRecord)]
		if err := p.write(ctx, protocol.Marshal(&piece)); err != nil {
			return err
		}
		if rest = rest[len(piece.Data):]; len(rest) == 0 {
			return nil
		}
	}
}

// write writes bytes of the direction. The caller holds writing.
func (p *Peer) write(ctx context.Context, b []byte) error {
	for {
		p.mu.Lock()
		b = b[p.out.Write(b):]
		p.mu.Unlock()
		p.news.Notify()
		if len(b) == 0 {
			return nil
		}
		if err := p.room.Wait(ctx); err != nil {
			return err
		}
	}
}

// Close says that nothing more is written: Send returns once all has arrived, and nothing that arrives then is acknowledged.
func (p *Peer) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.news.Notify()
}

// Heard returns when the other end was heard last, or when this one was made.
func (p *Peer) Heard() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard
}

// Accept takes a segment of the other end. It does not wait. After an error the direction cannot be read any more.
func (p *Peer) Accept(m *command.Segment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.heard = now
	if p.out.Acked(m.Ack, now) {
		p.room.Notify()
		p.news.Notify()
	}
	if len(m.Data) == 0 || m.Offset+uint64(len(m.Data)) > p.done+session.Window {
		return nil // the other end keeps to the window
	}
	fresh := p.in.Accept(m.Offset, m.Data)
	if fresh == nil { // it came twice, as its acknowledgement was lost, or what precedes it is missing
		p.ack(now)
		return nil
	}
	list, err := p.decoder.Add(fresh)
	p.todo = append(p.todo, batch{list, p.in.Next()})
	p.work.Notify()
	if err != nil {
		return fmt.Errorf("what the other end of the session has sent: %w", err)
	}
	return nil
}

// ack has something acknowledged soon. The caller holds mu.
func (p *Peer) ack(now time.Time) {
	if p.ackAt.IsZero() {
		p.ackAt = now.Add(ackDelay)
		p.news.Notify()
	}
}

// Serve has do called with what arrives, in its order, until ctx ends or do fails. What do waits for is not acknowledged: the other end
// waits, too.
func (p *Peer) Serve(ctx context.Context, do func(list []command.Record) error) error {
	for {
		p.mu.Lock()
		var next batch
		ok := len(p.todo) > 0
		if ok {
			next, p.todo = p.todo[0], p.todo[1:]
		}
		p.mu.Unlock()
		if !ok {
			if err := p.work.Wait(ctx); err != nil {
				return err
			}
			continue
		}
		if len(next.records) > 0 {
			if err := do(next.records); err != nil {
				return err
			}
		}
		p.mu.Lock()
		p.done = next.end
		p.ack(time.Now())
		p.mu.Unlock()
	}
}

// next returns the segment to send now, if there is one, or how long to wait; over says that all has arrived.
func (p *Peer) next(now, last time.Time) (m *command.Segment, wait time.Duration, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	offset, data := p.out.Next(now, command.MaxSegment)
	wait = KeepAlive - now.Sub(last)
	if !p.ackAt.IsZero() {
		wait = min(wait, p.ackAt.Sub(now))
	}
	if data != nil || wait <= 0 {
		p.ackAt = time.Time{}
		return &command.Segment{V: protocol.Version, Offset: offset, Data: bytes.Clone(data), Ack: p.done}, 0, false
	}
	if at, under := p.out.Due(); under {
		wait = min(wait, max(at.Sub(now), time.Millisecond))
	}
	return nil, wait, p.closed && p.out.Empty()
}

// Send has emit called with each segment, until all has arrived after Close, emit fails, or ctx ends. A segment that emit loses is
// sent again.
func (p *Peer) Send(ctx context.Context, emit func(m *command.Segment) error) error {
	last := time.Now()
	for {
		now := time.Now()
		m, wait, over := p.next(now, last)
		switch {
		case m != nil:
			last = now
			if err := emit(m); err != nil {
				return err
			}
		case over:
			return nil
		default:
			if _, err := retry.SleepOr(ctx, wait, p.news.C()); err != nil {
				return err
			}
		}
	}
}
