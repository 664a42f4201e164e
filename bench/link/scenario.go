package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/colonyfleet/colony/bench/link/ledger"
	"github.com/colonyfleet/colony/bench/link/process"
	"github.com/colonyfleet/colony/internal/impair"
	"github.com/colonyfleet/colony/internal/retry"
)

// A scenario is one way in which links fail in the field.
type scenario struct {
	number int
	name   string
	// smallDisk puts the near end's state on a file system of its own.
	smallDisk bool
	run       func(ctx context.Context, t *trial) error
}

func scenarios() []scenario {
	return []scenario{
		{1, "outage, all queued", false, outage},
		{2, "far side kill -9", false, farKilled},
		{3, "near side kill -9, all queued", false, nearKilled},
		{4, "half-open stall", false, stall},
		{5, "60 flaps under load", false, flaps},
		{6, "disk full and back", true, diskFull},
	}
}

const (
	farAway   = 3 * time.Second // how long a killed far end is away
	flapCount = 60
	smallDisk = 64 << 20 // bytes
	// lastBytes is what is left on the full disk for each message of the trial: less
	// than any link needs for one.
	lastBytes = 100
	// diskStaysFull is how long publishers meet a full disk.
	diskStaysFull = 2 * time.Second
)

// A trial is one scenario on one link.
type trial struct {
	bench  *bench
	link   *link
	ledger *ledger.Ledger
	load   *load
	result *result

	published chan error // of the publishing that goes on
	publisher sync.WaitGroup
}

// publish starts to publish what the scenario asks for.
func (t *trial) publish(ctx context.Context, count, rate int) {
	t.published = make(chan error, 1)
	t.publisher.Go(func() {
		began := time.Now()
		err := t.load.publish(ctx, count, rate)
		t.result.publishing = time.Since(began)
		t.published <- err
	})
}

// await waits until the publishing is done.
func (t *trial) await() error {
	err := <-t.published
	t.result.acceptedNow = t.load.accepted.Load()
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// until waits until the publishers have so many acknowledgements.
func (t *trial) until(ctx context.Context, count int) error {
	for t.load.accepted.Load() < int64(count) {
		if retry.Sleep(ctx, time.Millisecond) != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (t *trial) wan(mode impair.Mode) { t.link.wan.Set(impair.Profile{Mode: mode}) }

// held notes what the near end keeps on disk.
func (t *trial) held() { t.result.held = max(t.result.held, process.BytesIn(t.link.nearDir)) }

// outage: the link goes away, everything is queued, the link comes back.
func outage(ctx context.Context, t *trial) error {
	t.wan(impair.Refuse)
	t.publish(ctx, t.bench.messages, 0)
	if err := t.await(); err != nil {
		return err
	}
	t.held()
	t.wan(impair.Forward)
	t.ledger.Mark()
	return nil
}

// farKilled: the far end dies while messages flow, and comes back.
func farKilled(ctx context.Context, t *trial) error {
	t.publish(ctx, t.bench.messages, t.bench.flow)
	if err := t.until(ctx, t.bench.messages/3); err != nil {
		return err
	}
	kill(t.link.far)
	if retry.Sleep(ctx, farAway) != nil {
		return ctx.Err()
	}
	t.held()
	if err := startAll(ctx, t.link.far); err != nil {
		return err
	}
	t.ledger.Mark()
	return t.await()
}

// nearKilled: the near end dies when it has acknowledged everything and delivered
// nothing.
func nearKilled(ctx context.Context, t *trial) error {
	t.wan(impair.Refuse)
	t.publish(ctx, t.bench.messages, 0)
	if err := t.await(); err != nil {
		return err
	}
	kill(t.link.near)
	t.held()
	t.wan(impair.Forward)
	if err := startAll(ctx, t.link.near); err != nil {
		return err
	}
	t.ledger.Mark()
	return nil
}

// stall: the link swallows everything both ways and closes nothing; when it works
// again, the connections that it had stay dead.
func stall(ctx context.Context, t *trial) error {
	t.publish(ctx, t.bench.messages, t.bench.flow)
	if err := t.until(ctx, t.bench.messages/3); err != nil {
		return err
	}
	t.link.wan.Strand()
	t.wan(impair.Swallow)
	if retry.Sleep(ctx, t.bench.stall) != nil {
		return ctx.Err()
	}
	t.held()
	t.wan(impair.Forward)
	t.ledger.Mark()
	if t.link.patience >= t.bench.slowPatience {
		t.link.patience += t.bench.slowPing
	}
	return t.await()
}

// flaps: the link breaks again and again while messages flow.
func flaps(ctx context.Context, t *trial) error {
	rng := rand.New(rand.NewPCG(60, 1)) // the same flaps for every link
	lasts := flapCount * t.bench.flap * 9 / 8
	t.publish(ctx, t.bench.messages, int(float64(t.bench.messages)/lasts.Seconds()*0.9)) // a little longer than the flaps
	for range flapCount {
		up := t.bench.flap/4 + time.Duration(rng.Int64N(int64(t.bench.flap)))
		down := t.bench.flap/8 + time.Duration(rng.Int64N(int64(t.bench.flap/2)))
		if retry.Sleep(ctx, up) != nil {
			return ctx.Err()
		}
		t.wan(impair.Refuse)
		t.held()
		if retry.Sleep(ctx, down) != nil {
			return ctx.Err()
		}
		t.wan(impair.Forward)
	}
	t.ledger.Mark()
	return t.await()
}

// diskFull: during an outage the near end's disk fills up, has room again later,
// and then the link comes back.
func diskFull(ctx context.Context, t *trial) error {
	t.wan(impair.Refuse)
	free, err := fill(t.link.nearDir, int64(lastBytes*t.bench.messages))
	if err != nil {
		return err
	}
	t.publish(ctx, t.bench.messages, t.bench.flow)
	if retry.Sleep(ctx, diskStaysFull+time.Duration(t.bench.messages)*time.Second/time.Duration(max(t.bench.flow, 1))) != nil {
		return ctx.Err()
	}
	t.result.note("%d refused while the disk was full", t.load.refused.Load())
	if err := free(); err != nil {
		return errors.Join(errors.New("give the disk room again"), err)
	}
	if err := t.await(); err != nil {
		return err
	}
	t.held()
	t.wan(impair.Forward)
	t.ledger.Mark()
	return nil
}
