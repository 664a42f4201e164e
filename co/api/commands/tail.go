package commandsapi

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/commands/logstream"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// begin waits until a node has begun to send, so that where none does the answer says why.
func (t *tail) begin(ctx context.Context) error {
	late := time.NewTimer(t.api.o.AnswerWait)
	defer late.Stop()
	ticker := time.NewTicker(firstLook)
	defer ticker.Stop()
	for {
		if err := t.look(ctx); err != nil && protocol.KindOf(err) != protocol.Unavailable {
			return err
		}
		if t.heard() {
			return nil
		}
		if err := t.refused(); err != nil {
			return err
		}
		if err := t.noneThere(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.api.over():
			return protocol.Errorf(protocol.Unavailable, "the CO stops")
		case <-t.reader.C():
			return nil
		case <-ticker.C:
		case <-late.C:
			return problem.WithStatus(http.StatusGatewayTimeout, fmt.Sprintf("no node answered within %s: a node may have disconnected just now, the link to site %s may be slow, or its LO of a release without commands; "+
				"colony site show %s shows the link, colony command show %s what is known", t.api.o.AnswerWait, t.site, t.site, t.id))
		}
	}
}

// noneThere returns that none of the nodes is online any more; nil: one is, or it is not known.
func (t *tail) noneThere(ctx context.Context) error {
	ids := slices.Sorted(maps.Keys(t.nodes))
	absent, err := t.api.o.Store.Away(ctx, t.site, ids)
	if err != nil || len(absent) < len(ids) {
		return nil // nothing to say: nodes are waited for
	}
	at := absent[ids[0]]
	if len(ids) > 1 {
		return protocol.Errorf(protocol.Unavailable, "none of the %d nodes that were asked is online any more; %s is offline%s", len(ids), ids[0], since(&at))
	}
	return protocol.Errorf(protocol.Unavailable, "node %s/%s is offline%s: try again once it is back", t.site, ids[0], since(&at))
}

// heard reports whether a node has begun.
func (t *tail) heard() bool {
	for _, s := range t.nodes {
		if s.heard {
			return true
		}
	}
	return false
}

// refused returns why no node will begin; nil: one may.
func (t *tail) refused() error {
	var first *fleet.CommandResult
	for _, s := range t.nodes {
		if s.result == nil {
			return nil
		}
		if first == nil || s.result.Node < first.Node {
			first = s.result
		}
	}
	if first == nil {
		return nil
	}
	if first.State == command.Done {
		return nil // it had nothing to send
	}
	text := said(first)
	if first.Code == command.NoSuchSubject {
		text += t.elsewhere
	}
	return protocol.Errorf(kindOf(first), "node %s/%s: %s", t.site, first.Node, text)
}

// kindOf is of which kind the error is that a node did not do what was asked.
func kindOf(r *fleet.CommandResult) protocol.Kind {
	switch {
	case r.Code == command.NoSuchSubject:
		return protocol.NotFound
	case r.Code == command.Forbidden:
		return protocol.Denied
	case r.Code == command.Busy, r.State == command.Expired:
		return protocol.Unavailable
	}
	return protocol.Conflict
}

// said is a result in a few words.
func said(r *fleet.CommandResult) string {
	text := string(r.State)
	if r.Code != "" {
		text += " (" + string(r.Code) + ")"
	}
	if r.Message != "" {
		text += ": " + r.Message
	}
	return text
}

// look reads what nodes reported: the state of the command first, since results may come between the two.
func (t *tail) look(ctx context.Context) error {
	c, err := t.api.o.Store.Command(ctx, t.id, access.SitesOf(ctx))
	if err != nil {
		return err
	}
	for page := (fleet.Page{Limit: fleet.MaxLimit}); ; {
		list, next, err := t.api.o.Store.Results(ctx, t.id, fleet.ResultFilter{}, page)
		if err != nil {
			return err
		}
		for i := range list {
			t.heed(&list[i])
		}
		if page.Cursor = next; next == "" {
			break
		}
	}
	if len(c.Sites) == 1 && !fleet.CommandOpen(c.Sites[0].State) {
		t.endedAtSite(&c.Sites[0])
	}
	return nil
}

// heed takes up what a node reported.
func (t *tail) heed(r *fleet.CommandResult) {
	s := t.nodes[r.Node]
	if s == nil || s.result != nil {
		return
	}
	s.heard = s.heard || r.State == command.Running || r.State == command.Done
	if r.State.Ended() {
		s.result, s.due = r, time.Now().Add(endWait)
	}
}

// endedAtSite ends the nodes that have reported nothing, as the command has ended at their site.
func (t *tail) endedAtSite(at *fleet.CommandSite) {
	message := at.Message
	if message == "" {
		message = "the site has ended it"
	}
	for id, s := range t.nodes {
		if s.result == nil {
			s.result, s.due = &fleet.CommandResult{Site: t.site, Node: id, State: command.Refused, Code: at.Code, Message: message}, time.Now().Add(endWait)
		}
	}
}

// run sends what comes, until each node has ended or the client leaves.
func (t *tail) run(ctx context.Context) error {
	if err := t.out.Begin(logstream.Begin{Command: t.id, Site: t.site, Nodes: slices.Sorted(maps.Keys(t.nodes))}); err != nil {
		return err
	}
	for _, e := range t.away {
		if err := t.out.End(e); err != nil {
			return err
		}
	}
	idle, ticker, away := time.NewTicker(beat), time.NewTicker(laterLook), time.NewTicker(awayLook)
	defer idle.Stop()
	defer ticker.Stop()
	defer away.Stop()
	for {
		if err := t.drain(ctx); err != nil || t.open == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.api.over():
			return t.endAll("the CO stops: ask again")
		case <-t.reader.C():
		case <-idle.C:
			if err := t.out.Beat(); err != nil {
				return err
			}
		case <-away.C:
			if err := t.lookAway(ctx); err != nil {
				return err
			}
		case <-ticker.C:
			if err := t.settle(ctx); err != nil {
				return err
			}
		}
	}
}

// drain sends the frames that wait.
func (t *tail) drain(ctx context.Context) error {
	for ctx.Err() == nil {
		f, ok := t.reader.Next()
		if !ok {
			return t.out.Flush()
		}
		s := t.nodes[f.Node]
		if s == nil || s.ended {
			continue // it was not asked
		}
		s.heard = true
		if err := t.out.Frame(f); err != nil {
			return err
		}
		if f.End {
			if err := t.end(f.Node, logstream.End{Node: f.Node, State: stateOf(f), Code: f.Code, Message: f.Message}); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// stateOf is what the last frame of a node says of its end.
func stateOf(f command.Frame) string {
	if f.Code == "" {
		return string(command.Done)
	}
	return string(command.Failed)
}

// settle ends the nodes whose results came, and whose last frame did not.
func (t *tail) settle(ctx context.Context) error {
	if err := t.look(ctx); err != nil {
		return nil // the database is away; the lines still come
	}
	for id, s := range t.nodes {
		if s.ended || s.result == nil || time.Now().Before(s.due) {
			continue
		}
		if err := t.end(id, logstream.End{Node: id, State: string(s.result.State), Code: s.result.Code, Message: s.result.Message}); err != nil {
			return err
		}
	}
	return nil
}

// lookAway ends the nodes that have been away for longer than they would go on sending.
func (t *tail) lookAway(ctx context.Context) error {
	const lease = command.LeaseMillis * time.Millisecond
	site, err := t.api.o.Fleet.Site(ctx, t.site)
	if err != nil {
		return nil // the database is away; the lines still come
	}
	if !site.Online {
		if site.OnlineSince == nil || time.Since(*site.OnlineSince) > lease {
			return t.endAll("site " + string(t.site) + " is offline" + since(site.OnlineSince))
		}
		return nil
	}
	var open []protocol.NodeID
	for id, s := range t.nodes {
		if !s.ended {
			open = append(open, id)
		}
	}
	absent, err := t.api.o.Store.Away(ctx, t.site, open)
	if err != nil {
		return nil // as above
	}
	for id, at := range absent {
		if !at.IsZero() && time.Since(at) <= lease {
			continue
		}
		if err := t.end(id, logstream.End{Node: id, State: string(command.Unknown), Code: command.NodeAway, Message: "the node is offline" + since(&at)}); err != nil {
			return err
		}
	}
	return nil
}

func (t *tail) endAll(why string) error {
	for id, s := range t.nodes {
		if s.ended {
			continue
		}
		if err := t.end(id, logstream.End{Node: id, State: string(command.Unknown), Message: why}); err != nil {
			return err
		}
	}
	return nil
}

func (t *tail) end(id protocol.NodeID, e logstream.End) error {
	t.nodes[id].ended = true
	t.open--
	switch e.Code {
	case command.NoSuchSubject:
		e.Message += t.elsewhere
	case command.Interrupted:
		e.Message = "the agent ended while it sent: ask again, for what was missed with since"
	}
	if err := t.out.End(e); err != nil {
		return err
	}
	return t.out.Flush()
}
