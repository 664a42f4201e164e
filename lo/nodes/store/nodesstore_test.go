package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func open(t *testing.T, dir string) (*Store, nodes.Site, []*nodes.Record, []*statefile.Damage) {
	t.Helper()
	s, err := Open(disk.OS, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	site, records, faults, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	return s, site, records, faults
}

func TestWhatIsSavedIsFoundAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, site, records, faults := open(t, dir)
	if len(records) > 0 || len(faults) > 0 {
		t.Fatalf("new store: %d records, faults %v", len(records), faults)
	}
	r := nodes.New("n1")
	r.Presence = protocol.Presence{Online: true, Session: "s"}
	r.Inventory = &protocol.Inventory{Node: "n1", Labels: map[string]string{"a": "b"}}
	r.Deployments["web"] = &nodes.Deployment{
		Status:  protocol.DeploymentStatus{State: lifecycle.Installed, Digest: "d", Components: []protocol.ComponentStatus{{Component: "c"}}},
		Desired: nodes.Desired{Digest: "d", Retry: 1}, Assigned: nodes.Assignment{Digest: "d", Attempt: 2}, Healthy: []protocol.Digest{"d"},
	}
	site.Checkpoint, site.Reported = 7, map[protocol.DeploymentName]protocol.Digest{"web": "x"}
	if err := s.SaveNode(r); err != nil {
		t.Fatal(err)
	}
	if err := s.SaveSite(site); err != nil {
		t.Fatal(err)
	}
	_, again, records, faults := open(t, dir)
	if diff := cmp.Diff(site, again); diff != "" || len(faults) > 0 {
		t.Errorf("site (-saved +found), faults %v:\n%s", faults, diff)
	}
	if diff := cmp.Diff([]*nodes.Record{r}, records); diff != "" {
		t.Errorf("records (-saved +found):\n%s", diff)
	}
}

func TestDamageIsSetAside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _, _, _ := open(t, dir)
	for _, id := range []protocol.NodeID{"n1", "n2"} {
		if err := s.SaveNode(nodes.New(id)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "nodes", "n1.json")
	if err := os.WriteFile(path, []byte(`{"node":`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, records, faults := open(t, dir)
	if len(records) != 1 || records[0].Node != "n2" || len(faults) != 1 || !strings.Contains(faults[0].Error(), path) {
		t.Errorf("%d records, faults %v", len(records), faults)
	}
	if _, err := os.Stat(faults[0].Aside); err != nil || faults[0].Role != NodeRole || faults[0].Name != "n1" {
		t.Errorf("the damaged file is not kept: %v", err)
	}
	if _, _, _, faults := open(t, dir); len(faults) > 0 {
		t.Errorf("the fault does not end: %v", faults)
	}
}

// TestEveryBit flips bits of the files of a store, and swaps them: a record is whole
// or reported as damaged, and the store always opens.
func TestEveryBit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _, _, _ := open(t, dir)
	for _, id := range []protocol.NodeID{"n1", "n2"} {
		r := nodes.New(id)
		r.Position = protocol.Position{Epoch: 1, Generation: 5}
		if err := s.SaveNode(r); err != nil {
			t.Fatal(err)
		}
	}
	path, other := filepath.Join(dir, "nodes", "n1.json"), filepath.Join(dir, "nodes", "n2.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	swapped, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, records, damaged := open(t, dir)
		if len(records) != 1 || records[0].Node != "n2" || len(damaged) != 1 || damaged[0].Name != "n1" {
			t.Fatalf("%s: %d records, damaged %v", what, len(records), damaged)
		}
	}
	for bit := range 8 * len(whole) {
		b := slices.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		check(fmt.Sprintf("bit %d", bit), b)
	}
	check("swapped", swapped)
	check("empty", nil)
	check("zeros", make([]byte, len(whole)))
}

// A file that is none of the LO is reported at each start, and left alone; one that was set aside is not.
func TestFilesThatNobodyReads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log strings.Builder
	s, err := Open(disk.OS, dir, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	foreign, aside := filepath.Join(dir, "nodes", "n1.jsom"), filepath.Join(dir, "nodes", "n1.json.damaged-1")
	if err := errors.Join(os.WriteFile(foreign, []byte("x"), 0o600), os.WriteFile(aside, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	_, records, damaged, err := s.Load()
	if err != nil || len(records)+len(damaged) != 0 || !strings.Contains(log.String(), foreign) || strings.Contains(log.String(), aside) {
		t.Errorf("%d records, damaged %v, %v, log %s; want %s named alone", len(records), damaged, err, log.String(), foreign)
	}
	for _, path := range []string{foreign, aside} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}
