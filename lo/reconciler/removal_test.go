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
