package reconciler

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

var versions = []string{"good-1", "good-2", "bad-1", "bad-2"}

// journalled checks what goes to the journal as the CO does: each status must
// follow from the one before.
type journalled struct {
	at map[protocol.DeploymentName]lifecycle.State
}

func (j *journalled) apply(t *rapid.T, facts []nodes.Fact) {
	for _, f := range facts {
		if f.Event.Kind != protocol.StatusEvent {
			continue
		}
		var m protocol.DeploymentStatus
		if err := protocol.Unmarshal(f.Event.Body, &m); err != nil {
			t.Fatal(err)
		}
		if m.From != j.at[m.Deployment] {
			t.Fatalf("%s: journalled from %q, the journal stands at %q", m.Deployment, m.From, j.at[m.Deployment])
		}
		if err := lifecycle.Check(m.From, m.State, m.Actor); err != nil {
			t.Fatal(err)
		}
		j.at[m.Deployment] = m.State
	}
}

func stepped(t *rapid.T, r *nodes.Record, now time.Time, desired map[protocol.DeploymentName]protocol.SiteEntry, closed string, jitter *rand.Rand) Output {
	removals := map[protocol.DeploymentName]protocol.Removal{}
	for _, name := range []protocol.DeploymentName{"a", "b", "web"} {
		if _, ok := desired[name]; !ok {
			removals[name] = protocol.Removal{Deployment: name, Position: protocol.Position{Epoch: 1, Generation: 1}}
		}
	}
	removing := map[protocol.DeploymentName]bool{}
	for name, d := range r.Deployments {
		removing[name] = d.Removing
	}
	out := Step(r, Input{
		Now: now, Desired: desired, Removals: removals, Windows: closed != "no", Closed: strings.TrimPrefix(closed, "no"), LostAfter: time.Minute, Jitter: jitter,
		Specs: func(d protocol.Digest) (Spec, bool) { return Spec{Bytes: []byte(d)}, d != "" },
	})
	if len(out.Faults) > 0 {
		t.Fatalf("faults: %v", out.Faults)
	}
	for _, m := range out.Transitions {
		stops := m.State == lifecycle.Updating && m.Digest != m.Running && m.Running != "" || m.State == lifecycle.Deleting
		if closed == "no" || m.From != lifecycle.Installed || !stops || removing[m.Deployment] || closed == "" && r.Online() {
			continue
		}
		t.Fatalf("%s is %s, and was %s, outside of a window", m.Deployment, m.State, m.From)
	}
	return out
}

// stored returns the record as a restart finds it.
func stored(t interface{ Fatal(...any) }, r *nodes.Record) *nodes.Record {
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again := nodes.New(r.Node)
	if err := json.Unmarshal(b, again); err != nil {
		t.Fatal(err)
	}
	return again
}

// TestNoReportLeadsOutOfTheTable sends any reports in any order, sane or not.
func TestNoReportLeadsOutOfTheTable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rec, now := nodes.New("n1"), time.UnixMilli(1_700_000_000_000)
		desired := map[protocol.DeploymentName]protocol.SiteEntry{}
		j := &journalled{at: map[protocol.DeploymentName]lifecycle.State{}}
		jitter := rand.New(rand.NewPCG(1, 1))
		closed := "no"
		windows := rapid.SampledFrom([]string{"no", "", "outside of a window"}) // none, open, closed
		names := rapid.SampledFrom([]protocol.DeploymentName{"a", "b"})
		digests := rapid.Custom(func(t *rapid.T) protocol.Digest { return digest(rapid.SampledFrom(versions).Draw(t, "version")) })
		agents := rapid.SampledFrom([]string{"x", "x", "x", "y"})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 7:
				closed = windows.Draw(t, "windows")
			case 0, 1, 2:
				out := rec.ApplyReport(protocol.DeploymentStatus{
					V: 1, Node: "n1", Deployment: names.Draw(t, "name"), Agent: agents.Draw(t, "agent"), Seq: rapid.Uint64Range(0, 30).Draw(t, "seq"),
					Position: protocol.Position{Epoch: 1, Generation: rapid.Uint64Range(0, rec.Position.Generation+1).Draw(t, "generation")}, State: rapid.SampledFrom(lifecycle.States).Draw(t, "state"),
					Actor: lifecycle.EN, Digest: digests.Draw(t, "digest"), Attempt: rapid.Uint32Range(0, 3).Draw(t, "attempt"),
					Recovering: rapid.Bool().Draw(t, "recovering"), Presumed: rapid.Bool().Draw(t, "presumed"),
				}, now)
				j.apply(t, out.Facts)
			case 3:
				out := rec.ApplyPresence(protocol.Presence{Online: rapid.Bool().Draw(t, "online"), Agent: agents.Draw(t, "agent")}, now)
				j.apply(t, out.Facts)
			case 4:
				name := names.Draw(t, "name")
				delete(desired, name)
				if rapid.IntRange(0, 3).Draw(t, "desired") > 0 {
					desired[name] = protocol.SiteEntry{
						Deployment: name, Digest: digests.Draw(t, "digest"), Rollback: rapid.Bool().Draw(t, "rollback"), Retry: rapid.Uint32Range(0, 2).Draw(t, "retry"),
						Policy: protocol.Policy{Attempts: rapid.Uint32Range(0, 2).Draw(t, "attempts"), NoRollback: rapid.Bool().Draw(t, "no rollback")},
					}
				}
			case 5:
				now = now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "seconds")) * time.Second)
			case 6:
				rec = stored(t, rec)
			}
			j.apply(t, stepped(t, rec, now, desired, closed, jitter).Facts)
			if out := stepped(t, rec, now, desired, closed, jitter); len(out.Facts) > 0 || out.Reassigned {
				t.Fatalf("a second step at the same moment still finds something to do: %+v", out)
			}
		}
	})
}

// gateway is a correct agent: it does what is assigned, at some later time.
type gateway struct {
	held    *protocol.NodeDesired
	running map[protocol.DeploymentName]*protocol.DeploymentStatus
	seq     uint64
	outbox  []protocol.DeploymentStatus
}

func (g *gateway) say(m protocol.DeploymentStatus) {
	g.seq++
	m.Seq, m.Position = g.seq, g.held.Position
	g.running[m.Deployment] = &m
	g.outbox = append(g.outbox, m)
}

// work makes one transition of each deployment that has one to make.
func (g *gateway) work() {
	if g.held == nil {
		return
	}
	listed := map[protocol.DeploymentName]protocol.Assignment{}
	for _, a := range g.held.Assignments {
		listed[a.Deployment] = a
	}
	for _, r := range g.held.Removals {
		name := r.Deployment
		m := g.running[name]
		if m == nil { // it answers for what it does not hold, too
			m = &protocol.DeploymentStatus{V: 1, Node: "n1", Deployment: name, Agent: "x", Actor: lifecycle.EN}
		}
		if m.State != lifecycle.Deleted || m.Position != g.held.Position {
			next := *m
			if next.State = lifecycle.Deleting; m.State == lifecycle.Deleting || m.State == lifecycle.Deleted {
				next.State = lifecycle.Deleted
			}
			g.say(next)
		}
	}
	for name, a := range listed {
		m := g.running[name]
		next := protocol.DeploymentStatus{V: 1, Node: "n1", Deployment: name, Agent: "x", Actor: lifecycle.EN, Digest: a.Digest, Attempt: a.Attempt}
		if m != nil {
			if next.Running = m.Running; m.State == lifecycle.Installed {
				next.Running = m.Digest
			}
		}
		switch {
		case m == nil || m.State == lifecycle.Deleting || m.State == lifecycle.Deleted || m.Digest != a.Digest || m.State == lifecycle.Failed && m.Attempt != a.Attempt:
			next.State = lifecycle.Updating
			if m == nil || m.State == lifecycle.Deleted || m.State == lifecycle.Deleting {
				next.State = lifecycle.Installing
			}
			if a.Rollback {
				next.State = lifecycle.RollingBack
			}
			next.Phase = protocol.Pulling
			g.say(next)
		case m.State == lifecycle.Installed && m.Attempt != a.Attempt:
			next.State = lifecycle.Installed
			g.say(next)
		case m.State == lifecycle.Installing || m.State == lifecycle.Updating || m.State == lifecycle.RollingBack:
			next.State = lifecycle.Installed
			if a.Digest == digest("bad-1") || a.Digest == digest("bad-2") {
				next.State, next.Code = lifecycle.Failed, protocol.StartFailed
			}
			g.say(next)
		}
	}
}

// TestConverges disturbs a site (desired state, link, restarts, slow and repeated
// reports), then leaves it alone: it must end as its desired state says.
func TestConverges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rec, now := nodes.New("n1"), time.UnixMilli(1_700_000_000_000)
		desired := map[protocol.DeploymentName]protocol.SiteEntry{}
		j := &journalled{at: map[protocol.DeploymentName]lifecycle.State{}}
		jitter := rand.New(rand.NewPCG(1, 1))
		closed := "no"
		windows := rapid.SampledFrom([]string{"no", "", "outside of a window"}) // none, open, closed
		g := &gateway{running: map[protocol.DeploymentName]*protocol.DeploymentStatus{}}
		retained := &protocol.NodeDesired{}
		step := func() {
			out := stepped(t, rec, now, desired, closed, jitter)
			j.apply(t, out.Facts)
			retained = &out.Desired
			if rec.Online() {
				g.held = retained
			}
		}
		presence := func(online bool) {
			j.apply(t, rec.ApplyPresence(protocol.Presence{Online: online, Agent: "x"}, now).Facts)
			step()
		}
		deliver := func() {
			if len(g.outbox) == 0 || !rec.Online() {
				return
			}
			m := g.outbox[0]
			j.apply(t, rec.ApplyReport(m, now).Facts)
			if !rapid.Bool().Draw(t, "acknowledgement lost") {
				g.outbox = g.outbox[1:]
			}
			step()
		}
		presence(true)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 7:
				closed = windows.Draw(t, "windows")
				step()
			case 0:
				delete(desired, "web")
				if v := rapid.SampledFrom(append([]string{""}, versions...)).Draw(t, "version"); v != "" {
					desired["web"] = protocol.SiteEntry{Deployment: "web", Digest: digest(v), Policy: protocol.Policy{Attempts: 2}}
				}
				step()
			case 1:
				presence(!rec.Online())
			case 2:
				rec = stored(t, rec)
			case 3:
				now = now.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "seconds")) * time.Second)
				step()
			case 4:
				g.work()
			default:
				deliver()
			}
		}
		closed = ""
		presence(true)
		for range 60 {
			g.held = retained
			g.work()
			for len(g.outbox) > 0 {
				j.apply(t, rec.ApplyReport(g.outbox[0], now).Facts)
				g.outbox = g.outbox[1:]
				step()
			}
			now = now.Add(6 * time.Minute)
			step()
		}
		settled(t, rec, desired, g)
	})
}

// settled checks that the node runs what is desired, or is where a version
// that cannot run leaves it.
func settled(t *rapid.T, rec *nodes.Record, desired map[protocol.DeploymentName]protocol.SiteEntry, g *gateway) {
	d, want := rec.Deployments["web"], desired["web"].Digest
	switch {
	case want == "":
		if m := g.running["web"]; m != nil && m.State != lifecycle.Deleted {
			t.Fatalf("not desired, but the node has it in %s", m.State)
		}
		if s := rec.State("web"); s != "" && s != lifecycle.Deleted {
			t.Fatalf("not desired, but the LO has it in %s", s)
		}
	case want == digest("bad-1") || want == digest("bad-2"):
		if s := d.Status.State; s != lifecycle.Failed && (s != lifecycle.Installed || d.Status.Digest == want) {
			t.Fatalf("a version that cannot run ended in %s at %s", s, d.Status.Digest.Short())
		}
	default:
		m := g.running["web"]
		if d.Status.State != lifecycle.Installed || d.Status.Digest != want || m.State != lifecycle.Installed || m.Digest != want {
			t.Fatalf("desired %s: the LO has %s at %s, the node %s at %s", want.Short(), d.Status.State, d.Status.Digest.Short(), m.State, m.Digest.Short())
		}
	}
}

// TestRecordRestoredFromTheJournal replays transitions over a record that has a later
// Desired, as after a journal got a new epoch: Desired must win.
func TestRecordRestoredFromTheJournal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.desire("1")
	old := w.last.Facts
	w.report(lifecycle.Installed, "")
	w.presence(false, "agent-1")
	w.desire("2")
	w.expect("2", 1, false)
	for _, f := range old {
		w.rec.Replay(f.Event)
	}
	w.rec.Replay(nodes.StatusFact(protocol.DeploymentStatus{
		V: 1, Node: "n1", Deployment: "web", Agent: "agent-1", Seq: 1, From: lifecycle.Installing, State: lifecycle.Installed, Actor: lifecycle.EN, Digest: digest("1"), Attempt: 1,
	}, w.now).Event)
	w.step()
	if a, ok := w.assignment(); !ok || a.Digest != digest("2") {
		t.Errorf("assignment %+v: want version 2", a)
	}
}
