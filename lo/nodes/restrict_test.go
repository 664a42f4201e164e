package nodes

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// kinds are the restrictions in force.
func kinds(r *Record) (out []restriction.Kind) {
	for _, x := range r.Restrictions {
		out = append(out, x.Kind)
	}
	return out
}

// body is the report in a fact.
func body(t *testing.T, f Fact) restriction.Report {
	t.Helper()
	var m restriction.Report
	if err := restriction.Unmarshal(f.Event.Body, &m); err != nil || f.Event.Kind != protocol.NodeRestrictions {
		t.Fatalf("fact of kind %s: %v", f.Event.Kind, err)
	}
	return m
}

func TestRestrict(t *testing.T) {
	t.Parallel()
	r := New("n1")
	for _, step := range []struct {
		do    command.Kind
		want  []restriction.Kind
		facts int
	}{
		{command.Uncordon, nil, 0},
		{command.Hold, []restriction.Kind{"hold"}, 1},
		{command.Cordon, []restriction.Kind{"cordon", "hold"}, 1},
		{command.Drain, []restriction.Kind{"drain", "hold"}, 1},
		{command.Cordon, []restriction.Kind{"cordon", "hold"}, 1},
		{command.Release, []restriction.Kind{"cordon"}, 1},
		{command.Release, []restriction.Kind{"cordon"}, 0},
		{command.Uncordon, nil, 1},
	} {
		out := r.Restrict(Change{Do: step.do, Reason: "why", Actor: "anna"}, Clock{Boot: "b"}, noon)
		if diff := cmp.Diff(step.want, kinds(r)); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", step.do, diff)
		}
		if len(out.Facts) != step.facts {
			t.Errorf("after %s: %d facts, want %d", step.do, len(out.Facts), step.facts)
		}
		for _, f := range out.Facts {
			want := &restriction.Change{Did: string(step.do), Reason: "why", Actor: "anna", Local: true}
			if m := body(t, f); f.Key != "" || cmp.Diff(want, m.Change) != "" {
				t.Errorf("after %s: key %q, %s: no later fact may replace who did what", step.do, f.Key, cmp.Diff(want, m.Change))
			}
		}
	}
}

func TestACommandIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	r := New("n1")
	cordon := Change{Do: command.Cordon, Reason: "why", Command: "c1"}
	r.Restrict(cordon, Clock{}, noon)
	r.Restrict(Change{Do: command.Uncordon}, Clock{}, noon)
	if out := r.Restrict(cordon, Clock{}, noon); !out.Duplicate || len(r.Restrictions) != 0 {
		t.Errorf("the command once more: %+v, %v in force", out, kinds(r))
	}
	replayed := New("n1")
	for _, change := range []Change{cordon, {Do: command.Uncordon, Command: "c2"}} {
		for _, f := range New("n1").Restrict(change, Clock{}, noon).Facts {
			replayed.Replay(f.Event)
		}
	}
	if out := replayed.Restrict(cordon, Clock{}, noon); !out.Duplicate {
		t.Error("a record that was restored from the journal carries the command out once more")
	}
}

// TestRestrictionsEnd follows what is left over restarts of the LO, a reboot, and with the time of the CO.
func TestRestrictionsEnd(t *testing.T) {
	t.Parallel()
	const every = 10 * time.Minute
	set := func() *Record {
		r := New("n1")
		r.Restrict(Change{Do: command.Hold, Reason: "why", Command: "c1", For: time.Hour, UntilMillis: 3_600_000}, Clock{Boot: "a", SinceBoot: time.Hour, COMillis: 600_000}, noon)
		return r
	}
	hour := time.Hour
	for _, tt := range []struct {
		name   string
		clocks []Clock
		over   bool
		next   time.Duration
	}{
		{"at once", []Clock{{Boot: "a", SinceBoot: hour}}, false, every},
		{"the time of the command until it came counts", []Clock{{Boot: "a", SinceBoot: hour + 45*time.Minute}}, false, 5 * time.Minute},
		{"its end", []Clock{{Boot: "a", SinceBoot: hour + 50*time.Minute}}, true, 0},
		{"a reboot, and nothing was counted before", []Clock{{Boot: "b", SinceBoot: 49 * time.Minute}}, false, time.Minute},
		{"a reboot, and 40 minutes were counted before", []Clock{{Boot: "a", SinceBoot: hour + 40*time.Minute}, {Boot: "b", SinceBoot: 9 * time.Minute}}, false, time.Minute},
		{"its end after a reboot", []Clock{{Boot: "a", SinceBoot: hour + 40*time.Minute}, {Boot: "b", SinceBoot: 10 * time.Minute}}, true, 0},
		{"after a reboot the time of the CO says that it is over", []Clock{{Boot: "b", SinceBoot: time.Minute, COMillis: 3_600_000}}, true, 0},
		{"after a reboot the time of the CO says that it is not", []Clock{{Boot: "b", SinceBoot: time.Minute, COMillis: 3_540_000}}, false, time.Minute},
		{"in the same boot the time of the CO, which is the latest that it can be, ends nothing", []Clock{{Boot: "a", SinceBoot: hour, COMillis: 9_000_000}}, false, every},
	} {
		r := set()
		var out Outcome
		var next time.Duration
		for _, c := range tt.clocks {
			out, next = r.ExpireRestrictions(c, every, noon)
		}
		if over := len(r.Restrictions) == 0; over != tt.over || next != tt.next {
			t.Errorf("%s: over %t, again after %s; want %t, %s", tt.name, over, next, tt.over, tt.next)
		}
		if tt.over != (len(out.Facts) == 1) {
			t.Errorf("%s: %d facts", tt.name, len(out.Facts))
		}
	}
}

// TestNeverEndsEarly: whatever restarts and reboots there are, a restriction lasts as long as it was set for, and ends once it has
// been counted for so long in one boot.
func TestNeverEndsEarly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := New("n1")
		lasts := time.Duration(rapid.IntRange(1, 300).Draw(t, "minutes")) * time.Minute
		boot, since, passed := 0, time.Hour, time.Duration(0)
		clock := func() Clock { return Clock{Boot: string(rune('a' + boot%26)), SinceBoot: since} }
		r.Restrict(Change{Do: command.Hold, Reason: "why", For: lasts}, clock(), noon)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			step := time.Duration(rapid.IntRange(0, 60).Draw(t, "step")) * time.Minute
			passed += step
			since += step
			if rapid.Bool().Draw(t, "reboot") {
				boot, since = boot+1, min(step, time.Minute)
			}
			r.ExpireRestrictions(clock(), 10*time.Minute, noon)
			if len(r.Restrictions) == 0 {
				if passed < lasts {
					t.Fatalf("it ended after %s of %s", passed, lasts)
				}
				return
			}
		}
		since += lasts
		if r.ExpireRestrictions(clock(), 10*time.Minute, noon); len(r.Restrictions) != 0 {
			t.Fatalf("it has not ended after %s in one boot", lasts)
		}
	})
}

func TestWaitsAreReportedOnce(t *testing.T) {
	t.Parallel()
	r := New("n1")
	waits := []restriction.Wait{{Deployment: "web", Why: "held"}}
	if out := r.SetWaits(noon, waits); len(out.Facts) != 1 || out.Facts[0].Key == "" {
		t.Errorf("the first time: %+v, want one fact that a later one may replace", out)
	}
	if out := r.SetWaits(noon, waits); len(out.Facts) != 0 || out.Changed {
		t.Errorf("once more: %+v", out)
	}
	replayed := New("n1")
	replayed.Replay(r.SetWaits(noon, nil).Facts[0].Event)
	if len(replayed.Waits) != 0 {
		t.Errorf("replayed: %v", replayed.Waits)
	}
}
