package lo

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// refusals returns what the journal says of desired states that are refused.
func refusals(t *testing.T, l *LO) []protocol.Adopted {
	t.Helper()
	records, err := l.journal.Read(0, 10_000, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	var out []protocol.Adopted
	for _, r := range records {
		var e protocol.Event
		if err := protocol.Unmarshal(r.Body, &e); err != nil {
			t.Fatal(err)
		}
		if e.Kind != protocol.DesiredRefused {
			continue
		}
		var m protocol.Adopted
		if err := protocol.Unmarshal(e.Body, &m); err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// TestFaultOfRulesIsReported has the CO learn that a desired state is in force but for
// its data rules, once, also over a restart.
func TestFaultOfRulesIsReported(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t) // it accepts nothing: the journal keeps all
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	l := startLO(t, o)
	good := rules(1, protocol.DataRule{Name: "r", Topics: []string{"#"}})
	c.want(good)
	inForce(t, l, good)
	bad := rules(2, protocol.DataRule{Name: "r", Topics: []string{"#/x"}})
	bad.Commit = "c2"
	c.want(bad)
	eventually(t, "the fault is reported", func() bool { return len(refusals(t, l)) > 0 })
	for range 2 { // also after a restart
		stopLO(t, l)
		l = startLO(t, o)
	}
	if f := l.status().DataFault; !strings.Contains(f, "#/x") {
		t.Errorf("fault after a restart: %q", f)
	}
	next := rules(3, protocol.DataRule{Name: "r", Topics: []string{"#/y"}})
	c.want(next)
	eventually(t, "the next fault is reported", func() bool { return len(refusals(t, l)) > 1 || strings.Contains(refusals(t, l)[0].Reason, "#/y") })
	got := refusals(t, l)
	last := got[len(got)-1]
	if last.Position.Generation != 3 {
		t.Errorf("last reported generation %d, want 3", last.Position.Generation)
	}
	if want := `data rule "r"`; !strings.Contains(last.Reason, want) {
		t.Errorf("last reported reason %q, want it to name %s", last.Reason, want)
	}
	if len(got) > 2 {
		t.Errorf("%d reports, want one for each generation: %+v", len(got), got)
	}
	for _, m := range got[:len(got)-1] { // the journal may have superseded it
		if m.Position.Generation != 2 || m.Commit != "c2" {
			t.Errorf("reported generation %d of commit %s, want 2 of c2", m.Position.Generation, m.Commit)
		}
	}
	if n := kinds(t, l)[protocol.DesiredAdopted]; n == 0 {
		t.Error("what there is beside the rules is not adopted")
	}
}

// TestNothingToFetchFrom has a site without co.http say what is wrong.
func TestNothingToFetchFrom(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	l := startLO(t, localOptions(t, c, t.TempDir(), "127.0.0.1:0"))
	m := site1(4, "1", protocol.Policy{})
	m.Deployments[0].Spec = nil
	c.want(m)
	eventually(t, "the refusal is reported", func() bool { return len(refusals(t, l)) == 1 })
	got := refusals(t, l)[0]
	if got.Position.Generation != 4 {
		t.Errorf("reported generation %d, want 4", got.Position.Generation)
	}
	for _, want := range []string{"co.http is not set", "deployment web"} {
		if !strings.Contains(got.Reason, want) {
			t.Errorf("reported reason %q, want it to say %q", got.Reason, want)
		}
	}
}
