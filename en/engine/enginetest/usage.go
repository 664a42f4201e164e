package enginetest

import (
	"testing"

	"github.com/colonyfleet/colony/en/engine"
)

// usage asks what containers use: of two one runs.
func usage(t *testing.T, f Fixture) {
	c := web(f, "wait")
	absent := engine.ID{Deployment: "shop", Component: "main", Name: "absent"}
	ids := []engine.ID{absent, c.ID}
	measure := func() []engine.Usage {
		t.Helper()
		all, err := f.Engine.Usage(t.Context(), ids)
		must(t, err)
		return all
	}
	if all := measure(); len(all) > 0 {
		t.Fatalf("before the start: %+v", all)
	}
	begin(t, f.Engine, c)
	f.Ready(t, c.ID)
	first := measure()
	if len(first) != 1 || first[0].ID != c.ID || first[0].Memory == 0 || !first[0].HasNetwork {
		t.Fatalf("of %v: %+v, want the memory and the network of the one that runs", ids, first)
	}
	second := measure()
	if len(second) != 1 || second[0].CPU < first[0].CPU || second[0].Received < first[0].Received || second[0].Read < first[0].Read {
		t.Errorf("%+v after %+v: a count went down", second, first)
	}
	must(t, f.Engine.Stop(t.Context(), c.ID, patience))
	if all := measure(); len(all) > 0 {
		t.Errorf("after its end: %+v", all)
	}
	must(t, f.Engine.Remove(t.Context(), c.ID))
}
