package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/colonyfleet/colony/internal/retry"
)

// A part is one running process of the fleet: a tier, PostgreSQL or containerd.
type part interface {
	PID() int
	Done() <-chan struct{}          // closed when it ended
	Err() error                     // why it ended; valid after Done
	Stop(ctx context.Context) error // asks it to end and waits; kills it when ctx ends
}

// A supervised starts a part, and starts it again each time that it ends, until it is stopped.
type supervised struct {
	name   string
	start  func(context.Context) (part, error)
	pidDir string
	log    *slog.Logger

	cancel context.CancelFunc
	ended  chan struct{}
	failed chan error // capacity 1: why the part ended last
}

const (
	firstRestart = 100 * time.Millisecond
	lastRestart  = 5 * time.Second
	calm         = 20 * time.Second // a part that ran this long starts over with the first delay
	stopGrace    = 20 * time.Second
)

var errUnasked = errors.New("it ended without being asked to")

// keep starts the part. An error means that it could not be started even once;
// afterwards it is kept running until stop.
func (k *supervised) keep(ctx context.Context) error {
	p, err := k.start(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", k.name, err)
	}
	ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	k.ended = make(chan struct{})
	k.failed = make(chan error, 1)
	go func() {
		defer close(k.ended)
		k.loop(ctx, p)
	}()
	return nil
}

func (k *supervised) loop(ctx context.Context, p part) {
	tries := retry.Backoff{Policy: retry.Policy{Min: firstRestart, Max: lastRestart}}
	var wait time.Duration
	for {
		if p != nil {
			var restart bool
			if wait, restart = k.watch(ctx, p, &tries); !restart {
				return
			}
		}
		if retry.Sleep(ctx, wait) != nil {
			return
		}
		var err error
		if p, err = k.start(ctx); err != nil {
			p, wait = nil, tries.Next()
			k.log.WarnContext(ctx, "part did not start, it is tried again", "name", k.name, "err", err, "delay", wait.String())
			k.report(err)
		}
	}
}

// watch waits until p ends, and returns how long to wait before the next start; or
// it stops p because ctx ended, and restart is false.
func (k *supervised) watch(ctx context.Context, p part, tries *retry.Backoff) (wait time.Duration, restart bool) {
	began := time.Now()
	pidFile := filepath.Join(k.pidDir, k.name+".pid")
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(p.PID())+"\n"), 0o644); err != nil {
		k.log.WarnContext(ctx, "pid file not written", "name", k.name, "err", err)
	}
	defer os.Remove(pidFile)
	select {
	case <-p.Done():
		if time.Since(began) > calm {
			tries.Reset()
		}
		err := p.Err()
		if err == nil {
			err = errUnasked
		}
		wait = tries.Next()
		k.log.WarnContext(ctx, "part ended, it is started again", "name", k.name, "err", err, "delay", wait.String())
		k.report(err)
		k.end(ctx, p) // the part releases what it holds, such as its lock
		return wait, true
	case <-ctx.Done():
		k.end(ctx, p)
		return 0, false
	}
}

func (k *supervised) end(ctx context.Context, p part) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		k.log.WarnContext(ctx, "part did not stop cleanly", "name", k.name, "err", err)
	}
}

// report keeps the latest reason for the goroutines that wait for the part to become ready.
func (k *supervised) report(err error) {
	select {
	case <-k.failed:
	default:
	}
	select {
	case k.failed <- fmt.Errorf("%s: %w", k.name, err):
	default:
	}
}

// stop ends the part and waits until it has ended.
func (k *supervised) stop() {
	if k.cancel == nil {
		return
	}
	k.cancel()
	<-k.ended
}
