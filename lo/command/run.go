package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/lo/command/members"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/topic"
)

// patience is how long the LO waits after a disk, a journal or a broker that failed.
const patience = time.Second

// errNoNodeYet says that nodes which a command means may come soon: the LO has just started, and may have lost what it knew.
var errNoNodeYet = errors.New("nodes that it means are not known yet")

// Run does what is due until ctx ends.
func (s *Service) Run(ctx context.Context) {
	for ctx.Err() == nil {
		next := s.turn(ctx)
		_, _ = retry.SleepOr(ctx, next, s.due.C()) // its end ends the loop, too
	}
}

// turn does what is due now, and returns when something may be due next.
func (s *Service) turn(ctx context.Context) time.Duration {
	most := time.Hour
	var unresolved []offer
	for ctx.Err() == nil {
		one, ok := s.next()
		if !ok {
			break
		}
		err := s.handle(ctx, one)
		if errors.Is(err, errNoNodeYet) {
			unresolved = append(unresolved, one)
			most = patience
			continue
		}
		if err != nil {
			s.log.WarnContext(ctx, "command not handled yet, trying again", "command_id", string(one.id), "err", err)
			s.later(append(unresolved, one)...)
			return patience
		}
	}
	s.later(unresolved...)
	timed := s.o.Timed != nil && s.o.Timed()
	s.mu.Lock()
	s.site.Timed = timed
	d := s.site.Decide(s.o.SinceBoot())
	learnt := s.learnt && s.o.Learnt != nil
	answer, _ := s.site.Clock.Answer(s.o.Boot)
	s.learnt = false
	s.mu.Unlock()
	if learnt {
		s.o.Learnt(answer)
	}
	next := min(d.Next, most)
	if d.Ask {
		next = min(next, s.ask(ctx))
	}
	if err := s.perform(ctx, d); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "commands not followed up yet, trying again", "err", err)
		return patience
	}
	return next
}

// next returns the command that arrived first.
func (s *Service) next() (o offer, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.offers) == 0 {
		return offer{}, false
	}
	o = s.offers[0]
	s.offers = s.offers[1:]
	return o, true
}

// later has commands looked at once more, unless a later message about them has arrived.
func (s *Service) later(list ...offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	arrived := s.offers
	list = slices.DeleteFunc(list, func(o offer) bool {
		return slices.ContainsFunc(arrived, func(have offer) bool { return have.id == o.id })
	})
	s.offers = append(list, arrived...)
}

// handle accepts a command, or cancels it. An error means that the message is to be looked at again.
func (s *Service) handle(ctx context.Context, o offer) error {
	s.mu.Lock()
	if len(o.payload) == 0 {
		if s.site.Cancel(o.id) {
			s.log.InfoContext(ctx, "command is cancelled", "command_id", string(o.id))
		}
		s.mu.Unlock()
		return nil
	}
	c, _, err := s.reader.Read(o.payload)
	held, ended := false, false
	var record members.Record
	if err == nil {
		if held, ended = s.site.Holds(c.ID); held {
			record = s.site.Record(c.ID)
		}
	}
	_, open := s.site.Count()
	s.mu.Unlock()
	switch {
	case err != nil:
		return s.refuse(ctx, o.id, wire.BadSignature, err.Error())
	case c.ID != o.id:
		return s.refuse(ctx, o.id, wire.BadSignature, string(sign.Mismatch)+": what is signed is command "+string(c.ID))
	case held:
		if err := s.reportReceived(ctx, record.Received()); err != nil || !ended {
			return err
		}
		s.mu.Lock()
		s.site.Resend(c.ID)
		s.mu.Unlock()
		return nil
	case open >= members.MaxOpen:
		return s.refuse(ctx, o.id, wire.Busy, fmt.Sprintf("the site has %d commands that have not ended, which is the limit: cancel some, or ask again when they have", open))
	}
	return s.accept(ctx, c, o.payload)
}

func (s *Service) refuse(ctx context.Context, id wire.ID, code wire.Code, message string) error {
	s.metrics.refused.WithLabelValues(code.Label()).Inc()
	s.log.WarnContext(ctx, "command refused", "command_id", string(id), "code", string(code), "message", message)
	return s.reportReceived(ctx, wire.Received{V: protocol.Version, ID: id, Code: code, Message: message})
}

// accept writes down a command that is new, and reports it.
func (s *Service) accept(ctx context.Context, c *wire.Command, envelope []byte) error {
	record, unknown := members.Resolve(c, envelope, s.o.Nodes())
	if (record.Code != "" || len(unknown) > 0) && time.Since(s.began) < s.o.Settle {
		return errNoNodeYet
	}
	if err := s.o.Store.Create(&record); err != nil {
		if disk.IsFull(err) {
			return s.refuse(ctx, c.ID, wire.ExecutionFailed, "the disk of the site's local orchestrator is full")
		}
		return err
	}
	s.mu.Lock()
	full := s.site.Crowded(record.Nodes)
	s.site.Add(record, s.o.SinceBoot())
	s.mu.Unlock()
	s.log.InfoContext(ctx, "command received", "command_id", string(c.ID), "kind", string(c.Kind), "nodes", len(record.Nodes), "code", string(record.Code), "actor", c.Actor)
	if err := s.reportReceived(ctx, record.Received()); err != nil { // it is received anew
		if err := s.o.Store.Remove(c.ID); err != nil {
			return err
		}
		s.mu.Lock()
		s.site.Forget(c.ID)
		s.mu.Unlock()
		return err
	}
	var ended []wire.Result
	for _, n := range unknown {
		ended = append(ended, members.Unknown(c.ID, n))
	}
	for _, n := range full {
		if !slices.Contains(unknown, n) {
			ended = append(ended, members.Busy(c.ID, n))
		}
	}
	return s.write(ctx, ended...)
}

// ask asks the CO for its time, not too often, and returns when to ask again.
func (s *Service) ask(ctx context.Context) time.Duration {
	s.mu.Lock()
	now := s.o.SinceBoot()
	if !s.up {
		s.mu.Unlock()
		return time.Hour // the link wakes the loop
	}
	if now < s.askAt {
		defer s.mu.Unlock()
		return s.askAt - now
	}
	wait := s.asks.Next()
	s.askAt = now + wait
	m := s.site.Clock.Ask(nonce(s.o.Random), now)
	s.mu.Unlock()
	if err := s.o.Send(ctx, topic.ForSite(topic.SiteTimeAsk, s.o.Site), protocol.Marshal(&m)); err != nil {
		s.log.DebugContext(ctx, "time of the co not asked for", "err", err)
	}
	return wait
}

// perform does what was decided.
func (s *Service) perform(ctx context.Context, d members.Decision) error {
	for i, p := range d.Publish {
		name := topic.ForNodeCommand(topic.NodeCommand, s.o.Site, p.Node, string(p.ID))
		if err := s.o.Publish(ctx, name, p.Envelope, true); err != nil {
			s.undone(d, i)
			return err
		}
	}
	if err := s.executeAll(ctx, d.Execute); err != nil {
		s.undone(d, len(d.Publish))
		return err
	}
	if len(d.End) > 0 {
		if err := s.write(ctx, d.End...); err != nil {
			s.undone(d, len(d.Publish))
			return err
		}
	}
	if err := s.resend(ctx, d.Again); err != nil {
		s.undone(d, len(d.Publish))
		return err
	}
	for _, id := range d.Forget {
		if err := s.o.Store.Remove(id); err != nil {
			return err
		}
		s.mu.Lock()
		s.site.Forget(id)
		s.mu.Unlock()
	}
	return nil
}

// executeAll carries out what is for the LO itself, up to the first that is to be tried again.
func (s *Service) executeAll(ctx context.Context, list []members.Execution) error {
	var results []wire.Result
	var failed error
	for _, x := range list {
		r, err := s.execute(ctx, x)
		if failed = err; err != nil {
			break
		}
		results = append(results, r)
	}
	if len(results) > 0 {
		return errors.Join(s.write(ctx, results...), failed)
	}
	return failed
}

// execute carries a command out that is for the LO itself. An error means that it is to be tried again.
func (s *Service) execute(ctx context.Context, x members.Execution) (wire.Result, error) {
	r := wire.Result{V: protocol.Version, ID: x.ID, Node: x.Node}
	s.mu.Lock()
	c, _, err := s.reader.Read(x.Envelope) // its signing key may be revoked by now
	s.mu.Unlock()
	if err != nil {
		r.State, r.Code, r.Message = wire.Refused, wire.BadSignature, err.Error()
		return r, nil
	}
	if err := wire.Arguments(c.Kind, c.Args); err != nil {
		r.State, r.Code, r.Message = wire.Refused, wire.BadArguments, err.Error()
		return r, nil
	}
	said, err := s.o.Execute(ctx, c, x.Node)
	switch {
	case protocol.KindOf(err) == protocol.NotFound:
		r.State, r.Code, r.Message = wire.Failed, wire.NoNode, err.Error()
	case err != nil:
		return r, fmt.Errorf("carry out command %s for node %s: %w", c, x.Node, err)
	default:
		r.State, r.Output = wire.Done, said
	}
	return r, nil
}

// undone says that of a decision only the first publications were carried out.
func (s *Service) undone(d members.Decision, published int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range d.Publish[published:] {
		s.site.Unpublished(p)
	}
	for _, r := range d.Again {
		s.site.Resend(r.ID)
	}
}

// resend reports results once more.
func (s *Service) resend(ctx context.Context, list []members.Reported) error {
	for len(list) > 0 {
		id, n := list[0].ID, 0
		var at []members.Where
		for ; n < len(list) && list[n].ID == id; n++ {
			at = append(at, list[n].Where)
		}
		list = list[n:]
		results, err := s.o.Store.Read(id, at)
		if err != nil { // those that can be read are reported
			s.log.ErrorContext(ctx, "results of a command cannot be read again", "command_id", string(id), "err", err)
		}
		if err := s.report(ctx, results); err != nil {
			return err
		}
	}
	return nil
}
