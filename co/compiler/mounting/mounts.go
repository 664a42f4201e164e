// Package mounting translates what a Compose service mounts: volumes, binds, tmpfs, configs and secrets.
package mounting

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/co/compiler/composearchive"
	"github.com/colonyfleet/colony/co/compiler/interpolate"
	"github.com/colonyfleet/colony/co/compiler/mountspec"
	"github.com/colonyfleet/colony/protocol"
)

// A Translation is of one Compose project. All fields are required.
type Translation struct {
	Component string
	Archive   *composearchive.Archive
	Project   *types.Project
	Extended  map[string]bool // the services that extend another one
	// Problem notes what is wrong with a key of a service, Warn what is to be known of a place in the file.
	Problem func(service, key, format string, args ...any)
	Warn    func(at, format string, args ...any)
	// Lookup returns the value of a variable.
	Lookup func(name string) (string, bool)
}

// Mounts joins volumes, tmpfs and configs. No two may have one target.
func (t *Translation) Mounts(service string, s types.ServiceConfig) []protocol.Mount {
	var all []protocol.Mount
	var files []protocol.Mount // of directories of the archive
	for _, v := range append(slices.Clone(s.Volumes), t.volumesFrom(service, s)...) {
		if m, err := t.volume(service, v); err != nil {
			shown := v.Target
			if mountspec.Drive(v.Source) { // the target is what is behind the next colon
				shown = v.Source
			}
			t.Problem(service, "volumes", "%s: %v", shown, err)
		} else {
			t.checkTarget(service, "volumes", m[0])
			all, files = append(all, m[0]), append(files, m[1:]...)
		}
	}
	for _, line := range s.Tmpfs {
		if m, err := mountspec.Tmpfs(line); err != nil {
			t.Problem(service, "tmpfs", "%q: %v", line, err)
		} else {
			t.checkTarget(service, "tmpfs", m)
			all = append(all, m)
		}
	}
	for _, c := range s.Configs {
		if m, err := t.config(c); err != nil {
			t.Problem(service, "configs", "%s: %v", c.Source, err)
		} else {
			t.checkTarget(service, "configs", m)
			all = append(all, m)
		}
	}
	for _, d := range s.Devices {
		if path.IsAbs(d.Target) {
			t.checkTarget(service, "devices", protocol.Mount{Target: d.Target})
		}
	}
	all = append(all, t.secrets(service, s)...)
	targets := map[string]bool{}
	for i := range all {
		all[i].Target = path.Clean(all[i].Target)
		if targets[all[i].Target] {
			t.Problem(service, "volumes", "two mounts at %s", all[i].Target)
		}
		targets[all[i].Target] = true
	}
	// A file of a directory gives way to what is mounted in its place.
	all = append(all, slices.DeleteFunc(files, func(m protocol.Mount) bool { return targets[m.Target] })...)
	slices.SortFunc(all, func(a, b protocol.Mount) int { return strings.Compare(a.Target, b.Target) })
	for _, m := range all {
		if in := mountspec.Around(all, m); in.Kind == protocol.MountVolume && in.ReadOnly {
			t.Warn("services."+service+".volumes", "%s: it lies in the read-only volume at %s, where nothing can be made for it: the container starts only where the volume has something there already; "+
				"leave ro out there, or mount this elsewhere", m.Target, in.Target)
		}
	}
	return all
}

// checkTarget refuses a mount, or a device, where no container can have one.
func (t *Translation) checkTarget(service, key string, m protocol.Mount) {
	if !path.IsAbs(m.Target) {
		t.Problem(service, key, "target %q: want an absolute path", m.Target)
	} else if err := mountspec.CheckTarget(m); err != nil {
		t.Problem(service, key, "%v", err)
	}
}

// volumesFrom returns the volumes of other services that a service takes over.
func (t *Translation) volumesFrom(service string, s types.ServiceConfig) []types.ServiceVolumeConfig {
	for _, from := range s.VolumesFrom {
		name, mode, _ := strings.Cut(from, ":")
		of, ok := t.Project.Services[name]
		switch {
		case !ok || mode != "" && mode != "ro" && mode != "rw":
			t.Problem(service, "volumes_from", "%q: want the name of a service, with :ro or without", from)
			continue
		case len(of.VolumesFrom) > 0:
			t.Problem(service, "volumes_from", "%s takes over those of others itself: name these here", name)
		}
		t.Warn("services."+service+".volumes_from", "a volume that the image of %s declares, and the service does not list, is not taken over", name)
	}
	return mountspec.Inherited(t.Project.Services, s)
}

// volume translates one of volumes: into one mount, or a directory of the archive into
// one and the files in it.
func (t *Translation) volume(service string, v types.ServiceVolumeConfig) ([]protocol.Mount, error) {
	if mountspec.Drive(v.Source) || v.Source == "" && mountspec.Drive(v.Target) {
		return nil, fmt.Errorf("a name of one letter is taken for a drive of Windows, by Docker as well: give the volume a name of two or more characters")
	}
	if v.Type == types.VolumeTypeBind && !path.IsAbs(v.Source) {
		return t.relativeBind(service, v)
	}
	if v.Type == types.VolumeTypeVolume && v.Source != "" {
		t.shared(service, v)
	}
	m, err := t.plainVolume(v)
	return []protocol.Mount{m}, err
}

// shared warns where another service writes to the same volume as another user.
func (t *Translation) shared(service string, v types.ServiceVolumeConfig) {
	if other, own := mountspec.OtherUser(t.Project.Services, service, v); other.Service != "" {
		t.Warn("services."+service+".volumes", "%s: service %s writes there as user %d, and this one as user %d: the volume has one owner, and another user can do only what the modes of its files allow: "+
			"give both services one user", v.Target, other.Service, other.UID, own.UID)
	}
}

func (t *Translation) plainVolume(v types.ServiceVolumeConfig) (protocol.Mount, error) {
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
		m.Kind, m.Source = protocol.MountVolume, t.Component+"_"+v.Source
		if v.Volume != nil {
			m.NoCopy, m.Subpath = v.Volume.NoCopy, v.Volume.Subpath
		}
		if m.Subpath != "" {
			if m.Subpath = path.Clean(m.Subpath); !filepath.IsLocal(m.Subpath) || m.Subpath == "." {
				return m, fmt.Errorf("volume.subpath %q: want a path in the volume, without / at its beginning and without .. in it", v.Volume.Subpath)
			}
		}
		if opts := t.Project.Volumes[v.Source].DriverOpts; len(opts) > 0 {
			if m.Subpath != "" {
				return m, fmt.Errorf("volume.subpath of a volume that is a directory of the node: name the directory in its device")
			}
			bind, err := mountspec.Local(opts)
			bind.Target, bind.ReadOnly = v.Target, bind.ReadOnly || v.ReadOnly
			return bind, err
		}
	case types.VolumeTypeBind:
		m.Kind, m.Source = protocol.MountBind, path.Clean(v.Source)
	case types.VolumeTypeTmpfs:
		m.Kind = protocol.MountTmpfs
		if v.Source != "" {
			return m, fmt.Errorf("a tmpfs has no source")
		}
		return m, mountspec.LongTmpfs(&m, v.Tmpfs)
	default:
		return m, fmt.Errorf("type %q: want volume, bind or tmpfs", v.Type)
	}
	return m, nil
}

func (t *Translation) config(c types.ServiceConfigObjConfig) (protocol.Mount, error) {
	source, ok := t.Project.Configs[c.Source]
	if !ok {
		return protocol.Mount{}, fmt.Errorf("configs has no such entry")
	}
	return t.fileObject(types.FileReferenceConfig(c), types.FileObjectConfig(source), "/"+c.Source)
}

// fileObject translates a config or a secret, whose default target is given. It has one of
// file, environment and content; an empty content is a config that is empty.
func (t *Translation) fileObject(c types.FileReferenceConfig, source types.FileObjectConfig, target string) (protocol.Mount, error) {
	m, err := mountspec.File(c, target)
	if err != nil {
		return m, err
	}
	given := 0
	for _, text := range []string{source.File, source.Environment, source.Content} {
		// The loader gives one of a variable its content.
		if text != "" && (text != source.Content || source.Environment == "") {
			given++
		}
	}
	switch {
	case given > 1:
		return m, fmt.Errorf("it has more than one of file, environment and content: give one")
	case source.File != "":
		m.Mode = cmp.Or(m.Mode, t.Archive.Mode(source.File))
		m.Content, err = t.Archive.File(source.File)
	case source.Environment != "":
		value, ok := t.Lookup(source.Environment)
		if !ok {
			return m, fmt.Errorf("no parameter sets the variable %s, nor does %s", source.Environment, interpolate.DotEnv)
		}
		m.Content = []byte(value)
	default:
		m.Content = []byte(source.Content)
	}
	return m, err
}

// secrets translates secrets from files of the archive and from parameters.
func (t *Translation) secrets(service string, s types.ServiceConfig) []protocol.Mount {
	var all []protocol.Mount
	for _, c := range s.Secrets {
		m, err := t.secret(types.FileReferenceConfig(c))
		if err != nil {
			t.Problem(service, "secrets", "%s: %v", c.Source, err)
			continue
		}
		t.checkTarget(service, "secrets", m)
		t.Warn("services."+service+".secrets", "%s: it stands readable in the deployment: who may read that may read the secret", c.Source)
		all = append(all, m)
	}
	return all
}

const secretsDir = "/run/secrets"

func (t *Translation) secret(c types.FileReferenceConfig) (protocol.Mount, error) {
	target := c.Target
	if target != "" && !path.IsAbs(target) {
		c.Target = path.Join(secretsDir, target)
	}
	source, ok := t.Project.Secrets[c.Source]
	switch {
	case !ok:
		return protocol.Mount{}, fmt.Errorf("secrets has no such entry")
	case source.File == "" && source.Environment == "":
		return protocol.Mount{}, fmt.Errorf("want file or environment")
	}
	return t.fileObject(c, types.FileObjectConfig(source), path.Join(secretsDir, c.Source))
}

// CheckTargets refuses two volumes at one target, of which the loader keeps the
// later in silence.
func (t *Translation) CheckTargets(volumes map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(t.Project.Services)) {
		if loaded := len(t.Project.Services[name].Volumes); loaded != volumes[name] && volumes[name] >= 0 {
			t.Problem(name, "volumes", "two of them have one target")
		}
	}
}

// CheckShort refuses options of the short form that the loader drops. It
// returns the number of volumes of each service, -1
// where it is not known.
func (t *Translation) CheckShort(document map[string]any) map[string]int {
	count := map[string]int{}
	services, _ := document["services"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(services)) {
		service, _ := services[name].(map[string]any)
		volumes, _ := service["volumes"].([]any)
		if count[name] = len(volumes); t.Extended[name] {
			count[name] = -1 // those of another service come to them
		}
		for i, v := range volumes {
			text, ok := v.(string)
			if !ok {
				continue
			}
			text, err := interpolate.Text(text, t.Lookup)
			parts := strings.Split(text, ":")
			if err != nil || len(parts) != 3 {
				continue // the loader says what is wrong
			}
			for option := range strings.SplitSeq(parts[2], ",") {
				if !slices.Contains(mountspec.Short, option) {
					t.Problem(name, fmt.Sprintf("volumes[%d]", i), "the option %q is not supported; %s are", option, strings.Join(mountspec.Short, ", "))
				}
			}
		}
	}
	return count
}
