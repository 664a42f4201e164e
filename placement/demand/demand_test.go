package demand_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/placement/demand"
	"github.com/colonyfleet/colony/protocol"
)

func TestOf(t *testing.T) {
	t.Parallel()
	web := protocol.Port{Container: 80, Host: 8080}
	spec := &protocol.DeploymentSpec{Components: []protocol.Component{
		{Containers: []protocol.Container{
			{
				Limits: protocol.Limits{NanoCPUs: 4e9, MemoryBytes: 1 << 30}, Reservations: protocol.Limits{NanoCPUs: 5e8, MemoryBytes: 64 << 20},
				Ports:  []protocol.Port{web, {Container: 81}},
				Mounts: []protocol.Mount{{Kind: protocol.MountVolume, Source: "data"}, {Kind: protocol.MountTmpfs}},
			},
			{Reservations: protocol.Limits{NanoCPUs: 5e8}, Devices: []protocol.Device{{Host: "/dev/ttyS0"}}},
		}},
		{Containers: []protocol.Container{{
			Mounts:  []protocol.Mount{{Kind: protocol.MountVolume, Source: "data"}, {Kind: protocol.MountBind, Source: "/etc"}},
			Devices: []protocol.Device{{Host: "/dev/ttyS0"}, {Host: "/dev/dri"}},
		}}},
	}}
	want := demand.Demand{
		NanoCPUs: 1e9, MemoryBytes: 64 << 20, Ports: []protocol.Port{web}, Volumes: []string{"data"}, Devices: []string{"/dev/dri", "/dev/ttyS0"},
	}
	got := demand.Of(spec)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("demand (-want +got):\n%s", diff)
	}
	if none := (demand.Demand{Volumes: []string{"data"}}); !got.Shares() || none.Shares() {
		t.Error("what takes a share of the node counts as what does not, or the other way round")
	}
}
