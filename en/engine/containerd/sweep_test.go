package containerd

import (
	"os"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/protocol"
)

// A power cut may leave the id of a container empty.
func TestDamagedIDHoldsUpNoSweep(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	r.run(t, c)
	lost := r.dir("lost")
	if err := os.MkdirAll(lost, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"lost", marks.Key(c.ID)} {
		if err := os.WriteFile(r.dir(k, "id.json"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Sweep(t.Context(), engine.SweepOptions{Removed: []protocol.DeploymentName{"shop"}}); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if list, err := r.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("containers after the sweep: %+v, %v; want none", list, err)
	}
	if err := os.RemoveAll(lost); err != nil {
		t.Fatal(err)
	}
}

// A file of the id whose name rotted into another hides its container from no sweep.
func TestRottenIDHidesNoContainer(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	r.run(t, c)
	path := r.dir(marks.Key(c.ID), "id.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rotten := strings.Replace(string(b), `"shop"`, `"chop"`, 1)
	if rotten == string(b) {
		t.Fatalf("%s has no deployment shop: %s", path, b)
	}
	if err := os.WriteFile(path, []byte(rotten), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Sweep(t.Context(), engine.SweepOptions{Removed: []protocol.DeploymentName{"shop"}}); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if list, err := r.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("containers after the sweep: %+v, %v; want none", list, err)
	}
}
