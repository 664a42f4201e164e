package runspec

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// initTarget is where a container finds the init process; Docker has its own there.
const initTarget = "/sbin/docker-init"

// process returns the options of what runs in a container: program, environment, user and
// network.
func process(c engine.Container, config ocispec.ImageConfig, around Surroundings) ([]oci.SpecOpts, error) {
	args := arguments(c.Spec, config)
	if len(args) == 0 {
		return nil, engine.Errorf(protocol.CreateFailed, "container %s: neither its spec nor its image says what to run: set an entrypoint or a command", c.ID)
	}
	if c.Spec.Init {
		args = append([]string{initTarget, "--"}, args...)
	}
	opts := []oci.SpecOpts{
		oci.WithDefaultPathEnv, oci.WithEnv(hostnameEnv(c, around.Hostname)), oci.WithEnv(config.Env), oci.WithEnv(c.Spec.Env),
		oci.WithProcessArgs(args...), oci.WithProcessCwd(cmp.Or(c.Spec.WorkingDir, config.WorkingDir, "/")),
	}
	if c.Spec.TTY {
		opts = append(opts, oci.WithTTY)
	}
	if user := cmp.Or(c.Spec.User, config.User); user != "" {
		opts = append(opts, named("user "+strconv.Quote(user), oci.WithUser(user)), oci.WithAdditionalGIDs(user))
	}
	if len(c.Spec.GroupAdd) > 0 {
		opts = append(opts, named("groups", oci.WithAppendAdditionalGroups(c.Spec.GroupAdd...)))
	}
	return append(opts, network(c, around)...), nil
}

// arguments follows Compose: an entrypoint of the spec replaces the image's
// entrypoint and command both, a command of the spec, or none, the image's command.
func arguments(spec protocol.Container, config ocispec.ImageConfig) []string {
	entrypoint, command := config.Entrypoint, config.Cmd
	if len(spec.Entrypoint) > 0 {
		entrypoint, command = spec.Entrypoint, nil
	}
	if len(spec.Command) > 0 || spec.NoCommand {
		command = spec.Command
	}
	return slices.Concat(entrypoint, command)
}

// hostnameEnv is HOSTNAME, which Docker sets and shells and Java programs read. A
// container with the name of the node, which may change, is left without.
func hostnameEnv(c engine.Container, hostname string) []string {
	if c.Spec.Network == protocol.NetworkHost && c.Spec.Hostname == "" {
		return nil
	}
	return []string{"HOSTNAME=" + hostname}
}

// named says in the error of opt what it is about.
func named(what string, opt oci.SpecOpts) oci.SpecOpts {
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
		if err := opt(ctx, client, c, s); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
}

// network returns the options of the network namespace and the hostname.
func network(c engine.Container, around Surroundings) []oci.SpecOpts {
	var opts []oci.SpecOpts
	switch c.Spec.Network {
	case protocol.NetworkHost:
		opts = append(opts, oci.WithHostNamespace(specs.NetworkNamespace))
		if c.Spec.Hostname == "" {
			// The name of the node, as programs on its network expect it.
			return append(opts, oci.WithHostNamespace(specs.UTSNamespace))
		}
	case protocol.NetworkNone:
		// The default spec's own namespace, in which runc sets the loopback up.
	case protocol.NetworkBridge:
		opts = append(opts, oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: around.NetNS}))
	}
	return append(opts, oci.WithHostname(around.Hostname))
}
