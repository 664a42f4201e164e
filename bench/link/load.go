package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/bench/link/ledger"
	"github.com/colonyfleet/colony/bench/link/wire"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

const (
	deployment = protocol.DeploymentName("press-control")
	// retryDelay is the wait of a publisher that was refused or not let in.
	retryDelay = 100 * time.Millisecond
	// stuckAfter is how long no publisher may get an answer, of either kind, before publishing fails.
	stuckAfter = 2 * time.Minute
)

// A load is the nodes of a site, each a connection of its own that reports how an
// application comes up and fails in turn, QoS 1, many reports at a time. Each is a
// transition of the deployment, which Colony never leaves out. One that follows a report
// that was refused has the state of the one before that: it is progress, which later
// progress replaces in the journal.
//
// A message that was refused, or whose connection ended before the answer, is
// never sent again: the node's next one has a higher number. So a message that
// arrives twice was doubled on the way.
type load struct {
	addr   string
	site   protocol.SiteID
	topic  func(n int) string
	nodes  int
	window int // messages of a connection that await an answer
	ledger *ledger.Ledger

	sent     []uint32 // the last number of each node
	refused  atomic.Int64
	accepted atomic.Int64 // acknowledged by now, in this publish
}

// node is the name of the n-th publisher.
func node(n int) protocol.NodeID { return protocol.NodeID(fmt.Sprintf("gw-%d", n)) }

// number finds the publisher of a name.
func number(id protocol.NodeID) (int, error) {
	var n int
	if _, err := fmt.Sscanf(string(id), "gw-%d", &n); err != nil {
		return 0, fmt.Errorf("a message of node %q, who is none of the bench", id)
	}
	return n, nil
}

// report is the message with a number. Its size is that of the agent's reports.
func report(n int, seq uint32) []byte {
	m := protocol.DeploymentStatus{
		V: protocol.Version, Node: node(n), Deployment: deployment, Agent: fmt.Sprintf("agent-of-gw-%d", n), Boot: "7a1c0e52-bench",
		Seq: uint64(seq), Position: protocol.Position{Epoch: 1, Generation: 1}, From: lifecycle.Failed, State: lifecycle.Installed, Actor: lifecycle.EN,
		Digest: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", App: "press-control", AppVersion: "1.0.0",
		Attempt: 1, PulledBytes: uint64(seq), TotalBytes: 1 << 30, UnixMillis: time.Now().UnixMilli(),
	}
	if seq%2 == 0 {
		m.From, m.State, m.Code, m.Message = lifecycle.Installed, lifecycle.Failed, protocol.CrashLoop, "exit status 1"
	}
	return protocol.Marshal(&m)
}

// parseReport reads what report wrote.
func parseReport(payload []byte) (n int, seq uint32, err error) {
	var m protocol.DeploymentStatus
	if err := protocol.Unmarshal(payload, &m); err != nil {
		return 0, 0, err
	}
	n, err = number(m.Node)
	return n, uint32(m.Seq), err
}

// publish sends until count messages are acknowledged, with rate messages per
// second in all, 0 for as fast as they are accepted. Each node gets the same part. It
// returns when that is done, with ctx's error, or with one of its own when nothing is
// answered any more.
func (l *load) publish(ctx context.Context, count, rate int) error {
	if l.sent == nil {
		l.sent = make([]uint32, l.nodes)
	}
	l.accepted.Store(0)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for n := range l.nodes {
		quota := count / l.nodes
		if n < count%l.nodes {
			quota++
		}
		p := &publisher{load: l, n: n, quota: quota}
		if rate > 0 {
			p.every = time.Duration(l.nodes) * time.Second / time.Duration(rate)
			p.due = time.Now().Add(p.every * time.Duration(n) / time.Duration(l.nodes))
		}
		wg.Go(func() { p.run(ctx) })
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		wg.Wait()
	}()
	l.watch(done, func() {
		cancel(fmt.Errorf("no publisher had an answer for %s: %d of %d messages are acknowledged", stuckAfter, l.accepted.Load(), count))
	})
	return context.Cause(ctx)
}

// watch calls stuck where nothing is answered any more, and returns when done is closed.
func (l *load) watch(done <-chan struct{}, stuck func()) {
	timer := time.NewTimer(stuckAfter)
	defer timer.Stop()
	for before := l.refused.Load(); ; {
		select {
		case <-done:
			return
		case <-timer.C:
			now := l.accepted.Load() + l.refused.Load()
			if now == before {
				stuck()
				<-done
				return
			}
			before = now
			timer.Reset(stuckAfter)
		}
	}
}

// A publisher is one node.
type publisher struct {
	load  *load
	n     int
	quota int           // acknowledgements still to come
	every time.Duration // between two messages; 0: no wait
	due   time.Time
}

func (p *publisher) run(ctx context.Context) {
	name := fmt.Sprintf("%s.%s", node(p.n), p.load.site)
	for p.quota > 0 && ctx.Err() == nil {
		c, err := wire.Dial(p.load.addr, name, name, false)
		if err == nil {
			p.session(ctx, c)
		}
		if p.quota > 0 {
			_ = retry.Sleep(ctx, retryDelay)
		}
	}
}

// inFlight is what a connection has sent and got no answer for.
type inFlight struct {
	mu     sync.Mutex
	seqs   map[uint16]uint32
	paused time.Time // after a refusal
}

// session publishes on one connection until the quota is reached or it ends.
func (p *publisher) session(ctx context.Context, c *wire.Conn) {
	f := &inFlight{seqs: map[uint16]uint32{}}
	size := min(p.load.window, c.Window)
	room := make(chan struct{}, size) // a token for each message without an answer
	ended := make(chan struct{})
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	open := p.quota // messages that may still be sent
	back := make(chan int, 1)
	go func() {
		defer close(ended)
		back <- p.answers(c, f, room)
	}()
	p.write(c, f, room, ended, open)
	c.Close()
	<-ended
	p.quota -= <-back
}

// write sends up to count messages and then waits for their answers. It returns
// when all are answered or the connection has ended.
func (p *publisher) write(c *wire.Conn, f *inFlight, room chan struct{}, ended <-chan struct{}, count int) {
	at := p.load.topic(p.n)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for range count {
		select {
		case room <- struct{}{}:
		default:
			if c.W.Flush() != nil {
				return
			}
			select {
			case room <- struct{}{}:
			case <-ended:
				return
			}
		}
		f.mu.Lock()
		pause := time.Until(f.paused)
		f.mu.Unlock()
		if p.every > 0 {
			p.due = p.due.Add(p.every)
			pause = max(pause, time.Until(p.due))
		}
		if pause > 0 {
			if c.W.Flush() != nil {
				return
			}
			timer.Reset(pause)
			select {
			case <-timer.C:
			case <-ended:
				return
			}
		}
		p.load.sent[p.n]++
		seq := p.load.sent[p.n]
		id := uint16(seq%0xffff) + 1
		f.mu.Lock()
		f.seqs[id] = seq
		f.mu.Unlock()
		if c.Publish(at, id, report(p.n, seq)) != nil {
			return
		}
	}
	if c.W.Flush() != nil {
		return
	}
	for range cap(room) { // full of ours: every message is answered
		select {
		case room <- struct{}{}:
		case <-ended:
			return
		}
	}
}

// answers reads until the connection ends and returns how many were accepted.
func (p *publisher) answers(c *wire.Conn, f *inFlight, room <-chan struct{}) (accepted int) {
	for {
		first, body, err := c.Receive()
		if err != nil || first>>4 == wire.PacketDisconnect {
			return accepted
		}
		if first>>4 != wire.PacketPuback || len(body) < 2 {
			continue
		}
		id := uint16(body[0])<<8 | uint16(body[1])
		f.mu.Lock()
		seq, ok := f.seqs[id]
		delete(f.seqs, id)
		refused := len(body) > 2 && body[2] >= 0x80
		if refused {
			f.paused = time.Now().Add(retryDelay)
		}
		f.mu.Unlock()
		if !ok {
			continue
		}
		if refused {
			p.load.refused.Add(1)
		} else {
			accepted++
			p.load.ledger.Accept(p.n, seq)
			p.load.accepted.Add(1)
		}
		<-room
	}
}
