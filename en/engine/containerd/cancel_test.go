package containerd

import (
	"context"
	"flag"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/enginetest"
	"github.com/colonyfleet/colony/internal/shims"
	"github.com/colonyfleet/colony/protocol"
)

var edits = flag.Int("edits", 5, "changes of mind in TestRapidEdits")

// A cut ends an operation of the engine at its n-th call of containerd.
type cut struct {
	at    int64
	calls atomic.Int64 // containerd's client waits for a task beside its other calls
	wait  time.Duration
	end   context.CancelFunc
}

type cutKey struct{}

// cutting ends the context of an operation while containerd works on the call that
// the operation's cut names.
func cutting(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	c, ok := ctx.Value(cutKey{}).(*cut)
	if !ok {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if c.calls.Add(1) == c.at {
		if c.wait == 0 {
			c.end()
		} else {
			defer time.AfterFunc(c.wait, c.end).Stop()
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// A cancelling engine is one whose callers change their mind: each operation is
// begun and cut short at its first call of containerd, then at its second, and so on
// until it comes to its end.
type cancelling struct{ *Engine }

func (c cancelling) each(ctx context.Context, do func(context.Context) error) error {
	for n := int64(1); ; n++ {
		cctx, end := context.WithCancel(ctx)
		k := &cut{at: n, end: end, wait: time.Duration(n%4) * 7 * time.Millisecond}
		err := do(context.WithValue(cctx, cutKey{}, k))
		cancelled := cctx.Err() != nil && ctx.Err() == nil
		end()
		if err == nil || !cancelled {
			return err
		}
	}
}

func (c cancelling) Start(ctx context.Context, box engine.Container) error {
	return c.each(ctx, func(ctx context.Context) error { return c.Engine.Start(ctx, box) })
}

func (c cancelling) Stop(ctx context.Context, id engine.ID, grace time.Duration) error {
	return c.each(ctx, func(ctx context.Context) error { return c.Engine.Stop(ctx, id, grace) })
}

func (c cancelling) Remove(ctx context.Context, id engine.ID) error {
	return c.each(ctx, func(ctx context.Context) error { return c.Engine.Remove(ctx, id) })
}

func (c cancelling) Sweep(ctx context.Context, o engine.SweepOptions) error {
	return c.each(ctx, func(ctx context.Context) error { return c.Engine.Sweep(ctx, o) })
}

func (c cancelling) List(ctx context.Context) (out []engine.Status, err error) {
	err = c.each(ctx, func(ctx context.Context) (err error) {
		out, err = c.Engine.List(ctx)
		return err
	})
	return out, err
}

func (c cancelling) Pull(ctx context.Context, ref string, report func(engine.Progress)) error {
	return c.each(ctx, func(ctx context.Context) error { return c.Engine.Pull(ctx, ref, report) })
}

func (c cancelling) Exec(ctx context.Context, id engine.ID, command []string) (out engine.ExecResult, err error) {
	err = c.each(ctx, func(ctx context.Context) (err error) {
		out, err = c.Engine.Exec(ctx, id, command)
		return err
	})
	return out, err
}

func (c cancelling) Info(ctx context.Context) (out engine.Info, err error) {
	err = c.each(ctx, func(ctx context.Context) (err error) {
		out, err = c.Engine.Info(ctx)
		return err
	})
	return out, err
}

func (c cancelling) Vacant(ctx context.Context, d protocol.DeploymentName, ports []protocol.Port) error {
	return c.each(ctx, func(ctx context.Context) error { return c.Engine.Vacant(ctx, d, ports) })
}

func (c cancelling) Volumes(ctx context.Context) (out []engine.Volume, err error) {
	err = c.each(ctx, func(ctx context.Context) (err error) {
		out, err = c.Engine.Volumes(ctx)
		return err
	})
	return out, err
}

func (c cancelling) VolumeBytes(ctx context.Context, v engine.Volume) (n uint64, err error) {
	err = c.each(ctx, func(ctx context.Context) (err error) {
		n, err = c.Engine.VolumeBytes(ctx, v)
		return err
	})
	return n, err
}

func (c cancelling) RemoveVolume(ctx context.Context, v engine.Volume) error {
	return c.each(ctx, func(ctx context.Context) error { return c.Engine.RemoveVolume(ctx, v) })
}

// The engine does all that the suite asks for when each of its calls of containerd
// is cancelled once.
func TestExerciseCancelled(t *testing.T) {
	t.Parallel()
	enginetest.Exercise(t, func(t *testing.T) enginetest.Fixture {
		r := setup(t)
		f := fixture(t, r)
		f.Engine = cancelling{r.open(t, grpc.WithUnaryInterceptor(cutting))}
		return f
	})
}

// TestRapidEdits changes its mind in the middle of everything, as a person that edits a deployment
// several times a second; now and then the daemon is killed.
func TestRapidEdits(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	if err := r.Pull(t.Context(), c.Spec.Image, nil); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(7, 11))
	versions := []protocol.Digest{c.Digest, "sha256:2222222222222222222222222222222222222222222222222222222222222222"}
	for i := range *edits {
		c.Digest = versions[i%2]
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(400))*time.Millisecond)
			if err := r.Stop(ctx, c.ID, time.Second); err == nil {
				if err := r.Remove(ctx, c.ID); err == nil {
					_ = r.Start(ctx, c) // it may be cancelled; what counts is what comes after
				}
			}
			cancel()
		}
		if i%10 == 9 {
			r.daemon.Kill(t)
			r.daemon.Restart(t)
		}
		within, cancel := context.WithTimeout(t.Context(), time.Minute)
		for _, step := range []func() error{
			func() error { _, err := r.List(within); return err },
			func() error { return r.Remove(within, c.ID) },
			func() error { return r.Start(within, c) },
		} {
			if err := step(); err != nil {
				t.Fatalf("edit %d of %d: %v", i, *edits, err)
			}
		}
		cancel()
		left, err := shims.Find(r.opts.Address, r.opts.Namespace)
		if err != nil || len(left) != 1 {
			t.Fatalf("edit %d of %d: shims %+v %v, want that of the container", i, *edits, left, err)
		}
	}
}
