// Package stopper ends what a process has started: parts are registered on the
// line after they exist, and stopped in the reverse order, each within a bound.
package stopper

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// partTimeout bounds the end of one part, so that one that hangs does not use up
// the time of the others.
const partTimeout = 5 * time.Second

// A Group is the parts of one process. OnStop, Go and Stop are for the goroutine
// that owns it; Fail and Failed may be used by any.
type Group struct {
	parts  []part
	failed chan error
}

type part struct {
	name string
	stop func(context.Context) error
}

// New returns a Group without parts.
func New() *Group { return &Group{failed: make(chan error, 1)} }

// OnStop registers how a part is stopped.
func (g *Group) OnStop(name string, stop func(context.Context) error) {
	g.parts = append(g.parts, part{name, stop})
}

// Go runs loop on a goroutine of its own until Stop, which ends its context and
// waits for it.
func (g *Group) Go(name string, loop func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		loop(ctx)
	}()
	g.OnStop(name, func(wait context.Context) error {
		cancel()
		select {
		case <-done:
			return nil
		case <-wait.Done():
			return wait.Err()
		}
	})
}

// Fail reports that a part cannot go on. The first failure counts.
func (g *Group) Fail(err error) {
	select {
	case g.failed <- err:
	default:
	}
}

// Failed delivers what Fail was given; the process should then be stopped.
func (g *Group) Failed() <-chan error { return g.failed }

// Stop stops all parts, the last registered first, within ctx and 5 s each, and
// joins their errors. A second call does nothing.
func (g *Group) Stop(ctx context.Context) error {
	var errs []error
	for len(g.parts) > 0 {
		p := g.parts[len(g.parts)-1]
		g.parts = g.parts[:len(g.parts)-1]
		bounded, cancel := context.WithTimeout(ctx, partTimeout)
		if err := p.stop(bounded); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", p.name, err))
		}
		cancel()
	}
	return errors.Join(errs...)
}
