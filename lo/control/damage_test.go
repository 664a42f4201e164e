package control

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// TestDamaged reports damage to a journal that accepts events and to one that does not:
// both count it, and the refusal is no error.
func TestDamaged(t *testing.T) {
	t.Parallel()
	j := openJournal(t)
	s := openSite(t, j, openStore(t), nil)
	record := &statefile.Damage{Identity: statefile.Identity{Role: "lo/node", Name: "n1"}}
	positions := &statefile.Damage{Identity: statefile.Identity{Role: "lo/positions"}, Lost: 3}
	checkpoint := &statefile.Damage{Identity: statefile.Identity{Role: "broker/sessions checkpoint", Name: "4"}, Kept: true}
	s.Damaged(t.Context(), nil, record, nil, positions, checkpoint)
	s.Damaged(t.Context(), nil)

	var got []protocol.Loss
	for _, e := range events(t, j, protocol.StateDamaged) {
		var l protocol.Loss
		if err := protocol.Unmarshal(e.Body, &l); err != nil {
			t.Fatal(err)
		}
		got = append(got, l)
	}
	want := []protocol.Loss{
		{V: protocol.Version, Class: record.String(), Records: 1, Uncounted: true},
		{V: protocol.Version, Class: positions.String(), Records: 3},
		{V: protocol.Version, Class: checkpoint.String()},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	closed := openJournal(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	s.journal = eventJournal{closed}
	s.Damaged(t.Context(), record)
	if diff := cmp.Diff(map[string]float64{"lo/node": 2, "lo/positions": 1, "broker/sessions checkpoint": 1}, damagedTotal(t, s)); diff != "" {
		t.Errorf("colony_lo_state_damaged_total by role (-want +got):\n%s", diff)
	}
}

// damagedTotal returns the metric of damage, by role.
func damagedTotal(t *testing.T, s *Site) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(s); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "colony_lo_state_damaged_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			out[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return out
}
