// Package session is the CO's end of a session: a program that a person uses in a container of some site, or files that are collected at a node.
// The output of a program is recorded before any person sees it.
package session

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/session/recording"
	"github.com/colonyfleet/colony/internal/duplex"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

const (
	// silence is how long a node may be silent: its own lease (command.LeaseMillis) ended before.
	silence = 50 * time.Second
	// MaxRecording bounds the recording of a session, in bytes.
	MaxRecording = 32 << 20
	// recordWait is how long the recording may not be writable.
	recordWait = 10 * time.Second
	// look is how often is looked whether it is to end.
	look = time.Second
)

// A Way carries what the node sends, see live.Reader.
type Way interface {
	// C delivers a value when there may be something to read.
	C() <-chan struct{}
	// Next returns the frame that has waited longest; ok is false where none waits.
	Next() (f command.Frame, ok bool)
	// Keep lets the node send as fast as it is read, until ctx ends.
	Keep(ctx context.Context)
}

// A Client is the person's end of a session.
type Client interface {
	// Receive returns what was done there; it waits for it. An error says that the person has left.
	Receive() (command.Record, error)
	// Send shows what the program said. It waits for a time that is bounded.
	Send(r *command.Record) error
	// Close ends Receive.
	Close()
}

// Options of a session. All are required, but for Record and Began.
type Options struct {
	ID   command.ID
	Node protocol.NodeID
	// Key signs what goes down: its public key is that of the ExecRequest.
	Key    ed25519.PrivateKey
	Way    Way
	Client Client
	// Publish sends an encoded command.Segment to the node; it may get lost.
	Publish func(ctx context.Context, payload []byte) error
	// Record adds to the recording. What it has taken is durable when it returns nil. Nil, with no Writer: nothing is recorded.
	Record func(ctx context.Context, chunk []byte) error
	// Began is called once the program runs in a container.
	Began func(ctx context.Context, component, container string)
	// Result returns how the command ended, nil where it has not.
	Result func(ctx context.Context) (*fleet.CommandResult, error)
	// Idle is how long nothing may be typed or shown; AnswerWait how long the node may take to begin.
	Idle, AnswerWait time.Duration
}

// An end ends a session with its reason.
type end struct{ fleet.SessionEnd }

// Error says why.
func (e *end) Error() string { return string(e.Reason) + ": " + e.Message }

// Because returns an error that ends a session for a reason, as the cause of its context.
func Because(reason fleet.SessionReason, format string, args ...any) error {
	return &end{fleet.SessionEnd{Reason: reason, Message: fmt.Sprintf(format, args...)}}
}

// A session is one that runs.
type session struct {
	o    Options
	peer *duplex.Peer

	recording sync.Mutex // held while something is recorded; taken before mu
	recorder  *recording.Writer
	recorded  int

	mu     sync.Mutex // protects what follows
	active time.Time
	opened time.Time
	heard  bool
	began  bool
}

// Run runs a session until it ends by itself, or for the cause of ctx. The recording has begun when it does: its first line has first bytes. Nil: it is not
// recorded.
func Run(ctx context.Context, o Options, recorder *recording.Writer, first int) fleet.SessionEnd {
	now := time.Now()
	s := &session{o: o, peer: duplex.New(), recorder: recorder, recorded: first, active: now, opened: now}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	part := func(run func(ctx context.Context) error) {
		group.Go(func() {
			if err := run(ctx); err != nil {
				stop(err)
			}
		})
	}
	group.Go(func() { o.Way.Keep(ctx) })
	part(s.frames)
	part(s.watch)
	part(func(ctx context.Context) error {
		return s.peer.Serve(ctx, func(list []command.Record) error { return s.show(ctx, list) })
	})
	part(func(ctx context.Context) error {
		return s.peer.Send(ctx, func(m *command.Segment) error {
			m.Node = o.Node
			m.Sign(o.ID, o.Key)
			_ = o.Publish(ctx, protocol.Marshal(m)) // it is sent again
			return context.Cause(ctx)
		})
	})
	part(s.typed)
	<-ctx.Done()
	o.Client.Close()
	group.Wait()
	s.finish(ctx)
	cause := context.Cause(ctx)
	if e, ok := errors.AsType[*end](cause); ok {
		return e.SessionEnd
	}
	if errors.Is(cause, context.Canceled) {
		return fleet.SessionEnd{Reason: fleet.SessionLeft, Message: "the connection of the client ended"}
	}
	return fleet.SessionEnd{Reason: fleet.SessionFailed, Message: cause.Error()}
}

// typed passes on what is done at the client.
func (s *session) typed(ctx context.Context) error {
	for {
		r, err := s.o.Client.Receive()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return Because(fleet.SessionLeft, "the connection of the client ended: %v", err)
		}
		s.touch()
		if r.Kind == command.Resize {
			s.recording.Lock()
			err := s.write(ctx, s.recorder.Resize(time.Now(), r.Columns, r.Rows))
			s.recording.Unlock()
			if err != nil {
				return err
			}
		}
		if err := s.peer.Write(ctx, &r); err != nil {
			return err
		}
	}
}

func (s *session) touch() {
	s.mu.Lock()
	s.active = time.Now()
	s.mu.Unlock()
}

// write adds to the recording. The caller holds recording.
func (s *session) write(ctx context.Context, chunk []byte) error {
	if len(chunk) == 0 {
		return nil
	}
	if s.recorded += len(chunk); s.recorded > MaxRecording {
		return Because(fleet.SessionFull, "the session has shown as much as is recorded of one: %d MiB", MaxRecording>>20)
	}
	ctx, cancel := context.WithTimeout(ctx, recordWait)
	defer cancel()
	wait := retry.Backoff{Policy: retry.Policy{Min: 100 * time.Millisecond, Max: 2 * time.Second, Jitter: 0.2}}
	for {
		err := s.o.Record(ctx, chunk)
		if err == nil {
			return nil
		}
		if wait.Wait(ctx) != nil {
			return Because(fleet.SessionUnwrit, "what the session shows cannot be recorded: %v", err)
		}
	}
}

// record records an output, where the session is recorded.
func (s *session) record(ctx context.Context, r *command.Record) error {
	s.recording.Lock()
	defer s.recording.Unlock()
	if s.recorder == nil || r.Channel != 0 { // data of a forwarded port are not shown to a person
		return nil
	}
	return s.write(ctx, s.recorder.Output(time.Now(), r.Kind, r.Data))
}

// show records what the program said, and shows it.
func (s *session) show(ctx context.Context, list []command.Record) error {
	s.touch()
	for i := range list {
		r := &list[i]
		switch r.Kind { //nolint:exhaustive // the others go down
		case command.Began:
			s.mu.Lock()
			s.began = true
			s.mu.Unlock()
			if component, container, _ := strings.Cut(r.Name, "/"); s.o.Began != nil {
				s.o.Began(ctx, component, container)
			}
		case command.Stdout, command.Stderr:
			if err := s.record(ctx, r); err != nil {
				return err
			}
		case command.Exit:
			_ = s.o.Client.Send(r) // it has ended anyhow
			return &end{fleet.SessionEnd{Reason: fleet.SessionExited, ExitCode: &r.Code}}
		}
		if err := s.o.Client.Send(r); err != nil {
			return Because(fleet.SessionLeft, "the client does not take what the program says: %v", err)
		}
	}
	return nil
}

// finish records what waits, where that is possible.
func (s *session) finish(ctx context.Context) {
	s.recording.Lock()
	defer s.recording.Unlock()
	if s.recorder == nil {
		return
	}
	if rest := s.recorder.End(time.Now()); len(rest) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), look)
		defer cancel()
		_ = s.o.Record(ctx, rest) // half a character
	}
}

// frames takes what the node sends.
func (s *session) frames(ctx context.Context) error {
	for {
		f, ok := s.o.Way.Next()
		if !ok {
			select {
			case <-s.o.Way.C():
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}
		s.mu.Lock()
		s.heard = true
		s.mu.Unlock()
		for data := f.Data; len(data) > 0; {
			n := command.FirstItem(data)
			var m command.Segment
			if n == 0 || protocol.Unmarshal(data[:n], &m) != nil || m.V != protocol.Version {
				return Because(fleet.SessionFailed, "node %s sent what is no segment of a session", s.o.Node)
			}
			data = data[n:]
			if err := s.peer.Accept(&m); err != nil {
				return Because(fleet.SessionFailed, "%v", err)
			}
		}
		if f.End { // what it had to say had arrived before
			return s.over(f.Code, f.Message)
		}
	}
}

// over is the end of a session whose node says that it is over, and did not say how the program ended.
func (s *session) over(code command.Code, message string) error {
	reason := fleet.SessionRefused
	s.mu.Lock()
	if s.began {
		reason = fleet.SessionFailed
	}
	s.mu.Unlock()
	if code == "" && message == "" {
		return Because(fleet.SessionFailed, "the node has ended it")
	}
	return Because(reason, "%s (%s)", message, code)
}

// watch ends a session that is not used, or whose node is silent.
func (s *session) watch(ctx context.Context) error {
	for {
		if err := retry.Sleep(ctx, look); err != nil {
			return err
		}
		s.mu.Lock()
		idle, heard, age := time.Since(s.active), s.heard, time.Since(s.opened)
		s.mu.Unlock()
		silent := time.Since(s.peer.Heard())
		if !heard || silent > silence/2 {
			r, err := s.o.Result(ctx)
			if err == nil && r != nil {
				return s.over(r.Code, r.Message)
			}
		}
		switch {
		case !heard && age > s.o.AnswerWait:
			return Because(fleet.SessionLost, "node %s did not begin it within %s", s.o.Node, s.o.AnswerWait)
		case heard && silent > silence:
			return Because(fleet.SessionLost, "node %s was not heard for %s: it has hung the program up, or is away", s.o.Node, silent.Truncate(time.Second))
		case idle > s.o.Idle:
			return Because(fleet.SessionIdle, "nothing was typed or shown for %s", s.o.Idle)
		}
	}
}
