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

const (
	// gather is how long a line waits for others, so that they go together.
	gather = 100 * time.Millisecond
	// ahead is how many lines are read before there is credit for them.
	ahead = 64
)

// A Source yields the lines that a request asks for, and gaps in the place of those that are missing. With Follow it ends with ctx. An error ends it: of kind
// NotFound where there is no such log.
type Source func(ctx context.Context, r wire.LogRequest) iter.Seq2[wire.LogLine, error]

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
	ctx, stop := context.WithCancel(ctx)
	lines, read := make(chan wire.LogLine, ahead), make(chan error, 1)
	go func() {
		defer close(lines)
		read <- pump(ctx, source(ctx, request), lines)
	}()
	err := forward(ctx, r.Live, lines)
	stop()
	for range lines { // until the reader has ended
	}
	if fault := <-read; err == nil {
		err = fault
	}
	if is(err, protocol.NotFound) {
		return command.Failf(wire.NoSuchSubject, "%v", err)
	}
	return err
}

// pump reads lines into a channel until there are no more, or ctx ends.
func pump(ctx context.Context, from iter.Seq2[wire.LogLine, error], lines chan<- wire.LogLine) error {
	for line, err := range from {
		if err != nil {
			return fmt.Errorf("read log: %w", err) // a Failure stays one
		}
		select {
		case lines <- line:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// forward sends lines as they come. Lines that come together go together.
func forward(ctx context.Context, live *command.Live, lines <-chan wire.LogLine) error {
	var due <-chan time.Time
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return live.Flush()
			}
			if err := live.Send(protocol.Marshal(line)); err != nil {
				return err
			}
			if due == nil {
				due = time.After(gather)
			}
		case <-due:
			due = nil
			if err := live.Flush(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
