// Package leases holds leases of containerd, which keep new content from being collected. It drops
// leases that are left over: of agents that were killed, and of moments at which the daemon was
// away.
package leases

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
)

// Label marks the leases of one run of an agent, with its name. The time of their making does
// not: the node's clock may be set while they are held.
const Label = "colony.run"

// Leases are the leases of one run of an agent. Their methods may be called concurrently.
type Leases struct {
	client *client.Client
	run    string

	mu   sync.Mutex // protects what follows
	held map[string]bool
	left bool // one may be left that is not held: containerd did not answer
}

// New returns the leases of a run that begins.
func New(c *client.Client) *Leases {
	return &Leases{client: c, run: rand.Text(), held: map[string]bool{}}
}

// Hold returns ctx with the namespace and a lease of this run, which keeps what is made until done is
// called. If containerd is away at that moment, the lease is dropped later. Leases have no expiry: it
// would be a time of day of this process's clock, and the daemon's clock may be years ahead, or be set
// while the lease is held. [Leases.Sweep] of the next run drops the leases of an agent that was
// killed.
func (l *Leases) Hold(ctx context.Context) (held context.Context, done func(), err error) {
	id := rand.Text()
	l.mu.Lock()
	l.held[id] = true // before it is made, so that no sweep meanwhile drops it
	l.mu.Unlock()
	ctx, end, err := l.client.WithLease(ctx, leases.WithID(id), leases.WithLabel(Label, l.run))
	if err != nil {
		l.drop(id, err)
		return nil, nil, fmt.Errorf("make a lease: %w", err)
	}
	clean := context.WithoutCancel(ctx)
	return ctx, func() { l.drop(id, end(clean)) }, nil
}

// drop notes the end of a lease; err is why it may be left.
func (l *Leases) drop(id string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, id)
	l.left = l.left || err != nil
}

func (l *Leases) holds(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[id]
}

// SweepLeft is Sweep where one of this run may be left, and else does nothing.
func (l *Leases) SweepLeft(ctx context.Context) error {
	l.mu.Lock()
	left := l.left
	l.left = false
	l.mu.Unlock()
	if !left {
		return nil
	}
	err := l.Sweep(ctx)
	if err != nil {
		l.drop("", err) // it is tried again
	}
	return err
}

// Sweep drops the leases that no caller holds, such as those of an agent that was killed: they keep
// snapshots and content of unfinished downloads and creations.
func (l *Leases) Sweep(ctx context.Context) error {
	service := l.client.LeasesService()
	all, err := service.List(ctx)
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	var errs []error
	for _, lease := range all {
		if lease.Labels[Label] == l.run && l.holds(lease.ID) {
			continue
		}
		if err := service.Delete(ctx, lease); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("drop lease %s: %w", lease.ID, err))
		}
	}
	return errors.Join(errs...)
}
