package containerd

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/names"
	"github.com/colonyfleet/colony/en/engine/containerd/runspec"
	"github.com/colonyfleet/colony/protocol"
)

// specOf returns the steps that turn containerd's default OCI spec into that of
// c. The volumes and files that it mounts must exist.
func (e *Engine) specOf(key string, c engine.Container, config ocispec.ImageConfig) ([]oci.SpecOpts, error) {
	args := arguments(c.Spec, config)
	if len(args) == 0 {
		return nil, engine.Errorf(protocol.CreateFailed, "container %s: neither its spec nor its image says what to run: set an entrypoint or a command", c.ID)
	}
	args, program, err := e.withInit(c, args)
	if err != nil {
		return nil, err
	}
	mounts, err := e.mounts(key, c)
	if err != nil {
		return nil, err
	}
	mounts = append(mounts, program...)
	cwd := config.WorkingDir
	if c.Spec.WorkingDir != "" {
		cwd = c.Spec.WorkingDir
	}
	if cwd == "" {
		cwd = "/"
	}
	opts := []oci.SpecOpts{
		oci.WithDefaultPathEnv, oci.WithEnv(hostnameEnv(c)), oci.WithEnv(config.Env), oci.WithEnv(c.Spec.Env),
		oci.WithProcessArgs(args...), oci.WithProcessCwd(cwd),
		oci.WithoutRunMount, // Compose gives /run as the image has it
		oci.WithMounts(append([]specs.Mount{runspec.CgroupMount}, mounts...)),
		oci.WithCgroup(e.cgroup() + "/" + key),
		oci.WithAnnotations(c.Spec.Labels), oci.WithAnnotations(c.Spec.Annotations),
	}
	if c.Spec.TTY {
		opts = append(opts, oci.WithTTY)
	}
	user := config.User
	if c.Spec.User != "" {
		user = c.Spec.User
	}
	if user != "" {
		opts = append(opts, named("user "+strconv.Quote(user), oci.WithUser(user)), oci.WithAdditionalGIDs(user))
	}
	if len(c.Spec.GroupAdd) > 0 {
		opts = append(opts, named("groups", oci.WithAppendAdditionalGroups(c.Spec.GroupAdd...)))
	}
	if c.Spec.ReadOnly {
		opts = append(opts, oci.WithRootFSReadonly())
	}
	opts = append(opts, e.networkOpts(key, c)...)
	rights, err := runspec.Options(c, func(text string) { e.log.Warn(text, "container", c.ID.String()) })
	if err != nil {
		return nil, err
	}
	// Rights and limits come last: the privileged option replaces whole fields.
	return append(opts, rights...), nil
}

// cgroup returns the parent of our containers' control groups. Two engines on
// one machine have two.
func (e *Engine) cgroup() string { return "/" + e.opts.Namespace + "-" + e.net.Mark() }

// arguments follows Compose: an entrypoint of the spec replaces the image's
// entrypoint and command both, a command of the spec the image's command.
func arguments(spec protocol.Container, config ocispec.ImageConfig) []string {
	entrypoint, command := config.Entrypoint, config.Cmd
	if len(spec.Entrypoint) > 0 {
		entrypoint, command = spec.Entrypoint, nil
	}
	if len(spec.Command) > 0 {
		command = spec.Command
	}
	return slices.Concat(entrypoint, command)
}

// hostnameEnv is HOSTNAME, which Docker sets and shells and Java programs read. A
// container with the name of the node, which may change, is left without.
func hostnameEnv(c engine.Container) []string {
	if c.Spec.Network == protocol.NetworkHost && c.Spec.Hostname == "" {
		return nil
	}
	return []string{"HOSTNAME=" + names.Hostname(c)}
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

// mounts returns the mounts of c's spec, and those of the files that we generate.
func (e *Engine) mounts(key string, c engine.Container) ([]specs.Mount, error) {
	var out []specs.Mount
	taken := map[string]bool{}
	bind := func(source, target string, readOnly bool, options ...string) {
		mode := "rw"
		if readOnly {
			// What the node mounts below it later would be writable, and so stays out.
			mode, options = e.readOnly, []string{"rprivate"}
		}
		taken[filepath.Clean(target)] = true
		out = append(out, specs.Mount{Type: "bind", Source: source, Destination: target, Options: append(options, "rbind", mode)})
	}
	for i, m := range c.Spec.Mounts {
		if !filepath.IsAbs(m.Target) {
			return nil, engine.Errorf(protocol.CreateFailed, "container %s: mount target %q: want an absolute path", c.ID, m.Target)
		}
		switch m.Kind {
		case protocol.MountVolume:
			if m.Source == "" || strings.HasPrefix(m.Source, ".") || strings.ContainsRune(m.Source, '/') {
				return nil, engine.Errorf(protocol.CreateFailed, "container %s: volume name %q: want one without / that does not begin with a dot", c.ID, m.Source)
			}
			bind(e.volumeDir(c.ID.Deployment, m.Source), m.Target, m.ReadOnly)
		case protocol.MountBind:
			if _, err := os.Stat(m.Source); err != nil {
				return nil, engine.Errorf(protocol.CreateFailed, "container %s: the node has no %s to mount at %s, create it: %w", c.ID, m.Source, m.Target, err)
			}
			bind(m.Source, m.Target, m.ReadOnly, "rslave")
		case protocol.MountTmpfs:
			options := []string{"nosuid", "nodev", "mode=" + strconv.FormatUint(uint64(cmp.Or(m.Mode, 0o1777)), 8)}
			if m.NoExec {
				options = append(options, "noexec")
			}
			if m.Size > 0 {
				options = append(options, "size="+strconv.FormatUint(m.Size, 10))
			}
			if m.ReadOnly {
				options = append(options, "ro")
			}
			taken[filepath.Clean(m.Target)] = true
			out = append(out, specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: m.Target, Options: options})
		case protocol.MountFile:
			bind(e.dir(key, "files", strconv.Itoa(i)), m.Target, true)
		default:
			return nil, engine.Errorf(protocol.Incompatible, "container %s: mounts of kind %q are not known to this version of the agent: upgrade it", c.ID, m.Kind)
		}
	}
	owner := key // of the network, and with it of the names there
	if c.Spec.NetworkOf != "" {
		owner = e.networkKey(c)
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		if target := "/etc/" + name; !taken[target] {
			bind(e.dir(owner, name), target, false)
		}
	}
	// A mount hides what is mounted below it, so that the outer ones come first.
	slices.SortStableFunc(out, func(a, b specs.Mount) int { return depth(a.Destination) - depth(b.Destination) })
	return out, nil
}

// depth counts the elements of an absolute path; that of / is 0.
func depth(path string) int {
	if path = filepath.Clean(path); path == "/" {
		return 0
	}
	return strings.Count(path, "/")
}

func (e *Engine) networkOpts(key string, c engine.Container) []oci.SpecOpts {
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
		opts = append(opts, oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: e.net.NetNS(e.networkKey(c))}))
	}
	return append(opts, oci.WithHostname(names.Hostname(c)))
}

// stopOf returns the label that says how to stop c: its signal, and its grace
// in milliseconds.
func stopOf(c engine.Container, config ocispec.ImageConfig) string {
	signal, grace := "SIGTERM", c.Spec.StopTimeoutMillis
	if config.StopSignal != "" {
		signal = config.StopSignal
	}
	if c.Spec.StopSignal != "" {
		signal = c.Spec.StopSignal
	}
	if grace == 0 {
		grace = 10_000
	}
	return fmt.Sprintf("%s %d", signal, grace)
}

// imageConfig returns the part of an image that says how to run it.
func imageConfig(ctx context.Context, img client.Image) (ocispec.ImageConfig, error) {
	spec, err := img.Spec(ctx)
	return spec.Config, err
}
