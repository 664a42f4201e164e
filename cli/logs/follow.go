package logs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/co/api/commands/logstream"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

const (
	// overlap is how much older than the last sign of a stream the lines may be that the next stream begins with: as long as lines are on their way
	// over a slow link, and some more. What was printed before is left out.
	overlap = 15 * time.Second
	// firstAway and lastAway bound the wait until a node is asked again that went away while others go on.
	firstAway, lastAway = 10 * time.Second, 5 * time.Minute
)

// An output is a stream of a container on a node.
type output struct {
	node                         protocol.NodeID
	component, container, stream string
}

// A reached is up to where the lines of an output were printed: a number in a run of its container.
type reached struct {
	run    uint32
	number uint64
	stale  bool // nothing came since the stream was opened again
}

// A follower follows logs over connections that break.
type follower struct {
	p       *printer
	flags   *flags
	last    map[output]reached
	counted map[output]uint64        // lines in gaps since the stream was opened again; they are of no stream
	away    map[protocol.NodeID]bool // nodes that are asked again
	began   bool
	heard   time.Time // the last event
	wait    retry.Backoff
	missed  retry.Backoff // of nodes that are away while others go on
	broken  bool          // a break was reported, and not its end
}

func newFollower(p *printer, f *flags) *follower {
	w := &follower{
		p: p, flags: f, last: map[output]reached{}, counted: map[output]uint64{}, away: map[protocol.NodeID]bool{},
		wait:   retry.Backoff{Policy: retry.Policy{Min: time.Second, Max: 15 * time.Second, Jitter: 0.2}},
		missed: retry.Backoff{Policy: retry.Policy{Min: firstAway, Max: lastAway}},
	}
	p.follower = w
	return w
}

// follow prints what comes until ctx ends, or nothing more will come.
func (w *follower) follow(ctx context.Context, c *client.Client, path string) error {
	for {
		began := time.Now()
		err := w.stream(ctx, c, path+w.query())
		switch {
		case ctx.Err() != nil:
			return nil
		case w.p.fault != nil:
			return w.p.fault
		case w.p.complete() && len(w.away) == 0:
			return w.p.whole()
		case err != nil && (!w.began || client.Final(err, true)):
			return err
		case err == nil || errors.Is(err, context.Canceled): // each node that is open ended, or one that is away is asked again
			err = errors.New("nodes ended what they sent")
		}
		if time.Since(began) > w.wait.Max {
			w.wait.Reset() // it was no stream that comes and goes
		}
		if !w.broken {
			w.broken = true
			fmt.Fprintf(w.p.env.Err, "the stream broke (%v): connecting again\n", err)
		}
		if w.wait.Wait(ctx) != nil {
			return nil
		}
	}
}

// stream reads one stream. It ends it where a node that went away is to be asked again.
func (w *follower) stream(ctx context.Context, c *client.Client, path string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var due *time.Timer
	defer func() {
		if due != nil {
			due.Stop()
		}
	}()
	return c.Once(ctx, path, func(e client.ServerEvent) (bool, error) {
		more, err := w.p.event(e)
		w.heard = time.Now()
		if len(w.away) > 0 && due == nil {
			due = time.AfterFunc(w.missed.Next(), cancel)
		}
		return more, err
	})
}

// query is what the next stream is asked for: after the first one what came since the last event, and a while before.
func (w *follower) query() string {
	q := w.flags.query()
	if w.began {
		q.Del("tail")
		q.Set("since", (time.Since(w.heard) + overlap).Truncate(time.Millisecond).String())
		q.Set("resumed", "true")
	}
	return q.Encode()
}

// begin says that a stream was opened.
func (w *follower) begin() {
	if w.broken {
		fmt.Fprintln(w.p.env.Err, "connected again")
	}
	w.began, w.broken = true, false
	for n := range w.away {
		if w.p.open[n] {
			delete(w.away, n)
			w.missed.Reset()
		}
	}
	clear(w.counted)
	for at, r := range w.last {
		r.stale = true
		w.last[at] = r
	}
}

// line reports whether a line was printed before, or what is missing before it for no reason that a gap gave.
func (w *follower) line(l *logstream.Line) (missing logstream.Gap, known bool) {
	if l.Number == 0 { // the agent does not number lines: what was printed may come once more
		return missing, false
	}
	at := output{l.Node, l.Component, l.Container, l.Stream}
	r, same := w.last[at]
	if same = same && r.run == l.Run; same && l.Number <= r.number {
		r.stale = false
		w.last[at] = r
		return missing, true
	}
	if between := l.Number - r.number - 1; same && r.stale && w.flags.grep == "" {
		whole := output{node: l.Node, component: l.Component, container: l.Container}
		if gaps := w.counted[whole]; between > gaps {
			missing = logstream.Gap{Node: l.Node, Component: l.Component, Container: l.Container, Lines: between - gaps}
		}
	}
	w.last[at] = reached{run: l.Run, number: l.Number}
	return missing, false
}

// gap takes note of what is known to be missing.
func (w *follower) gap(g logstream.Gap) {
	w.counted[output{node: g.Node, component: g.Component, container: g.Container}] += g.Lines
}

// end reports whether a node that ended is asked again: its agent, its link or the CO ended, and not the log. It does where the node was being followed.
func (w *follower) end(e logstream.End, open bool) bool {
	passing := e.State == string(wire.Unknown) || e.Code == wire.Interrupted || e.Code == wire.NotFollowed || e.Code == wire.NodeAway
	if !passing || !open && !w.away[e.Node] {
		return false
	}
	if !w.away[e.Node] {
		fmt.Fprintf(w.p.env.Err, "%s; it is asked again\n", e)
	}
	w.away[e.Node] = true
	return true
}
