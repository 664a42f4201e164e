package reconciler

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A removal is what a node is asked to remove.
type removal struct {
	name    protocol.DeploymentName
	site    protocol.Position
	volumes bool
}

// TestNoRemovalUnasked loses records, sets them back to earlier ones, and plays reports,
// old and new, in any order: whatever happens, each removal was asked for, by a tombstone
// at that position or by a placement elsewhere, and no name is in both lists.
func TestNoRemovalUnasked(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rec, now := nodes.New("n1"), time.UnixMilli(1_700_000_000_000)
		rec.Inventory = &protocol.Inventory{Unknown: []protocol.DeploymentName{"a"}, Volumes: []protocol.Volume{{Deployment: "b", Name: "v"}}}
		jitter := rand.New(rand.NewPCG(1, 1))
		names := rapid.SampledFrom([]protocol.DeploymentName{"a", "b", "c"})
		positions := rapid.Custom(func(t *rapid.T) protocol.Position {
			return protocol.Position{Epoch: rapid.Uint64Range(1, 3).Draw(t, "epoch"), Generation: rapid.Uint64Range(1, 9).Draw(t, "generation")}
		})
		digests := rapid.Custom(func(t *rapid.T) protocol.Digest { return digest(rapid.SampledFrom(versions).Draw(t, "version")) })
		statuses := rapid.Custom(func(t *rapid.T) protocol.DeploymentStatus {
			return protocol.DeploymentStatus{
				V: 1, Node: "n1", Deployment: names.Draw(t, "name"), Agent: "x", Seq: rapid.Uint64Range(0, 30).Draw(t, "seq"),
				Position: positions.Draw(t, "position"), State: rapid.SampledFrom(lifecycle.States).Draw(t, "state"),
				Actor: lifecycle.EN, Digest: digests.Draw(t, "digest"), Attempt: rapid.Uint32Range(0, 3).Draw(t, "attempt"),
			}
		})
		asked := map[removal]bool{}
		copies := []*nodes.Record{rec.Clone()}
		in := Input{
			LostAfter: time.Minute, Jitter: jitter, Removals: map[protocol.DeploymentName]protocol.Removal{},
			Desired: map[protocol.DeploymentName]protocol.SiteEntry{}, Moved: map[protocol.DeploymentName]bool{},
			Specs: func(d protocol.Digest) (Spec, bool) { return Spec{Bytes: []byte(d)}, d != "" },
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0:
				rec.ApplyReport(statuses.Draw(t, "status"), now)
			case 1:
				m := protocol.NodeReport{V: 1, Node: "n1", Agent: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "agent"), Seq: 50}
				if rapid.Bool().Draw(t, "holds") {
					m.Held = protocol.Held{Position: positions.Draw(t, "held"), Digest: digests.Draw(t, "digest")}
				}
				byName := func(s protocol.DeploymentStatus) protocol.DeploymentName { return s.Deployment }
				m.Statuses = rapid.SliceOfNDistinct(statuses, 0, 3, byName).Draw(t, "statuses")
				rec.ApplyNodeReport(m, now)
			case 2:
				rec = rapid.SampledFrom(copies).Draw(t, "copy").Clone()
			case 3:
				copies = append(copies, rec.Clone())
			case 4:
				rec.ApplyPresence(protocol.Presence{Online: rapid.Bool().Draw(t, "online"), Agent: "x"}, now)
			case 5:
				name := names.Draw(t, "name")
				delete(in.Desired, name)
				delete(in.Removals, name)
				delete(in.Moved, name)
				switch rapid.IntRange(0, 3).Draw(t, "now") {
				case 0:
					in.Desired[name] = protocol.SiteEntry{Deployment: name, Digest: digests.Draw(t, "digest"), Position: positions.Draw(t, "position")}
				case 1:
					r := protocol.Removal{Deployment: name, Position: positions.Draw(t, "position"), Volumes: rapid.Bool().Draw(t, "volumes")}
					in.Removals[name] = r
					asked[removal{name, r.Position, r.Volumes}] = true
				case 2:
					in.Moved[name] = true
					asked[removal{name: name}] = true
				default: // in neither list
				}
			case 6:
				now = now.Add(time.Duration(rapid.IntRange(-7200, 7200).Draw(t, "seconds")) * time.Second)
			case 7:
				rec = stored(t, rec)
			}
			in.Now = now
			out := Step(rec, in)
			assigned := map[protocol.DeploymentName]bool{}
			for _, a := range out.Desired.Assignments {
				assigned[a.Deployment] = true
			}
			for _, r := range out.Desired.Removals {
				if !asked[removal{r.Deployment, r.Site, r.Volumes}] {
					t.Fatalf("removal %+v, and nobody asked for it; asked were %v", r, fmt.Sprint(asked))
				}
				if assigned[r.Deployment] {
					t.Fatalf("%s is assigned and removed", r.Deployment)
				}
			}
		}
	})
}

// TestRemovalOfBeforeEnds sets CO and LO back to a moment at which a removal waited for a node, which has gone on: its agent drops the
// tombstone, as it has followed a later one, and holds nothing.
func TestRemovalOfBeforeEnds(t *testing.T) {
	t.Parallel()
	tombstone := protocol.Removal{Deployment: "web", Position: protocol.Position{Epoch: 1, Generation: 3}, Volumes: true, Signature: []byte("of 3")}
	asked := protocol.NodeRemoval{Deployment: "web", Site: tombstone.Position, Volumes: true, Signature: tombstone.Signature}
	for _, c := range []struct {
		name    string
		deleted bool // the record is of a moment at which the LO had begun the removal
		follows uint64
	}{
		{"the removal was under way", true, 6},
		{"the removal had not begun", false, 6},
		{"the node has not followed the removal", true, 2},
	} {
		w := newWorld(t)
		w.desire("1")
		w.report(lifecycle.Installed, "")
		w.presence(false, "agent-1")
		delete(w.desired, "web")
		if c.deleted {
			w.removals["web"] = tombstone
			w.step()
			w.expectRemoval(asked)
		}
		w.presence(true, "agent-1")
		w.removals["web"] = tombstone
		w.follows = protocol.Position{Epoch: 1, Generation: c.follows}
		w.seq++
		held := w.rec.Held()
		if c.follows > 3 {
			held = protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 90}, Digest: "later"}
		}
		held.Site = w.follows
		w.rec.ApplyNodeReport(protocol.NodeReport{V: 1, Node: "n1", Agent: w.rec.Agent, Seq: w.seq, Held: held}, w.now)
		w.step()
		want, removals := "DELETED", []protocol.NodeRemoval(nil)
		if c.follows < 3 {
			want, removals = "DELETING", []protocol.NodeRemoval{asked}
		}
		if got := w.rec.State("web"); string(got) != want {
			t.Errorf("%s: web is %s, want %s", c.name, got, want)
		}
		w.expectRemoval(removals...)
	}
}

// TestRestOfStaleTombstones has containers, and a volume, of which the node has no record: a tombstone of before an LO lost its memory,
// or of before what the node is known to have had, waits until the removal is asked for once more.
func TestRestOfStaleTombstones(t *testing.T) {
	t.Parallel()
	at := func(generation uint64) protocol.Position { return protocol.Position{Epoch: 1, Generation: generation} }
	tombstone := func(generation uint64) protocol.Removal {
		return protocol.Removal{Deployment: "web", Position: at(generation), Volumes: true}
	}
	rest := func(w *world) {
		w.rec.Inventory = &protocol.Inventory{Unknown: []protocol.DeploymentName{"web"}, Volumes: []protocol.Volume{{Deployment: "web", Name: "data"}}}
	}
	obeyed := func(w *world, generation uint64) {
		t.Helper()
		w.removals["web"] = tombstone(generation)
		w.step()
		w.expectWait("")
		w.expectRemoval(protocol.NodeRemoval{Deployment: "web", Site: at(generation), Volumes: true})
	}

	lost := &world{
		t: t, now: time.UnixMilli(1_700_000_000_000), rec: nodes.New("n1"),
		desired: map[protocol.DeploymentName]protocol.SiteEntry{}, removals: map[protocol.DeploymentName]protocol.Removal{"web": tombstone(3)},
	}
	rest(lost)
	lost.presence(true, "agent-1")
	lost.whole()
	lost.expectWait("its removal is of 1.3, and what the node has of it without a record may be of later")
	lost.expectRemoval()
	lost.rec.Inventory.Unknown = nil
	lost.step()
	lost.expectWait("the volumes that the node keeps of it may be of later: records of what was assigned to the node were lost; purge")
	lost.expectRemoval()
	rest(lost)
	lost.rec = stored(t, lost.rec)
	lost.step()
	lost.expectRemoval()
	obeyed(lost, 4)

	relearned := newWorld(t) // the LO had lost its record, and has learned from the node what that follows, before the node lost its own
	relearned.whole(protocol.DeploymentStatus{
		V: 1, Node: "n1", Deployment: "web", Agent: "agent-1", Seq: 1, Actor: lifecycle.EN, State: lifecycle.Installed, Digest: digest("v1"), Attempt: 1, Site: at(9),
	})
	relearned.removals["web"] = tombstone(3)
	relearned.step()
	rest(relearned)
	for range 2 {
		relearned.whole()
		relearned.expectWait("its removal is of 1.3, and what runs was desired later, at 1.9")
		relearned.expectRemoval()
		relearned.rec = stored(t, relearned.rec)
	}
	delete(relearned.removals, "web") // in neither list: what the node does not hold ends
	relearned.step()
	relearned.removals["web"] = tombstone(3)
	relearned.step()
	relearned.expectWait("its removal is of 1.3, and what the node has of it without a record may be of later")
	relearned.expectRemoval()
	obeyed(relearned, 10)

	setBack := newWorld(t) // the LO was set back to before the later deployment, and the node has lost its record of it
	setBack.desire("1", func(e *protocol.SiteEntry) { e.Position = at(2) })
	setBack.report(lifecycle.Installed, "")
	delete(setBack.desired, "web")
	setBack.removals["web"] = tombstone(3)
	rest(setBack)
	setBack.seq++
	setBack.rec.ApplyNodeReport(protocol.NodeReport{V: 1, Node: "n1", Agent: "agent-1", Seq: setBack.seq, Held: protocol.Held{Position: at(90), Digest: "later"}}, setBack.now)
	setBack.step()
	setBack.expectWait("its removal is of 1.3, and what the node has of it without a record may be of later")
	setBack.expectRemoval()
	obeyed(setBack, 10)
}
