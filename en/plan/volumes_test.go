package plan

import (
	"testing"

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
		if diff := cmp.Diff(step.want, got); diff != "" || next.Purged != step.purged {
			t.Errorf("%s: purged up to %v, want %v; removed (-want +got):\n%s", step.name, next.Purged, step.purged, diff)
		}
		v = next
	}
}
