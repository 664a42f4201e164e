package containerd

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/hostkernel"
	"github.com/colonyfleet/colony/protocol"
)

// cgroupMount shows a container its own control groups: runtimes such as Java, Go and
// Node.js size their heaps and pools by the limits that they read there.
var cgroupMount = specs.Mount{
	Type: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup",
	Options: []string{"ro", "nosuid", "noexec", "nodev", "relatime"},
}

// withCgroupNamespace makes the container's own group the root of what it sees, as
// Docker does with version 2 of control groups.
func withCgroupNamespace(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
	if !hostkernel.CgroupV2() {
		return nil
	}
	return oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.CgroupNamespace})(ctx, client, c, s)
}

// limitOpts refuses a limit that the kernel cannot keep: a container must not
// run without a bound that somebody relies on.
func (e *Engine) limitOpts(c engine.Container) ([]oci.SpecOpts, error) {
	const period = 100_000 // microseconds, the kernel's default
	var opts []oci.SpecOpts
	l := c.Spec.Limits
	need := map[string]bool{"cpu": l.NanoCPUs > 0, "memory": l.MemoryBytes > 0, "pids": l.Pids > 0}
	if need["cpu"] || need["memory"] || need["pids"] {
		have, err := hostkernel.Controllers()
		if err != nil {
			return nil, fmt.Errorf("read the kernel's cgroup controllers: %w", err)
		}
		for _, name := range []string{"cpu", "memory", "pids"} {
			if need[name] && !slices.Contains(have, name) {
				return nil, engine.Errorf(protocol.Incompatible, "container %s has a %s limit, but the node's kernel has no %s controller: enable it on the kernel command line, or drop the limit", c.ID, name, name)
			}
		}
	}
	if l.NanoCPUs > 0 {
		opts = append(opts, oci.WithCPUCFS(max(int64(l.NanoCPUs)*period/1e9, 1000), period))
	}
	if l.MemoryBytes > 0 {
		opts = append(opts, oci.WithMemoryLimit(l.MemoryBytes))
		if hostkernel.BoundsSwap() {
			// As in Compose: as much swap as memory.
			opts = append(opts, oci.WithMemorySwap(int64(min(2*l.MemoryBytes, math.MaxInt64))))
		} else {
			e.log.Warn("the node's kernel cannot bound swap: a memory limit holds for memory alone", "container", c.ID.String())
		}
	}
	if l.Pids > 0 {
		opts = append(opts, oci.WithPidsLimit(int64(l.Pids)))
	}
	return opts, nil
}
