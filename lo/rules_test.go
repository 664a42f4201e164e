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
	c := newFakeCO(t) // which takes nothing: the journal keeps all
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	l := startLO(t, o)
	good := rules(1, protocol.DataRule{Name: "r", Topics: []string{"#"}})
	c.want(good)
	inForce(t, l, good)
	bad := rules(2, protocol.DataRule{Name: "r", Topics: []string{"#/x"}})
	bad.Commit = "c2"
	c.want(bad)
	eventually(t, "it is told", func() bool { return len(refusals(t, l)) > 0 })
	for range 2 { // also after a restart
		stopLO(t, l)
		l = startLO(t, o)
	}
	if f := l.status().DataFault; !strings.Contains(f, "#/x") {
		t.Errorf("fault after a restart: %q", f)
	}
	next := rules(3, protocol.DataRule{Name: "r", Topics: []string{"#/y"}})
	c.want(next)
	eventually(t, "the next one is told", func() bool { return len(refusals(t, l)) > 1 || strings.Contains(refusals(t, l)[0].Reason, "#/y") })
	got := refusals(t, l)
	last := got[len(got)-1]
	if last.Generation != 3 || !strings.Contains(last.Reason, `data rule "r"`) {
		t.Errorf("told: %+v", got)
	}
	for _, m := range got[:len(got)-1] {
		if m.Generation != 2 || m.Commit != "c2" || len(got) > 2 {
			t.Errorf("told: %+v", got)
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
	eventually(t, "it is told", func() bool { return len(refusals(t, l)) == 1 })
	if got := refusals(t, l)[0]; got.Generation != 4 || !strings.Contains(got.Reason, "co.http is not set") || !strings.Contains(got.Reason, "deployment web") {
		t.Errorf("told: %+v", got)
	}
}
