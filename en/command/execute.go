package command

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/command/once"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// begin saves that a command begins, and executes it. It reports false where it could not be saved: the command waits on then. The caller
// holds s.saving.
func (s *Service) begin(ctx context.Context, b once.Beginning, work *sync.WaitGroup) bool {
	if err := s.o.Store.Save(nil, b.Entry); err != nil {
		s.log.WarnContext(ctx, "command not begun: its id could not be written down, trying again", "command_id", string(b.Command.ID), "err", err)
		s.mu.Lock()
		s.ledger.NotBegun(b, s.o.SinceBoot())
		s.mu.Unlock()
		return false
	}
	s.log.InfoContext(ctx, "command begins", "command_id", string(b.Command.ID), "kind", string(b.Command.Kind), "actor", b.Command.Actor)
	work.Go(func() { s.execute(ctx, b.Command) })
	return true
}

// execute executes a command and takes its result.
func (s *Service) execute(ctx context.Context, c *wire.Command) {
	kind := s.kinds[c.Kind]
	r := wire.Result{V: protocol.Version, ID: c.ID, Node: s.o.Node, State: wire.Running}
	began := time.Now()
	limit := wire.LimitOf(c.Kind)
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	live, done := s.openLive(bounded, c) // before the report, which the LO answers with the credit that there is
	if err := s.o.Uplink.Result(ctx, r); err != nil {
		s.log.DebugContext(ctx, "begin of a command not reported", "command_id", string(c.ID), "err", err)
	}
	request := Request{Command: c}
	if live != nil {
		request.Live = live
	}
	output, err := run(live.within(bounded), kind, request)
	outcome(live.within(bounded), &r, limit, output, err)
	r.DurationMillis = uint64(time.Since(began).Milliseconds())
	done(&r)
	if repeatable(c.Kind) && r.Code == wire.Interrupted {
		return // it is executed again after the start of the agent
	}
	s.ended(ctx, c, r)
}

// repeatable reports whether a command of that kind is executed again after the agent was stopped.
func repeatable(kind wire.Kind) bool {
	d, err := wire.Lookup(kind)
	return err == nil && d.Repeatable && !d.Live
}

// run executes a command. A panic of its kind ends the command, and not the agent.
func run(ctx context.Context, kind Kind, r Request) (output string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the agent has a fault in commands of this kind: %v\n%s", p, debug.Stack())
		}
	}()
	return kind.Run(ctx, r)
}

// ended saves the result of a command.
func (s *Service) ended(ctx context.Context, c *wire.Command, r wire.Result) {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	e := s.ledger.Ended(r)
	s.totals.Results[r.State]++
	s.mu.Unlock()
	s.log.InfoContext(ctx, "command ended", "command_id", string(c.ID), "kind", string(c.Kind), "state", string(r.State), "code", string(r.Code), "message", r.Message)
	if err := s.o.Store.Save(nil, e); err != nil {
		s.log.WarnContext(ctx, "result of a command not saved yet", "command_id", string(c.ID), "err", err)
		s.mu.Lock()
		s.unsaved = append(s.unsaved, e)
		s.mu.Unlock()
	}
	s.due.Notify()
	s.unsent.Notify()
}

// sendLoop sends results until the LO has them.
func (s *Service) sendLoop(ctx context.Context) {
	for ctx.Err() == nil {
		wait := time.Hour
		if !s.send(ctx) {
			wait = retryDelay
		}
		_, _ = retry.SleepOr(ctx, wait, s.unsent.C()) // its end ends the loop, too
	}
}

// send sends what the LO does not have, and reports whether it has everything now.
func (s *Service) send(ctx context.Context) bool {
	for {
		if !s.o.Uplink.Commands() {
			return true // the link wakes the loop
		}
		s.mu.Lock()
		list, rejected := s.ledger.Unsent(perTurn), s.rejected
		s.rejected = nil
		s.mu.Unlock()
		for _, r := range rejected {
			if err := s.o.Uplink.Result(ctx, r); err != nil {
				s.log.DebugContext(ctx, "refusal of a command not reported", "command_id", string(r.ID), "err", err)
			}
		}
		if len(list) == 0 {
			return true
		}
		for _, r := range list {
			err := s.o.Uplink.Result(ctx, r)
			switch kind := protocol.KindOf(err); {
			case err == nil:
			case kind == protocol.Invalid || kind == protocol.Denied: // it never will
				s.log.ErrorContext(ctx, "result of a command is refused by the lo", "command_id", string(r.ID), "err", err)
			default:
				if ctx.Err() == nil {
					s.log.InfoContext(ctx, "result of a command not accepted by the lo, trying again", "command_id", string(r.ID), "err", err)
				}
				return false
			}
			s.acked(ctx, r.ID)
		}
	}
}

// acked notes that the LO has a result.
func (s *Service) acked(ctx context.Context, id wire.ID) {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	e := s.ledger.Acked(id)
	s.mu.Unlock()
	if err := s.o.Store.Note(e); err != nil { // it is sent once more then
		s.log.DebugContext(ctx, "acknowledgement of a result not noted", "command_id", string(id), "err", err)
	}
}
