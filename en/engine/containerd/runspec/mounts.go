package runspec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// mounts returns the mounts of c's spec, and those of the files that the node makes for it.
func mounts(c engine.Container, around Surroundings) ([]specs.Mount, error) {
	var out []specs.Mount
	taken := map[string]bool{}
	bind := func(source, target string, readOnly bool, options ...string) {
		mode := "rw"
		if readOnly {
			// What the node mounts below it later would be writable, and so stays out.
			mode, options = around.ReadOnly, []string{"rprivate"}
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
			if err := checkSubpath(c, m, around); err != nil {
				return nil, err
			}
			bind(filepath.Join(around.Volume(m.Source), m.Subpath), m.Target, m.ReadOnly)
		case protocol.MountBind:
			if _, err := os.Stat(m.Source); err != nil {
				return nil, engine.Errorf(protocol.CreateFailed, "container %s: the node has no %s to mount at %s, create it: %w", c.ID, m.Source, m.Target, err)
			}
			bind(m.Source, m.Target, m.ReadOnly, "rslave")
		case protocol.MountTmpfs:
			taken[filepath.Clean(m.Target)] = true
			out = append(out, specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: m.Target, Options: tmpfsOptions(m)})
		case protocol.MountFile:
			bind(around.File(i), m.Target, true)
		default:
			return nil, engine.Errorf(protocol.Incompatible, "container %s: mounts of kind %q are not known to this version of the agent: upgrade it", c.ID, m.Kind)
		}
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		if target := "/etc/" + name; !taken[target] {
			bind(around.Names(name), target, false)
		}
	}
	if c.Spec.Init {
		out = append(out, specs.Mount{Type: "bind", Source: around.Init, Destination: initTarget, Options: []string{"bind", "ro"}})
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
