package devicespec

import (
	"fmt"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
)

func TestOf(t *testing.T) {
	t.Parallel()
	gpu := []string{"gpu", "utility"}
	var s types.ServiceConfig
	s.Devices = []types.DeviceMapping{
		{Source: "/dev/ttyUSB0", Target: "/dev/plc", Permissions: "rw"},
		{Source: "/dev/null", Permissions: "rwm"},
		{Source: "nvidia.com/gpu=0", Target: "1", Permissions: "rwm"}, // nvidia.com/gpu=0:1, a part of a processor
		{Source: "example.org/tpu=a", Target: "example.org/tpu=a", Permissions: "rwm"},
	}
	s.Gpus = []types.DeviceRequest{{Count: -1}, {Driver: "amd", Count: 1}, {Driver: "cdi", IDs: []string{"example.org/tpu=a", "example.org/tpu=b"}}}
	s.Deploy = &types.DeployConfig{Resources: types.Resources{Reservations: &types.Resource{Devices: []types.DeviceRequest{
		{Capabilities: gpu, Driver: "nvidia", Count: 2}, {Capabilities: gpu, IDs: []string{"GPU-1"}}, {Capabilities: gpu, Count: -1},
	}}}}
	want := []protocol.Device{{Host: "/dev/ttyUSB0", Container: "/dev/plc", Permissions: "rw"}, {Host: "/dev/null", Container: "/dev/null"}}
	for _, name := range []string{
		"nvidia.com/gpu=0:1", "example.org/tpu=a", "nvidia.com/gpu=all", "amd.com/gpu=0", "example.org/tpu=b",
		"nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=GPU-1",
	} {
		want = append(want, protocol.Device{Host: name})
	}
	got := Of(s, func(key, format string, args ...any) { t.Errorf("%s: %s", key, fmt.Sprintf(format, args...)) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}
