package plan

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func assign(v string, attempt uint32) protocol.Assignment {
	spec := protocol.Marshal(protocol.DeploymentSpec{
		V: 1, Deployment: "app", App: "a", AppVersion: v,
		Components: []protocol.Component{{Name: "c", Containers: []protocol.Container{{Name: "k", Image: "r/" + v}}}},
	})
	return protocol.Assignment{Deployment: "app", Digest: protocol.DigestOf(spec), Spec: spec, Attempt: attempt}
}

func back(a protocol.Assignment) protocol.Assignment {
	a.Rollback = true
	return a
}

// refusing has an assignment say what was given up for its version.
func refusing(a, refused protocol.Assignment) protocol.Assignment {
	a.Refused = refused.Digest
	return a
}

func again(a protocol.Assignment) protocol.Assignment {
	a.Attempt++
	return a
}

func refusedOf(r Record, refused protocol.Assignment) Record {
	r.Refused = refused.Digest
	return r
}

func desired(assignments ...protocol.Assignment) *protocol.NodeDesired {
	return &protocol.NodeDesired{V: 1, Node: "n", Position: protocol.Position{Epoch: 1, Generation: 9}, Assignments: assignments}
}

// at returns a record of an assignment in a state.
func at(state lifecycle.State, a protocol.Assignment, healthy ...protocol.Assignment) Record {
	r := Record{
		Deployment: "app", State: state, Digest: a.Digest, Spec: a.Spec, Attempt: a.Attempt, Rollback: a.Rollback,
		Position: protocol.Position{Epoch: 1, Generation: 8},
	}
	if state == lifecycle.Installed {
		r = r.Installed()
	}
	if state == lifecycle.Failed {
		r.Code, r.Message = protocol.CrashLoop, "boom"
	}
	for _, h := range healthy {
		r.Healthy, r.HealthyImages = h.Digest, Images(h.Spec)
	}
	return r
}

func TestPlan(t *testing.T) {
	t.Parallel()
	v1, v2, v3 := assign("1", 1), assign("2", 1), assign("3", 1)
	damaged, foreign := assign("1", 1), assign("1", 1)
	damaged.Spec = damaged.Spec[1:]
	foreign.Deployment = "other"
	empty := protocol.Assignment{Deployment: "app", Spec: protocol.Marshal(protocol.DeploymentSpec{V: 1, Deployment: "app"}), Attempt: 1}
	empty.Digest = protocol.DigestOf(empty.Spec)
	otherEpoch := desired(v1)
	otherEpoch.Position.Epoch = 2
	removing := func(r protocol.NodeRemoval) *protocol.NodeDesired {
		d := desired()
		r.Deployment = "app"
		d.Removals = []protocol.NodeRemoval{r}
		return d
	}
	moved, tombstone := removing(protocol.NodeRemoval{}), removing(protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 5}, Volumes: true})
	assignedAt := func(generation uint64) *Record {
		r := at(lifecycle.Installed, v1)
		r.Site = protocol.Position{Epoch: 1, Generation: generation}
		return &r
	}
	answered, unanswered := at(lifecycle.Deleted, v1), at(lifecycle.Deleted, v1)
	answered.Position.Generation, unanswered.Reports = 9, []protocol.DeploymentStatus{{}}
	stranger := []engine.Status{{ID: engine.ID{Deployment: "stranger"}}}
	known := []engine.Status{{ID: engine.ID{Deployment: "app"}}}
	for _, c := range []struct {
		name     string
		desired  *protocol.NodeDesired
		record   *Record
		observed []engine.Status
		want     string // kind from>state digest
	}{
		{"no desired state yet, empty", nil, nil, nil, ""},
		{"no desired state yet, unknown containers stay", nil, nil, stranger, ""},
		{"no desired state yet, nothing is removed", nil, ref(at(lifecycle.Installed, v1)), nil, ""},
		{"first install", desired(v1), nil, nil, "begin >INSTALLING 1"},
		{"first word is a rollback", desired(back(v1)), nil, nil, "begin >ROLLINGBACK 1"},
		{"installed and wanted", desired(v1), ref(at(lifecycle.Installed, v1)), known, ""},
		{"installing goes on", desired(v1), ref(at(lifecycle.Installing, v1)), nil, ""},
		{"update", desired(v2), ref(at(lifecycle.Installed, v1)), nil, "begin INSTALLED>UPDATING 2"},
		{"another version while installing", desired(v2), ref(at(lifecycle.Installing, v1)), nil, "begin INSTALLING>UPDATING 2"},
		{"another version while updating", desired(v3), ref(at(lifecycle.Updating, v2, v1)), nil, "begin UPDATING>UPDATING 3"},
		{"another version while rolling back", desired(v3), ref(at(lifecycle.RollingBack, back(v1), v1)), nil, "begin ROLLINGBACK>UPDATING 3"},
		{"manual rollback", desired(back(v1)), ref(at(lifecycle.Installed, v2)), nil, "begin INSTALLED>ROLLINGBACK 1"},
		{"rollback while updating", desired(back(v1)), ref(at(lifecycle.Updating, v2, v1)), nil, "begin UPDATING>ROLLINGBACK 1"},
		{"rollback after a failure", desired(back(v1)), ref(at(lifecycle.Failed, v2, v1)), nil, "begin FAILED>ROLLINGBACK 1 refused 2 crash_loop"},
		{"rollback, the record was lost", desired(refusing(back(v1), v2)), nil, nil, "begin >ROLLINGBACK 1 refused 2"},
		{"rollback after a failure, with what is refused", desired(refusing(back(v1), v2)), ref(at(lifecycle.Failed, v2, v1)), nil, "begin FAILED>ROLLINGBACK 1 refused 2 crash_loop"},
		{"the rollback is tried again", desired(refusing(again(v1), v2)), ref(at(lifecycle.Failed, back(v1), v1)), nil, "begin FAILED>UPDATING 1 refused 2"},
		{"rolled back, and what is refused was lost", desired(refusing(back(v1), v2)), ref(at(lifecycle.Installed, back(v1))), nil, "note INSTALLED>INSTALLED 1 refused 2"},
		{"recovering, and what is refused was lost", desired(refusing(back(v1), v2)), ref(at(lifecycle.Failed, back(v1), v1)), nil, "note FAILED>FAILED 1 refused 2"},
		{"rolled back stays, with what is refused", desired(refusing(back(v1), v2)), ref(refusedOf(at(lifecycle.Installed, back(v1)), v2)), nil, ""},
		{"rolled back stays", desired(back(v1)), ref(at(lifecycle.Installed, back(v1))), nil, ""},
		{"rollback that failed waits", desired(back(v1)), ref(at(lifecycle.Failed, back(v1), v1)), nil, ""},
		{"failed waits", desired(v1), ref(at(lifecycle.Failed, v1)), nil, ""},
		{"retry of an install", desired(assign("1", 2)), ref(at(lifecycle.Failed, v1)), nil, "begin FAILED>INSTALLING 1"},
		{"retry of an update", desired(assign("2", 2)), ref(at(lifecycle.Failed, v2, v1)), nil, "begin FAILED>UPDATING 2"},
		{"new version after a failed install", desired(v2), ref(at(lifecycle.Failed, v1)), nil, "begin FAILED>INSTALLING 2"},
		{"attempt counted on while it works", desired(assign("1", 2)), ref(at(lifecycle.Installed, v1)), nil, "note INSTALLED>INSTALLED 1"},
		{"another epoch changes nothing", otherEpoch, ref(at(lifecycle.Installed, v1)), nil, ""},
		{"not named", desired(), ref(at(lifecycle.Installed, v1)), known, ""},
		{"not named while installing", desired(), ref(at(lifecycle.Installing, v1)), nil, ""},
		{"moved", moved, ref(at(lifecycle.Installed, v1)), nil, "begin INSTALLED>DELETING 1"},
		{"moved while installing", moved, ref(at(lifecycle.Installing, v1)), nil, "begin INSTALLING>DELETING 1"},
		{"moved after a failure", moved, ref(at(lifecycle.Failed, v1)), nil, "begin FAILED>DELETING 1"},
		{"removed", tombstone, assignedAt(4), nil, "begin INSTALLED>DELETING 1 volumes"},
		{"tombstone of before the assignment", tombstone, assignedAt(6), nil, ""},
		{"removal whose record was lost", tombstone, nil, known, "begin >DELETING  volumes"},
		{"removal goes on", moved, ref(at(lifecycle.Deleting, v1)), nil, ""},
		{"removal goes on, now with the volumes", tombstone, ref(at(lifecycle.Deleting, v1)), nil, "begin DELETING>DELETING 1 volumes"},
		{"removal goes on without being named", desired(), ref(at(lifecycle.Deleting, v1)), nil, ""},
		{"removed, and answered", moved, ref(answered), nil, ""},
		{"removed, and asked once more", moved, ref(at(lifecycle.Deleted, v1)), nil, "note DELETED>DELETED 1"},
		{"removed, and left over", moved, ref(answered), known, "sweep"},
		{"removed, and the LO knows it", desired(), ref(at(lifecycle.Deleted, v1)), nil, "forget DELETED>DELETED 1"},
		{"removed, and the LO does not know it", desired(), ref(unanswered), nil, ""},
		{"wanted again while it goes", desired(v1), ref(at(lifecycle.Deleting, v1)), nil, "begin DELETING>INSTALLING 1"},
		{"wanted again when it is gone", desired(v2), ref(at(lifecycle.Deleted, v1)), nil, "begin DELETED>INSTALLING 2"},
		{"damaged spec", desired(damaged), nil, nil, "begin INSTALLING>FAILED 1 digest_mismatch"},
		{"damaged spec once only", desired(damaged), ref(at(lifecycle.Failed, damaged)), nil, ""},
		{"damaged update", desired(damaged), ref(at(lifecycle.Installed, v2)), nil, "begin UPDATING>FAILED 1 digest_mismatch"},
		{"spec of another deployment", desired(foreign), nil, nil, "begin INSTALLING>FAILED 1 incompatible"},
		{"empty spec", desired(empty), nil, nil, "begin INSTALLING>FAILED  incompatible"},
		{"unknown containers stay", desired(v1), ref(at(lifecycle.Installed, v1)), stranger, ""},
		{"containers of an assignment to come", desired(v1), nil, known, "begin >INSTALLING 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var records []Record
			if c.record != nil {
				records = append(records, *c.record)
			}
			got := ""
			for _, a := range Plan(c.desired, records, c.observed) {
				got += describe(a, map[protocol.Digest]string{v1.Digest: "1", v2.Digest: "2", v3.Digest: "3"})
				if a.Kind == Begin && a.Record.State != lifecycle.Failed {
					if again, ok := Next(&a.Record, AssignmentFor(c.desired, a.Record.Deployment)); ok {
						t.Errorf("not level-triggered: the plan for its own outcome is %+v", again)
					}
				}
			}
			if got != c.want {
				t.Errorf("plan %q, want %q", got, c.want)
			}
		})
	}
}

func ref(r Record) *Record { return &r }

func describe(a Action, names map[protocol.Digest]string) string {
	if a.Kind == Sweep {
		return "sweep"
	}
	s := fmt.Sprintf("%s %s>%s %s", map[Kind]string{Begin: "begin", Note: "note", Forget: "forget"}[a.Kind], a.From, a.Record.State, names[a.Record.Digest])
	if a.Record.Refused != "" && (a.Record.State != lifecycle.RollingBack || a.Record.Code != "" || a.From == "") {
		s += " refused " + names[a.Record.Refused]
	}
	if a.Record.Volumes {
		s += " volumes"
	}
	if a.Record.Code != "" && a.Kind == Begin {
		s += " " + string(a.Record.Code)
	}
	return s
}

func TestSupersedes(t *testing.T) {
	t.Parallel()
	held := &protocol.NodeDesired{Position: protocol.Position{Epoch: 1, Generation: 5}}
	for _, c := range []struct {
		held *protocol.NodeDesired
		next protocol.NodeDesired
		want bool
	}{
		{nil, protocol.NodeDesired{}, true},
		{held, protocol.NodeDesired{Position: protocol.Position{Epoch: 1, Generation: 6}}, true},
		{held, protocol.NodeDesired{Position: protocol.Position{Epoch: 1, Generation: 5}}, false},
		{held, protocol.NodeDesired{Position: protocol.Position{Epoch: 1, Generation: 4}}, false},
		{held, protocol.NodeDesired{Position: protocol.Position{Epoch: 2, Generation: 1}}, true},
	} {
		if got := Supersedes(c.held, &c.next); got != c.want {
			t.Errorf("%+v over %+v: %v", c.next, c.held, got)
		}
	}
}

func TestReportAfterRollbackNamesBoth(t *testing.T) {
	t.Parallel()
	v1, v2 := assign("1", 1), assign("2", 1)
	a, _ := Next(ref(at(lifecycle.Failed, v2, v1)), AssignmentFor(desired(back(v1)), "app"))
	rec := a.Record.Installed()
	got := rec.Report(lifecycle.RollingBack)
	want := protocol.DeploymentStatus{
		V: 1, Deployment: "app", Position: protocol.Position{Epoch: 1, Generation: 9}, From: lifecycle.RollingBack, State: lifecycle.Installed, Actor: lifecycle.EN,
		Digest: v1.Digest, Refused: v2.Digest, App: "a", AppVersion: "1", Attempt: 1, Code: protocol.CrashLoop, Message: "boom",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// The next update forgets about it.
	next, _ := Next(&rec, AssignmentFor(desired(assign("3", 1)), "app"))
	if done := next.Record.Installed(); done.Refused != "" || done.Code != "" || done.Message != "" {
		t.Errorf("after a later update: %+v", done)
	}
}

// TestFormerVersionRunsBetweenAttempts follows an update that fails twice, and says at each
// step which version is to run and which is reported to.
func TestFormerVersionRunsBetweenAttempts(t *testing.T) {
	t.Parallel()
	v1, v2, v3 := assign("1", 1), assign("2", 1), assign("3", 1)
	names := map[protocol.Digest]string{v1.Digest: "1", v2.Digest: "2", v3.Digest: "3"}
	failure := Failure{protocol.ProbeFailed, "no"}
	begin := func(a protocol.Assignment) func(Record) Record {
		return func(r Record) Record {
			action, ok := Next(&r, AssignmentFor(desired(a), "app"))
			if !ok {
				t.Fatalf("nothing is due about %+v", r)
			}
			return action.Record
		}
	}
	second := v2
	second.Attempt = 2
	unwilling := v2
	unwilling.NoRollback = true
	type step struct {
		name string
		do   func(Record) Record
		want string // state, digest, what runs, what is reported to run
	}
	fail := func(r Record) Record { return r.Failed(failure) }
	for name, steps := range map[string][]step{
		"retried and rolled back": {
			{"begin", begin(v2), "UPDATING 2 runs 1 reported 1"},
			{"cut over", Record.CutOver, "UPDATING 2 runs  reported "},
			{"fail", fail, "FAILED 2 runs 1 reported 1"},
			{"begin anew", begin(second), "UPDATING 2 runs 1 reported 1"},
			{"fail before the cut-over", fail, "FAILED 2 runs 1 reported 1"},
			{"another version", begin(v3), "UPDATING 3 runs 1 reported 1"},
			{"cut over anew", Record.CutOver, "UPDATING 3 runs  reported "},
			{"fail anew", fail, "FAILED 3 runs 1 reported 1"},
			{"roll back", begin(back(v1)), "ROLLINGBACK 1 runs 1 reported 1"},
			{"up", Record.Installed, "INSTALLED 1 runs 1 reported "},
		},
		"another version after the cut-over": {
			{"begin", begin(v2), "UPDATING 2 runs 1 reported 1"},
			{"cut over", Record.CutOver, "UPDATING 2 runs  reported "},
			{"another version", begin(v3), "UPDATING 3 runs  reported "},
			{"fail", fail, "FAILED 3 runs 1 reported 1"},
		},
		"the update fails once it was up": {
			{"begin", begin(v2), "UPDATING 2 runs 1 reported 1"},
			{"cut over", Record.CutOver, "UPDATING 2 runs  reported "},
			{"up", Record.Installed, "INSTALLED 2 runs 2 reported "},
			{"fail", fail, "FAILED 2 runs 1 reported 1"},
			{"begin anew", begin(second), "UPDATING 2 runs 1 reported 1"},
			{"cut over anew", Record.CutOver, "UPDATING 2 runs  reported "},
			{"up anew", Record.Installed, "INSTALLED 2 runs 2 reported "},
			{"fail anew", fail, "FAILED 2 runs 1 reported 1"},
			{"roll back", begin(back(v1)), "ROLLINGBACK 1 runs 1 reported 1"},
			{"up again", Record.Installed, "INSTALLED 1 runs 1 reported "},
			{"the way back fails", fail, "FAILED 1 runs  reported "},
		},
		"the update fails once it was up, by a policy that forbids to go back": {
			{"begin", begin(unwilling), "UPDATING 2 runs 1 reported 1"},
			{"cut over", Record.CutOver, "UPDATING 2 runs  reported "},
			{"up", Record.Installed, "INSTALLED 2 runs 2 reported "},
			{"fail", fail, "FAILED 2 runs  reported "},
		},
		"the update fails once it was proven": {
			{"begin", begin(v2), "UPDATING 2 runs 1 reported 1"},
			{"cut over", Record.CutOver, "UPDATING 2 runs  reported "},
			{"up", Record.Installed, "INSTALLED 2 runs 2 reported "},
			{"proven", Record.HasProven, "INSTALLED 2 runs 2 reported "},
			{"fail", fail, "FAILED 2 runs 2 reported 2"},
		},
		"another version follows one that is not proven": {
			{"begin", begin(v2), "UPDATING 2 runs 1 reported 1"},
			{"cut over", Record.CutOver, "UPDATING 2 runs  reported "},
			{"up", Record.Installed, "INSTALLED 2 runs 2 reported "},
			{"another version", begin(v3), "UPDATING 3 runs 2 reported 2"},
			{"cut over anew", Record.CutOver, "UPDATING 3 runs  reported "},
			{"up anew", Record.Installed, "INSTALLED 3 runs 3 reported "},
			{"fail", fail, "FAILED 3 runs 2 reported 2"},
		},
		"rolled back by hand from one that is not proven": {
			{"begin", begin(v2), "UPDATING 2 runs 1 reported 1"},
			{"cut over", Record.CutOver, "UPDATING 2 runs  reported "},
			{"up", Record.Installed, "INSTALLED 2 runs 2 reported "},
			{"roll back", begin(back(v1)), "ROLLINGBACK 1 runs 2 reported 2"},
			{"cut over anew", Record.CutOver, "ROLLINGBACK 1 runs  reported "},
			{"up again", Record.Installed, "INSTALLED 1 runs 1 reported "},
			{"fail", fail, "FAILED 1 runs  reported "},
		},
		"the policy forbids to go back": {
			{"begin", begin(unwilling), "UPDATING 2 runs 1 reported 1"},
			{"cut over", Record.CutOver, "UPDATING 2 runs  reported "},
			{"fail", fail, "FAILED 2 runs  reported "},
		},
		"the way back fails": {
			{"begin", begin(v2), "UPDATING 2 runs 1 reported 1"},
			{"cut over", Record.CutOver, "UPDATING 2 runs  reported "},
			{"roll back", begin(back(v1)), "ROLLINGBACK 1 runs  reported "},
			{"fail", fail, "FAILED 1 runs  reported "},
		},
		"removed meanwhile": {
			{"begin", begin(v2), "UPDATING 2 runs 1 reported 1"},
			{"cut over", Record.CutOver, "UPDATING 2 runs  reported "},
			{"removed", Record.Deleted, "DELETED 2 runs  reported "},
			{"another version", begin(v3), "INSTALLING 3 runs  reported "},
			{"fail", fail, "FAILED 3 runs  reported "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := at(lifecycle.Installed, v1)
			for _, s := range steps {
				from := rec.State
				rec = s.do(rec)
				m := rec.Report(from)
				if got := fmt.Sprintf("%s %s runs %s reported %s", rec.State, names[rec.Digest], names[rec.Active], m.RunningVersion); got != s.want {
					t.Fatalf("%s: %q, want %q", s.name, got, s.want)
				}
				if names[m.Running] != m.RunningVersion {
					t.Errorf("%s: reported version %q, digest %s", s.name, m.RunningVersion, m.Running)
				}
				if up := rec.StaysUp(); rec.State == lifecycle.Failed && rec.Active != "" && up.AppVersion != names[rec.Active] {
					t.Errorf("%s: %s stays up, want %s", s.name, up.AppVersion, names[rec.Active])
				}
			}
		})
	}
}

// TestTransitionsAreLegal walks through random desired states and outcomes, and checks each
// report against the lifecycle's table.
func TestTransitionsAreLegal(t *testing.T) {
	t.Parallel()
	versions := []string{"1", "2", "3"}
	rapid.Check(t, func(t *rapid.T) {
		var rec *Record
		for range 40 {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0: // a desired state
				d := desired()
				switch rapid.IntRange(0, 3).Draw(t, "list") {
				case 0:
					d.Removals = []protocol.NodeRemoval{{Deployment: "app", Volumes: rapid.Bool().Draw(t, "volumes")}}
				case 1:
				default:
					a := assign(rapid.SampledFrom(versions).Draw(t, "version"), uint32(rapid.IntRange(1, 3).Draw(t, "attempt")))
					a.Rollback = rapid.Bool().Draw(t, "rollback")
					d = desired(a)
				}
				a, ok := Next(rec, AssignmentFor(d, "app"))
				if !ok {
					continue
				}
				if removes := a.Record.State == lifecycle.Deleting && a.From != lifecycle.Deleting; removes && len(d.Removals) == 0 {
					t.Fatalf("%s is removed, and nobody asked for it", a.From)
				}
				if a.Kind == Forget {
					rec = nil
					continue
				}
				if again, ok := Next(&a.Record, AssignmentFor(d, "app")); ok {
					t.Fatalf("the desired state %+v is due again after %+v: %+v", d.Assignments, a.Record, again)
				}
				if a.Kind == Begin && a.Record.State == lifecycle.Installed {
					t.Fatalf("%s is INSTALLED by an assignment", a.Record.Digest)
				}
				rec = ref(a.Record)
			case 1, 2: // an outcome
				if rec == nil {
					continue
				}
				next, ok := outcome(*rec, rapid.Bool().Draw(t, "well"))
				if !ok {
					continue
				}
				m := next.Report(rec.State)
				if err := lifecycle.Check(m.From, m.State, m.Actor); err != nil {
					t.Fatal(err)
				}
				if next.State == lifecycle.Installed && (next.Active != next.Digest || next.Healthy != next.Digest) {
					t.Fatalf("INSTALLED with active %s, healthy %s", next.Active, next.Healthy)
				}
				if len(next.EarlierSpec) > 0 && next.State != lifecycle.Installed {
					t.Fatalf("%s holds the version before the one that was INSTALLED", next.State)
				}
				if next.State == lifecycle.Failed && next.Active == next.Digest {
					t.Fatal("a failed version is to be kept running")
				}
				rec = &next
			case 3: // the LO has all reports
				if rec != nil && rec.State == lifecycle.Deleted {
					rec = nil
				}
			}
		}
	})
}

func outcome(r Record, well bool) (Record, bool) {
	switch r.State {
	case lifecycle.Installing, lifecycle.Updating, lifecycle.RollingBack:
		if well {
			return r.CutOver().Installed(), true
		}
		return r.Failed(Failure{protocol.ProbeFailed, "no"}), true
	case lifecycle.Installed:
		return r.Failed(Failure{protocol.CrashLoop, "no"}), !well
	case lifecycle.Deleting:
		return r.Deleted(), true
	case lifecycle.Deleted, lifecycle.Failed, lifecycle.Pending:
	}
	return r, false
}

func TestStatusDigest(t *testing.T) {
	t.Parallel()
	a, b := at(lifecycle.Installed, assign("1", 1)), at(lifecycle.Installed, assign("2", 1))
	b.Deployment = "b"
	one := StatusDigest([]Record{a, b})
	if StatusDigest(nil) != 0 || one == 0 || one != StatusDigest([]Record{b, a}) {
		t.Error("want 0 for nothing, and no meaning in the order")
	}
	b.State = lifecycle.Failed
	if StatusDigest([]Record{a, b}) == one {
		t.Error("another state, the same digest")
	}
}

// TestRecordKeys holds what is on disk to the keys that earlier agents wrote, whatever struct
// a field is in.
func TestRecordKeys(t *testing.T) {
	t.Parallel()
	written := map[int]any{1: "app", 2: "FAILED", 3: "d", 9: "h", 10: []string{"i"}, 17: []string{"c"}, 18: "p", 23: []byte("s"), 22: 5, 24: true, 25: []byte("e")}
	want := Record{
		Deployment: "app", State: lifecycle.Failed, Digest: "d", MinHealthyMillis: 5, NoRollback: true,
		Fallback: Fallback{Healthy: "h", HealthyImages: []string{"i"}, HealthyContainers: []protocol.Digest{"c"}, Proven: "p", FormerSpec: []byte("s"), EarlierSpec: []byte("e")},
	}
	if got := protocol.Marshal(want); !bytes.Equal(got, protocol.Marshal(written)) {
		t.Errorf("encoded as %x, want %x", got, protocol.Marshal(written))
	}
	var got Record
	if err := protocol.Unmarshal(protocol.Marshal(written), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}
