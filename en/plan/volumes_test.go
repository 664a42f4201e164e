package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A purge that arrives while its deployment is being removed waits for the end of that,
// and each purge is carried out once.
func TestPurgeWaitsForTheRemoval(t *testing.T) {
	t.Parallel()
	at := func(generation uint64) protocol.Position {
		return protocol.Position{Epoch: 1, Generation: generation}
	}
	volume := func(name protocol.DeploymentName) engine.Volume {
		return engine.Volume{Deployment: name, Name: "data"}
	}
	going := []Record{{Deployment: "going", State: lifecycle.Deleting}}
	purges := []protocol.NodePurge{
		{Deployment: "early", Site: at(1)},
		{Deployment: "going", Site: at(2)},
		{Deployment: "late", Site: at(3)},
	}
	var v Volumes
	for _, step := range []struct {
		name    string
		desired protocol.NodeDesired
		records []Record
		present []engine.Volume
		want    []engine.Volume
		purged  protocol.Position
	}{
		{"being removed", protocol.NodeDesired{Purges: purges}, going, []engine.Volume{volume("early"), volume("going"), volume("late")}, []engine.Volume{volume("early")}, at(1)},
		{"still being removed; one was deployed again since", protocol.NodeDesired{Purges: purges}, going, []engine.Volume{volume("early"), volume("going"), volume("late")}, nil, at(1)},
		{"removed", protocol.NodeDesired{Purges: purges}, nil, []engine.Volume{volume("early"), volume("going"), volume("late")}, []engine.Volume{volume("going"), volume("late")}, at(3)},
		{"once each", protocol.NodeDesired{Purges: purges}, nil, []engine.Volume{volume("going"), volume("late")}, nil, at(3)},
		{"assigned: it is void", protocol.NodeDesired{
			Purges:      []protocol.NodePurge{{Deployment: "back", Site: at(4)}, {Deployment: "late", Site: at(5)}},
			Assignments: []protocol.Assignment{{Deployment: "back"}},
		}, nil, []engine.Volume{volume("back"), volume("late")}, []engine.Volume{volume("late")}, at(5)},
	} {
		next, got := v.Update(VolumesInput{Desired: &step.desired, Records: step.records, Present: step.present})
		var removed []engine.Volume
		for _, r := range got {
			removed = append(removed, r.Volume())
		}
		if diff := cmp.Diff(step.want, removed); diff != "" || next.Purged != step.purged {
			t.Errorf("%s: purged up to %v, want %v; removed (-want +got):\n%s", step.name, next.Purged, step.purged, diff)
		}
		v = next
	}
}

// What could not be removed stays retained, with what was counted, and its purge counts as not carried out.
func TestVolumesThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	at := func(generation uint64) protocol.Position { return protocol.Position{Epoch: 1, Generation: generation} }
	stuck, gone, other := engine.Volume{Deployment: "b", Name: "data"}, engine.Volume{Deployment: "c", Name: "data"}, engine.Volume{Deployment: "a", Name: "data"}
	v := Volumes{Purged: at(1), Retained: []RetainedVolume{{Deployment: "b", Name: "data", Bytes: 7, Counted: 10}}}
	in := VolumesInput{
		Desired: &protocol.NodeDesired{Purges: []protocol.NodePurge{{Deployment: "b", Site: at(2)}, {Deployment: "c", Site: at(3)}}},
		Present: []engine.Volume{other, stuck, gone}, Elapsed: 5 * time.Second,
	}
	next, remove := v.Update(in)
	if len(remove) != 2 || remove[0].Volume() != stuck || remove[1].Volume() != gone {
		t.Fatalf("removed %v", remove)
	}
	want := Volumes{Purged: at(1), Done: []protocol.NodePurge{{Deployment: "c", Site: at(3)}}, Retained: []RetainedVolume{{Deployment: "a", Name: "data"}, {Deployment: "b", Name: "data", Bytes: 7, Counted: 15}}}
	next = v.Keep(in, next, remove[:1])
	if diff := cmp.Diff(want, next); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	// c is back since, with other data: its purge was carried out.
	if again, remove := next.Update(in); len(remove) != 1 || remove[0].Volume() != stuck || again.Purged != at(3) || len(again.Done) > 0 {
		t.Errorf("the next time: removed %v, purged up to %v", remove, again.Purged)
	}
}

// A purge is void once its deployment is assigned, also where it stands behind one that waits: what that deployment leaves behind later is other data.
func TestPurgeIsVoidOnceItsDeploymentIsBack(t *testing.T) {
	t.Parallel()
	at := func(generation uint64) protocol.Position { return protocol.Position{Epoch: 1, Generation: generation} }
	data, other := engine.Volume{Deployment: "app", Name: "data"}, engine.Volume{Deployment: "other", Name: "data"}
	purges := []protocol.NodePurge{{Deployment: "other", Site: at(1)}, {Deployment: "app", Site: at(2)}}
	going := Record{Deployment: "other", State: lifecycle.Deleting}
	var v Volumes
	for _, step := range []struct {
		name    string
		desired protocol.NodeDesired
		records []Record
		want    []engine.Volume
		purged  protocol.Position
	}{
		{"it waits behind another one", protocol.NodeDesired{Purges: purges}, []Record{going}, nil, protocol.Position{}},
		{"the deployment is back", protocol.NodeDesired{Purges: purges, Assignments: []protocol.Assignment{{Deployment: "app"}}}, []Record{going, {Deployment: "app", State: lifecycle.Installed}}, nil, protocol.Position{}},
		{"it leaves again", protocol.NodeDesired{Purges: purges}, []Record{going}, nil, protocol.Position{}},
		{"the other one has ended", protocol.NodeDesired{Purges: purges}, nil, []engine.Volume{other}, at(2)},
		{"and after that", protocol.NodeDesired{Purges: purges}, nil, nil, at(2)},
	} {
		present := []engine.Volume{data, other}
		if step.name == "and after that" {
			present = present[:1]
		}
		next, remove := v.Update(VolumesInput{Desired: &step.desired, Records: step.records, Present: present})
		var removed []engine.Volume
		for _, r := range remove {
			removed = append(removed, r.Volume())
		}
		if diff := cmp.Diff(step.want, removed); diff != "" || next.Purged != step.purged {
			t.Errorf("%s: purged up to %v, removed (-want +got):\n%s", step.name, next.Purged, diff)
		}
		v = next
	}
}
