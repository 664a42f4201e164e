package compiler

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/protocol"
)

// mounts joins volumes, tmpfs and configs. No two may have one target.
func (t *translation) mounts(service string, s types.ServiceConfig) []protocol.Mount {
	var all []protocol.Mount
	var files []protocol.Mount // of directories of the archive
	for _, v := range s.Volumes {
		if m, err := t.volume(service, v); err != nil {
			t.problem(service, "volumes", "%s: %v", v.Target, err)
		} else {
			all, files = append(all, m[0]), append(files, m[1:]...)
		}
	}
	for _, line := range s.Tmpfs {
		if m, err := tmpfs(line); err != nil {
			t.problem(service, "tmpfs", "%q: %v", line, err)
		} else {
			all = append(all, m)
		}
	}
	for _, c := range s.Configs {
		if m, err := t.config(c); err != nil {
			t.problem(service, "configs", "%s: %v", c.Source, err)
		} else {
			all = append(all, m)
		}
	}
	targets := map[string]bool{}
	for i := range all {
		if !path.IsAbs(all[i].Target) {
			t.problem(service, "volumes", "target %q: want an absolute path", all[i].Target)
		}
		all[i].Target = path.Clean(all[i].Target)
		if targets[all[i].Target] {
			t.problem(service, "volumes", "two mounts at %s", all[i].Target)
		}
		targets[all[i].Target] = true
	}
	// A file of a directory gives way to what is mounted in its place.
	all = append(all, slices.DeleteFunc(files, func(m protocol.Mount) bool { return targets[m.Target] })...)
	slices.SortFunc(all, func(a, b protocol.Mount) int { return strings.Compare(a.Target, b.Target) })
	return all
}

// volume translates one of volumes: into one mount, or a directory of the archive into
// one and the files in it.
func (t *translation) volume(service string, v types.ServiceVolumeConfig) ([]protocol.Mount, error) {
	if v.Type == types.VolumeTypeBind && !path.IsAbs(v.Source) {
		return t.relativeBind(service, v)
	}
	m, err := t.plainVolume(v)
	return []protocol.Mount{m}, err
}

func (t *translation) plainVolume(v types.ServiceVolumeConfig) (protocol.Mount, error) {
	m := protocol.Mount{Target: v.Target, ReadOnly: v.ReadOnly}
	if v.Tmpfs != nil && v.Type != types.VolumeTypeTmpfs {
		return m, fmt.Errorf("tmpfs options on a mount of type %s", v.Type)
	}
	switch v.Type {
	case types.VolumeTypeVolume:
		if v.Source == "" {
			return m, fmt.Errorf("the volume has no name: name it, and list it under volumes")
		}
		// Components share a deployment, in which a volume's name is unique.
		m.Kind, m.Source = protocol.MountVolume, t.component+"_"+v.Source
	case types.VolumeTypeBind:
		m.Kind, m.Source = protocol.MountBind, path.Clean(v.Source)
	case types.VolumeTypeTmpfs:
		m.Kind = protocol.MountTmpfs
		if v.Source != "" {
			return m, fmt.Errorf("a tmpfs has no source")
		}
		if v.Tmpfs != nil {
			m.Size = uint64(max(v.Tmpfs.Size, 0))
		}
	default:
		return m, fmt.Errorf("type %q: want volume, bind or tmpfs", v.Type)
	}
	return m, nil
}

// tmpfs reads the short form: a path, and size= as the one option.
func tmpfs(line string) (protocol.Mount, error) {
	target, options, _ := strings.Cut(line, ":")
	m := protocol.Mount{Kind: protocol.MountTmpfs, Target: target}
	for option := range strings.SplitSeq(options, ",") {
		switch key, value, _ := strings.Cut(option, "="); key {
		case "", "rw":
		case "size":
			var size types.UnitBytes
			if err := size.DecodeMapstructure(value); err != nil || size < 0 {
				return m, fmt.Errorf("size %q: want bytes, or a form such as 64m", value)
			}
			m.Size = uint64(size)
		case "ro":
			m.ReadOnly = true
		default:
			return m, fmt.Errorf("the option %q is not supported; size, ro and rw are", option)
		}
	}
	return m, nil
}

func (t *translation) config(c types.ServiceConfigObjConfig) (protocol.Mount, error) {
	m := protocol.Mount{Kind: protocol.MountFile, Target: c.Target, ReadOnly: true}
	if m.Target == "" {
		m.Target = "/" + c.Source
	}
	if c.Mode != nil {
		if *c.Mode < 0 || *c.Mode > 0o777 {
			return m, fmt.Errorf("mode %s: want at most 0777", c.Mode)
		}
		m.Mode = uint32(*c.Mode)
	}
	source, ok := t.project.Configs[c.Source]
	switch {
	case !ok:
		return m, fmt.Errorf("configs has no such entry")
	case source.File != "" && source.Content != "":
		return m, fmt.Errorf("it has both file and content: give one")
	case source.File != "":
		b, err := t.archive.file(source.File)
		if err != nil {
			return m, err
		}
		m.Content = b
	default:
		m.Content = []byte(source.Content)
	}
	return m, nil
}

// checkTargets refuses two volumes at one target, of which the loader keeps the
// later in silence.
func (t *translation) checkTargets(volumes map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(t.project.Services)) {
		if kept := len(t.project.Services[name].Volumes); kept != volumes[name] && volumes[name] >= 0 {
			t.problem(name, "volumes", "two of them have one target")
		}
	}
}

// mountOptions are those of the short form. All but ro and rw are for kernels and
// machines that nodes are not, and change nothing.
var mountOptions = []string{"ro", "rw", "z", "Z", "cached", "delegated", "consistent"}

// checkShortVolumes refuses options of the short form that the loader drops. It
// returns the number of volumes of each service, -1
// where it is not known.
func (t *translation) checkShortVolumes(document map[string]any) map[string]int {
	count := map[string]int{}
	services, _ := document["services"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(services)) {
		service, _ := services[name].(map[string]any)
		volumes, _ := service["volumes"].([]any)
		if count[name] = len(volumes); service["extends"] != nil {
			count[name] = -1 // those of another service come to them
		}
		for i, v := range volumes {
			text, ok := v.(string)
			if !ok {
				continue
			}
			text, err := substitute(text, t.lookup)
			parts := strings.Split(text, ":")
			if err != nil || len(parts) != 3 {
				continue // the loader says what is wrong
			}
			for option := range strings.SplitSeq(parts[2], ",") {
				if !slices.Contains(mountOptions, option) {
					t.problem(name, fmt.Sprintf("volumes[%d]", i), "the option %q is not supported; %s are", option, strings.Join(mountOptions, ", "))
				}
			}
		}
	}
	return count
}
