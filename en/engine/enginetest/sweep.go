package enginetest

import (
	"slices"
	"testing"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

func sweep(t *testing.T, f Fixture) {
	c := web(f, "wait")
	begin(t, f.Engine, c)
	removed := web(f, "hang")
	removed.ID.Deployment = "news"
	removed.Spec.Image = f.Other
	begin(t, f.Engine, removed)
	must(t, f.Engine.Sweep(t.Context(), engine.SweepOptions{KeepImages: []string{f.Other}}))
	if list, err := f.Engine.List(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("%d containers (%v) after a sweep that removes no deployment, want 2", len(list), err)
	}
	news := []protocol.DeploymentName{"news"}
	must(t, f.Engine.Sweep(t.Context(), engine.SweepOptions{Removed: news, KeepImages: []string{f.Other}}))
	if st := one(t, f.Engine); st.ID != c.ID || st.State != engine.Running {
		t.Errorf("status %+v, want the kept one running", st)
	}
	must(t, f.Engine.Start(t.Context(), removed)) // its image was kept
	must(t, f.Engine.Sweep(t.Context(), engine.SweepOptions{Removed: news, KeepAllImages: true}))
	must(t, f.Engine.Start(t.Context(), removed)) // its image was not even looked at
	must(t, f.Engine.Sweep(t.Context(), engine.SweepOptions{Removed: news}))
	wantCode(t, f.Engine.Start(t.Context(), removed), protocol.ImageNotFound)
	must(t, f.Engine.Remove(t.Context(), c.ID))
	must(t, f.Engine.Sweep(t.Context(), engine.SweepOptions{}))
	wantCode(t, f.Engine.Start(t.Context(), c), protocol.ImageNotFound)
}

// volumes outlive their deployment, and are removed one by one.
func volumes(t *testing.T, f Fixture) {
	c := web(f, "wait")
	c.Spec.Mounts = []protocol.Mount{
		{Kind: protocol.MountVolume, Source: "main_a", Target: "/a"}, {Kind: protocol.MountVolume, Source: "main_b", Target: "/b"},
	}
	begin(t, f.Engine, c)
	must(t, f.Engine.Remove(t.Context(), c.ID))
	must(t, f.Engine.Sweep(t.Context(), engine.SweepOptions{Removed: []protocol.DeploymentName{"shop"}}))
	check := func(what string, want ...engine.Volume) {
		t.Helper()
		got, err := f.Engine.Volumes(t.Context())
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: volumes %v (%v), want %v", what, got, err, want)
		}
	}
	a, b := engine.Volume{Deployment: "shop", Name: "main_a"}, engine.Volume{Deployment: "shop", Name: "main_b"}
	check("after the removal of their deployment", a, b)
	must(t, f.Engine.RemoveVolume(t.Context(), a))
	must(t, f.Engine.RemoveVolume(t.Context(), a))
	check("after the removal of one", b)
	if n, err := f.Engine.VolumeBytes(t.Context(), a); n != 0 || err != nil {
		t.Errorf("a volume that does not exist has %d bytes (%v)", n, err)
	}
	must(t, f.Engine.RemoveVolume(t.Context(), b))
	check("after the removal of both")
	positions(t, f)
}

// positions are those up to where deployments are followed: never less than before, until they are forgotten.
func positions(t *testing.T, f Fixture) {
	t.Helper()
	at := func(generation uint64) protocol.Position { return protocol.Position{Epoch: 1, Generation: generation} }
	for _, p := range []protocol.Position{at(2), at(3), at(1), {}} {
		must(t, f.Engine.Follow(t.Context(), "followed", p))
	}
	check := func(when string, want protocol.Position) {
		t.Helper()
		if all, err := f.Engine.Followed(t.Context()); err != nil || all["followed"] != want {
			t.Errorf("%s: followed is %v (%v), want %s", when, all, err, want)
		}
	}
	check("at last", at(3))
	for range 2 {
		must(t, f.Engine.Forget(t.Context(), "followed"))
	}
	check("forgotten", protocol.Position{})
	must(t, f.Engine.Follow(t.Context(), "followed", at(1)))
	check("anew", at(1))
	must(t, f.Engine.Forget(t.Context(), "followed"))
}
