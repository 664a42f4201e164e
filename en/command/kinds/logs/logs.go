// Package logs executes the command that reads or follows the logs of containers: their lines go up live.
package logs

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// gather is how long a line waits for others, so that they go together.
const gather = 100 * time.Millisecond

// A Line is a line, or a gap in the place of those that are missing.
type Line struct {
	wire.LogLine
	// Past says that it was there when the reading began: it is sent, however long that takes.
	Past bool
}

// A Source yields the lines that a request asks for. With Follow it ends with ctx. An error ends it: of kind NotFound where there is no such log.
type Source func(ctx context.Context, r wire.LogRequest) iter.Seq2[Line, error]

// New returns the kind.
func New(source Source) command.Kind {
	return command.Kind{Kind: wire.Logs, Run: func(ctx context.Context, r command.Request) (string, error) {
		return "", run(ctx, source, r)
	}}
}

func run(ctx context.Context, source Source, r command.Request) error {
	var request wire.LogRequest
	if err := protocol.Unmarshal(r.Command.Args, &request); err != nil {
		return command.Failf(wire.BadArguments, "%v", err)
	}
	err := send(ctx, source(ctx, request), r.Live)
	if is(err, protocol.NotFound) {
		return command.Failf(wire.NoSuchSubject, "%v", err)
	}
	return err
}

// A sender takes items, see command.Live.
type sender interface {
	Send(item []byte) error
	Flush() error
}

// send sends what is read until there is no more, or ctx ends.
func send(ctx context.Context, from iter.Seq2[Line, error], to sender) error {
	ctx, stop := context.WithCancel(ctx)
	lines, read := newBacklog(), make(chan error, 1)
	go func() {
		defer lines.end()
		read <- pump(ctx, from, lines)
	}()
	err := forward(ctx, to, lines)
	stop()
	if fault := <-read; err == nil {
		err = fault
	}
	return err
}

// pump reads lines into a backlog until there are no more, or ctx ends.
func pump(ctx context.Context, from iter.Seq2[Line, error], lines *backlog) error {
	for line, err := range from {
		if err != nil {
			return fmt.Errorf("read log: %w", err) // a Failure stays one
		}
		if err := lines.add(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

// forward sends lines as they come. Lines that come together go together.
func forward(ctx context.Context, to sender, lines *backlog) error {
	var due <-chan time.Time
	for {
		line, ended := lines.next()
		if line != nil {
			if err := to.Send(protocol.Marshal(line)); err != nil {
				return err
			}
			if due == nil {
				due = time.After(gather)
			}
			continue
		}
		if ended {
			return to.Flush()
		}
		select {
		case <-lines.news.C():
		case <-due:
			due = nil
			if err := to.Flush(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
