package runspec

import (
	"context"
	"fmt"
	"maps"
	"math"
	"runtime"
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

// limits refuses a limit that the kernel cannot keep: a container must not run without a bound that
// its deployment asks for.
func limits(c engine.Container, warn func(text string)) ([]oci.SpecOpts, error) {
	const period = 100_000 // microseconds, the kernel's default
	var opts []oci.SpecOpts
	l := c.Spec.Limits
	need := map[string]bool{"cpu": l.NanoCPUs > 0 || l.CPUShares > 0, "cpuset": l.CPUSet != "", "memory": l.MemoryBytes > 0, "pids": l.Pids > 0}
	if slices.Contains(slices.Collect(maps.Values(need)), true) {
		have, err := hostkernel.Controllers()
		if err != nil {
			return nil, fmt.Errorf("read the kernel's cgroup controllers: %w", err)
		}
		for _, name := range []string{"cpu", "cpuset", "memory", "pids"} {
			if need[name] && !slices.Contains(have, name) {
				return nil, engine.Errorf(protocol.Incompatible, "container %s has a %s limit, but the node's kernel has no %s controller: enable it on the kernel command line, or drop the limit", c.ID, name, name)
			}
		}
	}
	if l.NanoCPUs > 0 {
		opts = append(opts, oci.WithCPUCFS(max(int64(l.NanoCPUs)*period/1e9, 1000), period))
	}
	if l.CPUShares > 0 {
		opts = append(opts, oci.WithCPUShares(l.CPUShares))
	}
	if l.CPUSet != "" {
		opts = append(opts, oci.WithCPUs(l.CPUSet))
	}
	if l.MemoryBytes > 0 {
		opts = append(opts, oci.WithMemoryLimit(l.MemoryBytes))
		if hostkernel.BoundsSwap() {
			opts = append(opts, oci.WithMemorySwap(swapOf(l)))
		} else {
			warn("the node's kernel cannot bound swap: a memory limit holds for memory alone")
		}
	}
	if l.Pids > 0 {
		opts = append(opts, oci.WithPidsLimit(int64(l.Pids)))
	}
	reserved, err := reservations(c)
	return append(opts, reserved...), err
}

// swapOf returns the bound of memory and swap together; -1 is none. As in Compose, it is as
// much swap as memory where nothing is said.
func swapOf(l protocol.Limits) int64 {
	switch l.MemorySwapBytes {
	case 0:
		return int64(min(2*l.MemoryBytes, math.MaxInt64))
	case protocol.UnlimitedSwap:
		return -1
	}
	return int64(min(l.MemorySwapBytes, math.MaxInt64))
}

// reservations refuses what the node could not give to anybody, and has the kernel leave
// the reserved memory to the container when memory is short.
func reservations(c engine.Container) ([]oci.SpecOpts, error) {
	r := c.Spec.Reservations
	if cores := uint64(runtime.NumCPU()); r.NanoCPUs > cores*1e9 {
		return nil, engine.Errorf(protocol.Incompatible, "container %s reserves %.1f processors, and the node has %d: place the deployment on another node, or reserve less", c.ID, float64(r.NanoCPUs)/1e9, cores)
	}
	if r.MemoryBytes == 0 {
		return nil, nil
	}
	total, err := hostkernel.MemoryBytes()
	if err != nil {
		return nil, fmt.Errorf("read how much memory the node has: %w", err)
	}
	if r.MemoryBytes > total {
		return nil, engine.Errorf(protocol.Incompatible, "container %s reserves %d MiB of memory, and the node has %d MiB: place the deployment on another node, or reserve less", c.ID, r.MemoryBytes>>20, total>>20)
	}
	return []oci.SpecOpts{func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		if s.Linux.Resources == nil {
			s.Linux.Resources = &specs.LinuxResources{}
		}
		if s.Linux.Resources.Memory == nil {
			s.Linux.Resources.Memory = &specs.LinuxMemory{}
		}
		bytes := int64(min(r.MemoryBytes, math.MaxInt64))
		s.Linux.Resources.Memory.Reservation = &bytes
		return nil
	}}, nil
}
