package nodes

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

var noon = time.UnixMilli(1_700_000_000_000)

func report(seq uint64, state lifecycle.State) protocol.DeploymentStatus {
	return protocol.DeploymentStatus{V: 1, Node: "n1", Deployment: "web", Agent: "a", Seq: seq, State: state, Actor: lifecycle.EN, Digest: "d", Attempt: 1}
}

// words returns the statuses of facts as "actor FROM TO".
func words(t *testing.T, facts []Fact) []string {
	t.Helper()
	var out []string
	for _, f := range facts {
		if f.Event.Kind != protocol.StatusEvent {
			out = append(out, string(f.Event.Kind))
			continue
		}
		var m protocol.DeploymentStatus
		if err := protocol.Unmarshal(f.Event.Body, &m); err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s %s>%s", m.Actor, m.From, m.State))
		if progress := m.From == m.State; progress != (f.Key != "") {
			t.Errorf("%s>%s has key %q: progress alone may be superseded", m.From, m.State, f.Key)
		}
	}
	return out
}

func TestReportsAreBridged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, report lifecycle.State
		want         []string
	}{
		{"", lifecycle.Installed, []string{"LO >PENDING", "LO PENDING>INSTALLING", "EN INSTALLING>INSTALLED"}},
		{"", lifecycle.Updating, []string{"LO >PENDING", "LO PENDING>INSTALLING", "LO INSTALLING>UPDATING", "EN UPDATING>UPDATING"}},
		{"", lifecycle.Deleted, nil},
		{lifecycle.Pending, lifecycle.Installing, []string{"LO PENDING>INSTALLING", "EN INSTALLING>INSTALLING"}},
		{lifecycle.Installing, lifecycle.Installing, []string{"EN INSTALLING>INSTALLING"}},
		{lifecycle.Installing, lifecycle.Installed, []string{"EN INSTALLING>INSTALLED"}},
		{lifecycle.Installed, lifecycle.Updating, []string{"LO INSTALLED>UPDATING", "EN UPDATING>UPDATING"}},
		{lifecycle.Failed, lifecycle.Installed, []string{"LO FAILED>INSTALLING", "EN INSTALLING>INSTALLED"}},
		{lifecycle.Deleting, lifecycle.Deleted, []string{"EN DELETING>DELETED"}},
		{lifecycle.Installed, lifecycle.Deleted, []string{"LO INSTALLED>DELETING", "EN DELETING>DELETED"}},
		{lifecycle.Installed, lifecycle.Pending, []string{"anomaly"}},
		{lifecycle.Installed, "NONSENSE", []string{"anomaly"}},
	} {
		t.Run(string(c.from)+" to "+string(c.report), func(t *testing.T) {
			t.Parallel()
			r := New("n1")
			if c.from != "" {
				r.Deployments["web"] = &Deployment{Status: protocol.DeploymentStatus{State: c.from}}
			}
			out := r.ApplyReport(report(1, c.report), noon)
			if diff := cmp.Diff(c.want, words(t, out.Facts)); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEachReportCountsOnce(t *testing.T) {
	t.Parallel()
	r := New("n1")
	r.ApplyReport(report(5, lifecycle.Installed), noon)
	for _, seq := range []uint64{5, 4} {
		if out := r.ApplyReport(report(seq, lifecycle.Failed), noon); !out.Duplicate || len(out.Facts) > 0 {
			t.Errorf("report %d after 5: %+v", seq, out)
		}
	}
	// Another deployment's report may have been overtaken.
	other := report(4, lifecycle.Installed)
	other.Deployment = "db"
	if out := r.ApplyReport(other, noon); out.Duplicate {
		t.Error("a report on another deployment counts as a duplicate")
	}
	progress := report(0, lifecycle.Installed)
	r.ApplyReport(progress, noon)
	if out := r.ApplyReport(report(5, lifecycle.Failed), noon); !out.Duplicate {
		t.Error("progress without a number made the LO forget the last number")
	}
	anew := report(1, lifecycle.Installing)
	anew.Agent = "b"
	// What the new agent does not hold its report of everything says.
	want := []string{"LO INSTALLED>PENDING", "LO PENDING>INSTALLING", "EN INSTALLING>INSTALLING"}
	if diff := cmp.Diff(want, words(t, r.ApplyReport(anew, noon).Facts)); diff != "" {
		t.Errorf("agent installed anew (-want +got):\n%s", diff)
	}
}

func TestPresence(t *testing.T) {
	t.Parallel()
	on := func(session string) protocol.Presence {
		return protocol.Presence{Online: true, Agent: "a", Boot: "b", Version: "1", Session: session}
	}
	off := func(session string) protocol.Presence { return protocol.Presence{Agent: "a", Session: session} }
	reboot := on("s3")
	reboot.Boot = "b2"
	r := New("n1")
	for i, c := range []struct {
		p    protocol.Presence
		want []string
	}{
		{on("s1"), []string{"node_online"}},
		{on("s1"), nil},
		{on("s2"), nil}, // it reconnected: no news
		{off("s1"), nil},
		{off("s2"), []string{"node_offline"}},
		{off("s2"), nil},
		{on("s3"), []string{"node_online"}},
		{reboot, []string{"node_online"}},
	} {
		out := r.ApplyPresence(c.p, noon)
		if diff := cmp.Diff(c.want, words(t, out.Facts)); diff != "" {
			t.Errorf("presence %d (-want +got):\n%s", i, diff)
		}
		for _, f := range out.Facts {
			if f.Key != "presence/n1" {
				t.Errorf("key %q", f.Key)
			}
		}
	}
}

func TestInventoryCountsOnChange(t *testing.T) {
	t.Parallel()
	r := New("n1")
	inv := protocol.Inventory{V: 1, Node: "n1", Labels: map[string]string{"a": "1", "b": "2"}}
	for i, want := range []int{1, 0} {
		if out := r.ApplyInventory(inv, noon); len(out.Facts) != want {
			t.Errorf("inventory %d: %d facts, want %d", i, len(out.Facts), want)
		}
	}
	inv.Labels = map[string]string{"a": "1"}
	if out := r.ApplyInventory(inv, noon); len(out.Facts) != 1 {
		t.Error("a lost label is no news")
	}
}

// TestDamageAtANode has an agent report damaged files: each is one event, which outlives the
// inventory that names it.
func TestDamageAtANode(t *testing.T) {
	t.Parallel()
	r := New("n1")
	for i, damaged := range [][]string{nil, {"en/counter"}, {"en/counter", "en/deployment web"}, nil, {"en/counter"}} {
		want := []int{0, 1, 1, 0, 1}[i]
		out := r.ApplyInventory(protocol.Inventory{V: 1, Node: "n1", Cores: uint32(i), Damaged: damaged}, noon)
		if len(out.Damaged) != want {
			t.Errorf("inventory %d: new damage is %q, want %d files", i, out.Damaged, want)
		}
		events := 0
		for _, f := range out.Facts {
			if f.Event.Kind == protocol.StateDamaged && f.Event.Node == "n1" && f.Key == "" {
				events++
			}
		}
		if events != want {
			t.Errorf("inventory %d: %d events that nothing supersedes, want %d", i, events, want)
		}
	}
}

func TestHealthyVersions(t *testing.T) {
	t.Parallel()
	d := &Deployment{}
	for _, v := range []protocol.Digest{"1", "2", "1", "3", "4", ""} {
		d.noteHealthy(v)
	}
	if diff := cmp.Diff([]protocol.Digest{"4", "3", "1"}, d.Healthy); diff != "" {
		t.Errorf("healthy (-want +got):\n%s", diff)
	}
}

func TestAttemptNumbersAreUsedOnce(t *testing.T) {
	t.Parallel()
	d := &Deployment{}
	got := []uint32{d.NextAttempt("1"), d.NextAttempt("1"), d.NextAttempt("2"), d.NextAttempt("1")}
	if diff := cmp.Diff([]uint32{1, 2, 1, 3}, got); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	for i := range 100 {
		d.NextAttempt(protocol.Digest(fmt.Sprint("v", i)))
	}
	if len(d.Tried) > keepTried {
		t.Errorf("%d digests remembered", len(d.Tried))
	}
}

// TestReplay plays the facts of a life over every earlier state of the record.
func TestReplay(t *testing.T) {
	t.Parallel()
	r := New("n1")
	var facts []Fact
	var earlier []*Record
	add := func(f ...Fact) {
		facts = append(facts, f...)
		earlier = append(earlier, r.Clone())
	}
	add(r.ApplyPresence(protocol.Presence{V: 1, Online: true, Agent: "a", Session: "s"}, noon).Facts...)
	add(r.ApplyInventory(protocol.Inventory{V: 1, Node: "n1"}, noon).Facts...)
	for i, s := range []lifecycle.State{lifecycle.Installing, lifecycle.Installed, lifecycle.Updating, lifecycle.Failed} {
		add(r.ApplyReport(report(uint64(i+1), s), noon).Facts...)
	}
	for i, e := range earlier {
		for _, f := range facts {
			e.Replay(f.Event)
		}
		if diff := cmp.Diff(r, e); diff != "" {
			t.Errorf("replayed over state %d (-want +got):\n%s", i, diff)
		}
	}
}

// TestFailuresAreStored: a failure in the place of another one is nothing to lose
// in a restart: without it the LO would wait for a node that waits for the LO.
func TestFailuresAreStored(t *testing.T) {
	t.Parallel()
	r := New("n1")
	r.ApplyReport(report(1, lifecycle.Installing), noon)
	if _, err := r.Transition(protocol.DeploymentStatus{Deployment: "web", State: lifecycle.Failed, Code: protocol.NodeLost, Digest: "d", Attempt: 1}, noon); err != nil {
		t.Fatal(err)
	}
	m := report(2, lifecycle.Failed)
	m.Code = protocol.StartFailed
	if out := r.ApplyReport(m, noon); !out.Changed {
		t.Errorf("a failure after FAILED (node_lost) is not to be stored: %+v", out)
	}
}

// TestReplayCountsTries: the record was stored before an assignment that the journal has.
func TestReplayCountsTries(t *testing.T) {
	t.Parallel()
	r := New("n1")
	r.Deployments["web"] = &Deployment{
		Status: protocol.DeploymentStatus{State: lifecycle.Failed, Digest: "d", Attempt: 1}, Tries: 1,
		Assigned: Assignment{Digest: "d", Attempt: 1}, Tried: []Try{{"d", 1}},
	}
	desired := func(digest protocol.Digest, state lifecycle.State, attempt uint32, want uint32) {
		t.Helper()
		m := protocol.DeploymentStatus{V: 1, Node: "n1", Deployment: "web", Actor: lifecycle.LO, State: state, Digest: digest, Attempt: attempt}
		for range 2 { // playing it again changes nothing
			r.Replay(StatusFact(m, noon).Event)
			if got := r.Deployments["web"].Tries; got != want {
				t.Errorf("after attempt %d of %s: %d tries, want %d", attempt, digest, got, want)
			}
		}
	}
	desired("d", lifecycle.Installing, 2, 2)
	desired("d", lifecycle.Updating, 3, 3)
	desired("e", lifecycle.RollingBack, 1, 1)
}

// TestRepeatedContainersAreNoNews has a node report an INSTALLED version's containers once more,
// as after a loss of its link: only what changed is an event.
func TestRepeatedContainersAreNoNews(t *testing.T) {
	t.Parallel()
	r := New("n1")
	r.ApplyReport(report(1, lifecycle.Installed), noon)
	shown := func(seq uint64, restarts uint32) protocol.DeploymentStatus {
		m := report(seq, lifecycle.Installed)
		m.UnixMillis, m.Boot = int64(seq), fmt.Sprint(seq)
		m.Components = []protocol.ComponentStatus{{Component: "c", Container: "k", State: "running", Restarts: restarts}}
		return m
	}
	for i, want := range []int{1, 0, 1, 0} {
		out := r.ApplyReport(shown(uint64(i+2), uint32(i/2)), noon)
		if len(out.Facts) != want {
			t.Errorf("report %d: %d events, want %d", i, len(out.Facts), want)
		}
		if got := r.Deployments["web"].Status.Components[0].Restarts; got != uint32(i/2) {
			t.Errorf("report %d: %d restarts on record, want %d", i, got, i/2)
		}
	}
	failed := report(6, lifecycle.Failed)
	r.ApplyReport(failed, noon)
	failed.Seq = 7
	if out := r.ApplyReport(failed, noon); len(out.Facts) != 1 {
		t.Errorf("a repeated failure is %d events, want 1", len(out.Facts))
	}
}
