// Package runspec turns a container of a deployment into the options of its OCI spec: its
// program, its mounts, what it may do and what bounds it. It looks at the node's kernel and
// devices, and refuses what those cannot do; it changes nothing on the node.
package runspec

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// Surroundings are what the node has prepared for a container. The paths are of the node.
type Surroundings struct {
	Hostname string   // the name that the container has for itself
	NetNS    string   // the file of its network namespace; of a container that has one of its own or of another
	Cgroup   string   // its control group, from the root of them
	ReadOnly string   // the option of read-only binds: see ReadOnlyOption
	CDIDirs  []string // where the node has its CDI files
	Init     string   // the program colony-init; of a container with init

	Volume func(name string) string // the directory of a volume of the deployment
	File   func(i int) string       // the file that Mounts[i] of the spec delivers
	Names  func(name string) string // hosts, hostname or resolv.conf
}

// Options returns the steps that turn containerd's default OCI spec into that of a
// container. What it mounts must exist when they are taken. Errors are engine.Errors where
// the node cannot keep what c says. Warn is called with what holds in part only.
func Options(c engine.Container, config ocispec.ImageConfig, around Surroundings, warn func(text string)) ([]oci.SpecOpts, error) {
	process, err := process(c, config, around)
	if err != nil {
		return nil, err
	}
	mounts, err := mounts(c, around)
	if err != nil {
		return nil, err
	}
	opts := append(process,
		oci.WithoutRunMount, // Compose gives /run as the image has it
		oci.WithMounts([]specs.Mount{cgroupMount}), inPlace(mounts), oci.WithMounts(mounts),
		oci.WithCgroup(around.Cgroup),
		oci.WithAnnotations(c.Spec.Labels), oci.WithAnnotations(c.Spec.Annotations))
	if c.Spec.ReadOnly {
		opts = append(opts, oci.WithRootFSReadonly())
	}
	rights, err := rights(c, around, warn)
	if err != nil {
		return nil, err
	}
	// Rights and limits come last: the privileged option replaces whole fields.
	return append(opts, rights...), nil
}

// inPlace leaves out what the runtime would mount where a container has a mount of its own, such as /sys/fs/cgroup: it
// would be below that one, out of sight and as it was.
func inPlace(own []specs.Mount) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool {
			return slices.ContainsFunc(own, func(o specs.Mount) bool { return filepath.Clean(o.Destination) == filepath.Clean(m.Destination) })
		})
		return nil
	}
}

// rights returns what a container may do, and what bounds it.
func rights(c engine.Container, around Surroundings, warn func(text string)) ([]oci.SpecOpts, error) {
	if err := checkPlatform(c); err != nil {
		return nil, err
	}
	security, err := security(c, around)
	if err != nil {
		return nil, err
	}
	limits, err := limits(c, warn)
	if err != nil {
		return nil, err
	}
	opts := []oci.SpecOpts{withCgroupNamespace, withSysctls(c.Spec), withUlimits(c.Spec.Ulimits), withOOMScore(c.Spec.OOMScoreAdj)}
	if c.Spec.ShmBytes > 0 {
		opts = append(opts, oci.WithDevShmSize(int64(max(c.Spec.ShmBytes>>10, 1))))
	}
	for _, ns := range c.Spec.HostNamespaces {
		switch ns {
		case protocol.HostPID:
			opts = append(opts, oci.WithHostNamespace(specs.PIDNamespace))
		case protocol.HostIPC:
			// Its /dev/shm belongs to the namespace.
			opts = append(opts, oci.WithHostNamespace(specs.IPCNamespace), oci.WithoutMounts("/dev/shm"), oci.WithMounts([]specs.Mount{{
				Type: "bind", Source: "/dev/shm", Destination: "/dev/shm", Options: []string{"rbind", "rw"},
			}}))
		default:
			return nil, engine.Errorf(protocol.Incompatible, "container %s: the host namespace %q is not known to this version of the agent: upgrade it", c.ID, ns)
		}
	}
	return slices.Concat(opts, security, limits), nil
}

// checkPlatform refuses a container that is for another platform than the node's.
func checkPlatform(c engine.Container) error {
	if c.Spec.Platform == "" {
		return nil
	}
	want, err := platforms.Parse(c.Spec.Platform)
	if err == nil && platforms.Default().Match(want) {
		return nil
	}
	return engine.Errorf(protocol.Incompatible, "container %s is for the platform %s, and the node is %s: place the deployment on another node",
		c.ID, c.Spec.Platform, platforms.Format(platforms.DefaultSpec()))
}

// withSysctls sets parameters of the container's namespaces. The domain name is one of them:
// runc before 1.2 leaves out that of the specification.
func withSysctls(c protocol.Container) oci.SpecOpts {
	sysctls := maps.Clone(c.Sysctls)
	if c.Domainname != "" {
		if sysctls == nil {
			sysctls = map[string]string{}
		}
		sysctls["kernel.domainname"] = c.Domainname
	}
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		if len(sysctls) > 0 {
			s.Linux.Sysctl = sysctls
		}
		return nil
	}
}

func withOOMScore(adj int) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		if adj != 0 {
			s.Process.OOMScoreAdj = &adj
		}
		return nil
	}
}

// withUlimits sets the given limits of resources, and leaves the others as the daemon has
// them: setting one that is higher fails on a node that lacks CAP_SYS_RESOURCE.
func withUlimits(ulimits []protocol.Ulimit) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		s.Process.Rlimits = nil
		for _, u := range ulimits {
			s.Process.Rlimits = append(s.Process.Rlimits, specs.POSIXRlimit{
				Type: "RLIMIT_" + strings.ToUpper(u.Name), Soft: uint64(u.Soft), Hard: uint64(u.Hard), // -1 becomes RLIM_INFINITY
			})
		}
		return nil
	}
}

// security returns the capabilities, profiles and devices of a container.
func security(c engine.Container, around Surroundings) ([]oci.SpecOpts, error) {
	opts := []oci.SpecOpts{oci.WithNewPrivileges}
	if c.Spec.NoNewPrivileges {
		opts = []oci.SpecOpts{oci.WithNoNewPrivileges}
	}
	if c.Spec.Privileged {
		opts = append(opts, oci.WithPrivileged, oci.WithAllDevicesAllowed, oci.WithHostDevices)
	} else {
		drop, all := capabilities(c.Spec.CapDrop)
		if all {
			opts = append(opts, oci.WithCapabilities(nil))
		}
		opts = append(opts, oci.WithDroppedCapabilities(drop))
		add, all := capabilities(c.Spec.CapAdd)
		if all {
			opts = append(opts, oci.WithAllCurrentCapabilities)
		}
		opts = append(opts, oci.WithAddedCapabilities(add))
		// The profile depends on the capabilities, so it comes after them.
		profile, err := profileOf(c)
		if err != nil {
			return nil, err
		}
		opts = append(opts, profile)
		if c.Spec.AppArmor != "" {
			if err := checkAppArmor(c); err != nil {
				return nil, err
			}
			opts = append(opts, oci.WithApparmorProfile(c.Spec.AppArmor))
		}
	}
	devices, err := devices(c, around.CDIDirs)
	if err != nil {
		return nil, err
	}
	return append(opts, devices...), nil
}

// profileOf returns the seccomp profile of a container.
func profileOf(c engine.Container) (oci.SpecOpts, error) {
	switch c.Spec.Seccomp {
	case "":
		return seccomp.WithDefaultProfile(), nil
	case protocol.SeccompUnconfined:
		return oci.WithSeccompUnconfined, nil
	}
	p, err := parseProfile([]byte(c.Spec.Seccomp))
	if err != nil {
		return nil, engine.Errorf(protocol.CreateFailed, "container %s: seccomp profile: %w", c.ID, err)
	}
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		var held []string
		if s.Process != nil && s.Process.Capabilities != nil {
			held = s.Process.Capabilities.Bounding
		}
		s.Linux.Seccomp = p.forContainer(held)
		return nil
	}, nil
}

// capabilities returns names as the kernel has them, and whether ALL is among them.
func capabilities(names []string) (out []string, all bool) {
	for _, name := range names {
		name = strings.ToUpper(name)
		if name == "ALL" {
			all = true
			continue
		}
		if !strings.HasPrefix(name, "CAP_") {
			name = "CAP_" + name
		}
		out = append(out, name)
	}
	return out, all
}
