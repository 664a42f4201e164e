package journaldb

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// groupsAtOnce bounds the transactions that commit events at once; it leaves
	// connections to other work. While all are busy, batches wait and gather.
	groupsAtOnce = 3
	// groupSites and groupEvents bound what one transaction commits. A batch of more
	// events than that has one of its own.
	groupSites  = 128
	groupEvents = 4000
	// groupTimeout bounds one transaction, without the wait for its turn.
	groupTimeout = 30 * time.Second
)

// A request is the batch of a site that is to be committed.
type request struct {
	site   protocol.SiteID
	batch  protocol.Batch
	events []protocol.Event

	turn chan struct{} // closed when the caller is to lead, or the outcome is there
	lead bool          // set before turn is closed, as is what follows
	err  error
	ack  protocol.Ack
	left bool // the group was given up because its leader's context ended
}

// A group gathers the batches of many sites that wait at the same time, so that they
// share a transaction. One of the callers leads it: there are no goroutines.
type group struct {
	mu      sync.Mutex
	waiting []*request
	leaders int
}

// do has a batch committed, with others or by itself, and returns what commit makes of
// it. commit sets the ack of each request; it is called with one batch of a site at
// most, and again for each by itself where a group fails for a reason that may lie in
// one of them.
func (g *group) do(ctx context.Context, r *request, commit func(context.Context, []*request) error) (protocol.Ack, error) {
	for {
		r.turn, r.lead, r.left, r.err = make(chan struct{}), false, false, nil
		g.enter(r)
		select {
		case <-r.turn:
		case <-ctx.Done():
			if g.withdraw(r) {
				return protocol.Ack{}, protocol.Errorf(protocol.Unavailable, "commit events of site %s: others are not committed yet: %w", r.site, context.Cause(ctx))
			}
			<-r.turn
		}
		if r.lead {
			g.run(ctx, r, commit)
		}
		if !r.left || ctx.Err() != nil {
			return r.ack, r.err
		}
	}
}

// enter queues a batch, or makes its caller lead at once.
func (g *group) enter(r *request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leaders < groupsAtOnce && len(g.waiting) == 0 {
		g.leaders++
		r.lead = true
		close(r.turn)
		return
	}
	g.waiting = append(g.waiting, r)
}

// withdraw takes a batch out of the queue, and reports whether it was still there.
func (g *group) withdraw(r *request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.waiting {
		if g.waiting[i] == r {
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// gather adds to the batch of a leader those that wait and fit, the longest waiting
// first, one of each site.
func (g *group) gather(first *request) []*request {
	g.mu.Lock()
	defer g.mu.Unlock()
	list, events := []*request{first}, len(first.events)
	sites := map[protocol.SiteID]bool{first.site: true}
	rest := g.waiting[:0]
	for _, r := range g.waiting {
		if len(list) < groupSites && events+len(r.events) <= groupEvents && !sites[r.site] {
			list, events = append(list, r), events+len(r.events)
			sites[r.site] = true
			continue
		}
		rest = append(rest, r)
	}
	clear(g.waiting[len(rest):])
	g.waiting = rest
	return list
}

// run commits a group, reports the outcome to the others, and hands the lead on.
func (g *group) run(ctx context.Context, leader *request, commit func(context.Context, []*request) error) {
	list := g.gather(leader)
	each(ctx, list, commit)
	for _, r := range list {
		if r != leader {
			close(r.turn)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.leaders--
		return
	}
	next := g.waiting[0]
	g.waiting = g.waiting[1:]
	next.lead = true
	close(next.turn)
}

// each commits a group, or where that fails for a reason that may lie in one batch,
// each by itself.
func each(ctx context.Context, list []*request, commit func(context.Context, []*request) error) {
	within, cancel := context.WithTimeoutCause(ctx, groupTimeout, fmt.Errorf("not committed within %s", groupTimeout))
	defer cancel()
	err := commit(within, list)
	if err != nil && len(list) > 1 && ctx.Err() == nil && protocol.KindOf(err) != protocol.Unavailable {
		for _, r := range list {
			each(ctx, []*request{r}, commit)
		}
		return
	}
	for _, r := range list {
		r.err, r.left = err, err != nil && ctx.Err() != nil
	}
}
