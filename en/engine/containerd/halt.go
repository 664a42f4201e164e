package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/engine"
)

// halters bounds how many networks are taken down at a time. The plugins that do it wait for the
// one lock of iptables.
const halters = 4

// Halt stops all containers and takes their networks off the node, as before a shutdown. Everything
// is kept on disk, so that Start brings it back. All are stopped at once: each has its own grace,
// but half of the time until the deadline of ctx at most, and is then killed. Networks are taken
// down even after ctx has ended, since no other code does it.
func (e *Engine) Halt(ctx context.Context) error {
	ctx = e.in(ctx)
	ids, err := e.known(ctx)
	polite, cancel := halfOf(ctx)
	defer cancel()
	turn := make(chan struct{}, halters)
	ended := make(chan error, len(ids))
	var group sync.WaitGroup
	for k, id := range ids {
		group.Go(func() { ended <- e.halt(ctx, polite, k, id, turn) })
	}
	group.Wait()
	close(ended)
	errs := []error{err}
	for err := range ended {
		errs = append(errs, err)
	}
	errs = append(errs, e.net.Down())
	errs = append(errs, removeEmpty(filepath.Join(e.runcRoot(), e.opts.Namespace)), removeEmpty(e.runcRoot()))
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		groups, err := filepath.Glob(pattern + e.cgroup())
		errs = append(errs, err)
		for _, g := range groups {
			errs = append(errs, removeEmpty(g))
		}
	}
	return errors.Join(errs...)
}

// halfOf returns a context that ends when half of the time until the deadline of ctx is over; it
// ends with ctx where that has none.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// halt stops a container, within polite by its own signal, and takes its network down when it is
// its turn.
func (e *Engine) halt(ctx, polite context.Context, k string, id engine.ID, turn chan struct{}) error {
	err := e.Stop(polite, id, 0)
	if err != nil && polite.Err() != nil {
		kill, cancel := e.toTheEnd(ctx)
		defer cancel()
		err = e.Stop(kill, id, time.Nanosecond)
	}
	turn <- struct{}{}
	defer func() { <-turn }()
	down, cancel := e.toTheEnd(ctx)
	defer cancel()
	return errors.Join(err, e.detach(down, k))
}

// removeEmpty removes a directory; one that does not exist is no error.
func removeEmpty(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (e *Engine) detach(ctx context.Context, k string) error {
	unlock, err := e.locks.Lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	e.names.Leave(k)
	e.forward.Remove(k)
	return e.net.Detach(ctx, k)
}
