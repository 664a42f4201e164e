package fleetdb_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

func rule(name string, change ...func(*fleet.DataRule)) fleet.DataRule {
	r := fleet.DataRule{DataRule: protocol.DataRule{Name: name, Topics: []string{name + "/#"}, QoS: 1}}
	for _, f := range change {
		f(&r)
	}
	return r
}

// TestSaveDataRules walks a site.yaml through its life, beside one deployment.
func TestSaveDataRules(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	stored := rule("a", func(r *fleet.DataRule) {
		r.Store, r.Keep, r.Metric, r.Fields = true, 36*time.Hour, "m", []string{"/x", "/y"}
		r.Sample = protocol.Sample{Mode: protocol.SampleDeadband, Deadband: 0.1, Percent: true}
	})
	other := stored
	other.Keep = time.Hour
	devices := []protocol.DeviceAccount{{User: "plc-7", Publish: []string{"line1/#"}, SHA256: make([]byte, 32)}}
	windows := &protocol.Maintenance{TimeZone: "Europe/Berlin", Windows: []protocol.Window{{Days: 1, Start: 60, Minutes: 30}}}
	list := []fleet.Desired{want("d", "1", "c1")}
	for _, step := range []struct {
		name       string
		data       fleet.SiteData
		generation uint64
		events     []string
	}{
		{"no file", fleet.SiteData{}, 1, []string{fleet.DeploymentCreated + " "}},
		{"two rules", fleet.SiteData{Commit: "c1", Rules: []fleet.DataRule{stored, rule("b")}}, 2, []string{fleet.DataRulesChanged + " 2 rules"}},
		{"the same in another commit", fleet.SiteData{Commit: "c2", Rules: []fleet.DataRule{stored, rule("b")}}, 2, nil},
		{"the order counts", fleet.SiteData{Commit: "c3", Rules: []fleet.DataRule{rule("b"), stored}}, 3, []string{fleet.DataRulesChanged + " 2 rules"}},
		{"what only the CO does", fleet.SiteData{Commit: "c4", Rules: []fleet.DataRule{rule("b"), other}}, 3, []string{fleet.DataRulesChanged + " 2 rules"}},
		{"a bad file", fleet.SiteData{Commit: "c5", Rules: []fleet.DataRule{rule("b"), other}, Problem: "line 1: no"}, 3, []string{fleet.DataRulesInvalid + " line 1: no"}},
		{"the same bad file", fleet.SiteData{Commit: "c5", Rules: []fleet.DataRule{rule("b"), other}, Problem: "line 1: no"}, 3, nil},
		{"fixed", fleet.SiteData{Commit: "c6", Rules: []fleet.DataRule{rule("b")}}, 4, []string{fleet.DataRulesChanged + " 1 rule"}},
		{"a device", fleet.SiteData{Commit: "c7", Rules: []fleet.DataRule{rule("b")}, Devices: devices}, 5, []string{fleet.DevicesChanged + " device accounts: 1"}},
		{"the same with a bad file", fleet.SiteData{Commit: "c8", Rules: []fleet.DataRule{rule("b")}, Devices: devices, Problem: "no"}, 5, []string{fleet.DataRulesInvalid + " no"}},
		{"programs allowed", fleet.SiteData{Commit: "c8", Rules: []fleet.DataRule{rule("b")}, Devices: devices, Problem: "no", Exec: true}, 5, nil},
		{"windows", fleet.SiteData{Commit: "c9", Devices: devices, Maintenance: windows}, 6, []string{fleet.DataRulesChanged + " no rules", fleet.MaintenanceChanged + " maintenance windows: 1, in Europe/Berlin"}},
		{"the same windows", fleet.SiteData{Commit: "c10", Devices: devices, Maintenance: windows}, 6, nil},
		{"removed", fleet.SiteData{}, 7, []string{fleet.DevicesChanged + " device accounts: 0", fleet.MaintenanceChanged + " no maintenance windows: changes are carried out at any time"}},
	} {
		last := testpart.Must[int64](t)(s.LastEvent(ctx))
		out, _, err := s.SaveDesired(ctx, "home", "c", list, step.data)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if d := cmp.Diff(out, testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home"))); d != "" || out.Position.Generation != step.generation {
			t.Errorf("%s: generation %d, want %d; (-saved +read)\n%s", step.name, out.Position.Generation, step.generation, d)
		}
		if d := cmp.Diff(step.data, testpart.Must[fleet.SiteData](t)(s.SiteData(ctx, "home"))); d != "" {
			t.Errorf("%s: (-saved +read)\n%s", step.name, d)
		}
		if d := cmp.Diff(step.data.Rules, testpart.Must[[]fleet.DataRule](t)(s.DataRules(ctx, "home"))); d != "" {
			t.Errorf("%s: rules (-saved +read)\n%s", step.name, d)
		}
		var reported []protocol.DataRule
		for _, r := range step.data.Rules {
			reported = append(reported, r.DataRule)
		}
		if d := cmp.Diff(step.data.Devices, out.Devices); d != "" {
			t.Errorf("%s: accounts in the message (-want +got)\n%s", step.name, d)
		}
		if d := cmp.Diff(step.data.Maintenance, out.Maintenance); d != "" {
			t.Errorf("%s: windows in the message (-want +got)\n%s", step.name, d)
		}
		if d := cmp.Diff(reported, out.Data); d != "" {
			t.Errorf("%s: message (-want +got)\n%s", step.name, d)
		}
		var events []string
		for _, e := range testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{After: last})) {
			events = append(events, e.Kind+" "+e.Message)
		}
		if d := cmp.Diff(step.events, events); d != "" {
			t.Errorf("%s: events (-want +got)\n%s", step.name, d)
		}
	}
	if rules := testpart.Must[[]fleet.DataRule](t)(s.DataRules(ctx, "unknown")); len(rules) != 0 {
		t.Errorf("a site that is not known has %v", rules)
	}
}
