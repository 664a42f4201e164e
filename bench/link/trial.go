package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/bench/link/ledger"
	"github.com/colonyfleet/colony/internal/privatepg"
	"github.com/colonyfleet/colony/internal/retry"
)

// A bench is one run: its settings and what all trials share.
type bench struct {
	program string // the built colony
	self    string // this program
	dir     string // for everything that is written

	messages int // of a trial
	nodes    int
	window   int // of a publisher
	flow     int // messages per second where they flow on during the fault
	flap     time.Duration
	stall    time.Duration
	// patience is how long nothing may arrive before the rest counts as lost;
	// slowPatience is that of a link that may wait long before it connects again.
	patience, slowPatience time.Duration
	// slowPing is how long such a link needs to detect that its connection is dead.
	slowPing time.Duration
	// limit bounds the time in which messages may still arrive, beside the patience.
	limit time.Duration

	postgres *privatepg.Cluster
	trials   atomic.Int64
}

// open makes the directory of the run and starts the database.
func (b *bench) open(ctx context.Context) error {
	var err error
	// Short, because Unix sockets have short names; open to the database's user.
	if b.dir, err = os.MkdirTemp("", "colony-bench-"); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	if b.self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	b.postgres, err = privatepg.Start(ctx, privatepg.Options{
		Dir: filepath.Join(b.dir, "pg"), DieWithParent: true,
		Settings: map[string]string{"max_connections": "100", "shared_buffers": "256MB"},
	})
	if err != nil {
		return err
	}
	return nil
}

// closeTimeout bounds how long the database may write what it holds to a busy disk, before it is killed, which
// is an error.
const closeTimeout = 2 * time.Minute

// close ends the database and removes everything.
func (b *bench) close() error {
	var errs []error
	if b.postgres != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		errs = append(errs, b.postgres.Stop(ctx))
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	return errors.Join(errs...)
}

// measure plays a scenario on a link of a kind. It may be called concurrently; what
// the database used is then divided at random.
func (b *bench) measure(ctx context.Context, s scenario, k kind) (r *result, err error) {
	number := int(b.trials.Add(1))
	dir := filepath.Join(b.dir, fmt.Sprintf("trial-%d", number))
	nearDir := filepath.Join(dir, "near")
	if err := os.MkdirAll(nearDir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	if s.smallDisk {
		if err := mountSmall(nearDir, smallDisk); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, syscall.Unmount(nearDir, 0)) }()
	}
	l, err := k.make(ctx, b, dir, nearDir, number)
	if err != nil {
		return nil, err
	}
	t := &trial{bench: b, link: l, ledger: ledger.New(), result: &result{scenario: s, kind: k}}
	t.load = &load{addr: l.publish, site: siteOf(number), topic: l.topic, nodes: b.nodes, window: b.window, ledger: t.ledger}
	began := b.farCPU(l)
	playing, done := context.WithCancel(ctx)
	err = t.play(playing, s)
	done()
	t.publisher.Wait()
	if err != nil {
		err = fmt.Errorf("%s, scenario %d: %w\n%s", k.name, s.number, err, l.logs())
	}
	if !t.result.faultless() {
		t.result.absent, t.result.logs = t.ledger.Absent(), l.logs()
	}
	err = errors.Join(err, l.down())
	t.result.near, t.result.far = used(l.near), used(l.far)
	t.result.far.CPU += b.farCPU(l) - began
	return t.result, err
}

func (b *bench) farCPU(l *link) time.Duration {
	if l.farCPU == nil {
		return 0
	}
	return l.farCPU()
}

// play runs the scenario on a link that carries, and waits for what arrives.
func (t *trial) play(ctx context.Context, s scenario) error {
	if err := t.link.up(ctx, t.ledger); err != nil {
		return err
	}
	// A message of each node first, so that what is measured is not the start.
	if err := t.load.publish(ctx, t.bench.nodes, 0); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	t.ledger.Mark()
	if _, err := t.drain(ctx); err != nil {
		return err
	}
	if n := t.ledger.Missing(); n > 0 {
		return fmt.Errorf("%d of %d messages did not arrive while nothing was wrong", n, t.bench.nodes)
	}
	if err := s.run(ctx, t); err != nil {
		return err
	}
	superseded, err := t.drain(ctx)
	if err != nil {
		return err
	}
	t.result.count(t.ledger, superseded, t.link)
	return nil
}

// drain waits until all acknowledged messages have arrived, or nothing has for as
// long as the link's patience, or the limit is reached.
func (t *trial) drain(ctx context.Context) (superseded int, err error) {
	limit := time.Now().Add(t.bench.limit + t.link.patience)
	looked := time.Time{}
	for {
		now := time.Now()
		// A look at everything costs the database something, so not while it is busy.
		if quiet := t.ledger.Quiet(now); quiet > settleAfter && now.Sub(looked) > time.Second || now.After(limit) {
			looked = now
			if superseded, err = t.link.consumer.settle(ctx); err != nil {
				return 0, err
			}
			if t.ledger.Missing() <= superseded || quiet > t.link.patience || now.After(limit) {
				return superseded, nil
			}
		}
		if retry.Sleep(ctx, poll) != nil {
			return 0, ctx.Err()
		}
	}
}

// settleAfter is the silence after which it is worth to count.
const settleAfter = 500 * time.Millisecond
