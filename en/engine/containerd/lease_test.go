package containerd

import (
	"testing"
	"time"

	containerdleases "github.com/containerd/containerd/v2/core/leases"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/leases"
)

// A lease of this run stays, and one of an earlier run goes, whatever the node's clock says
// of when they were made.
func TestLeasesAreSweptByRun(t *testing.T) {
	t.Parallel()
	r := setup(t)
	ctx := r.in(t.Context())
	_, done, err := r.lease(ctx)
	if err != nil {
		t.Fatal(err)
	}
	service := r.client.LeasesService()
	made, err := service.List(ctx)
	if err != nil || len(made) != 1 {
		t.Fatalf("leases %v (%v), want one", made, err)
	}
	if until, ends := made[0].Labels["containerd.io/gc.expire"]; ends {
		t.Errorf("the lease ends at %s by this process's clock, which need not be the daemon's", until)
	}
	// The clock was set forward by a year since; and the earlier agent's was ahead.
	for id, opts := range map[string][]containerdleases.Opt{
		"earlier": {containerdleases.WithID("earlier"), containerdleases.WithLabel(leases.Label, "earlier"), containerdleases.WithExpiration(24 * 365 * time.Hour)},
		"former":  {containerdleases.WithID("former")}, // of an agent that did not say which run it was
	} {
		if _, err := service.Create(ctx, opts...); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	if err := r.Sweep(t.Context(), engine.SweepOptions{}); err != nil {
		t.Fatal(err)
	}
	left, err := service.List(ctx)
	if err != nil || len(left) != 1 || left[0].ID != made[0].ID {
		t.Errorf("leases after the sweep %v (%v), want the one of this run", left, err)
	}
	done()
	if left, err = service.List(ctx); err != nil || len(left) != 0 {
		t.Errorf("leases at the end %v (%v), want none", left, err)
	}
}

// A lease that containerd did not drop, because it was away, goes when it is back.
func TestLeaseOfAnAbsentDaemonIsSwept(t *testing.T) {
	t.Parallel()
	r := setup(t)
	ctx := r.in(t.Context())
	_, done, err := r.lease(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cut, drop, err := r.lease(ctx)
	if err != nil {
		t.Fatal(err)
	}
	id, ok := containerdleases.FromContext(cut)
	if !ok {
		t.Fatal("the context has no lease")
	}
	r.daemon.Kill(t)
	drop()
	r.daemon.Restart(t)
	service := r.client.LeasesService()
	deadline := time.Now().Add(time.Minute)
	for {
		left, err := service.List(ctx)
		if err == nil && len(left) == 1 && left[0].ID != id {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("leases %v (%v), want the one that is held", left, err)
		}
		<-time.After(50 * time.Millisecond)
	}
	done()
	if left, err := service.List(ctx); err != nil || len(left) != 0 {
		t.Errorf("leases at the end %v (%v), want none", left, err)
	}
}
