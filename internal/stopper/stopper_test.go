package stopper

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLastStartedIsStoppedFirst(t *testing.T) {
	t.Parallel()
	var order []string
	g := New()
	bad := errors.New("bad")
	g.OnStop("first", func(context.Context) error {
		order = append(order, "first")
		return nil
	})
	g.Go("loop", func(ctx context.Context) {
		<-ctx.Done()
		order = append(order, "loop")
	})
	g.OnStop("last", func(context.Context) error {
		order = append(order, "last")
		return bad
	})
	if err := g.Stop(t.Context()); !errors.Is(err, bad) || err.Error() != "stop last: bad" {
		t.Errorf("error %v", err)
	}
	if !slices.Equal(order, []string{"last", "loop", "first"}) {
		t.Errorf("order %v", order)
	}
	if err := g.Stop(t.Context()); err != nil || len(order) != 3 {
		t.Errorf("a second Stop did something: %v, %v", err, order)
	}
}

func TestHangingPartIsLeftBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New()
		stopped, release := false, make(chan struct{})
		g.OnStop("other", func(context.Context) error {
			stopped = true
			return nil
		})
		g.Go("deaf", func(context.Context) { <-release })
		if err := g.Stop(t.Context()); !errors.Is(err, context.DeadlineExceeded) || !stopped {
			t.Errorf("error %v, the other part stopped %t", err, stopped)
		}
		close(release)
	})
}

func TestFirstFailureCounts(t *testing.T) {
	t.Parallel()
	g := New()
	one := errors.New("one")
	g.Fail(one)
	g.Fail(errors.New("two"))
	if err := <-g.Failed(); !errors.Is(err, one) {
		t.Error(err)
	}
}
