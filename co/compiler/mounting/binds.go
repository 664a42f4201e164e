package mounting

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/co/compiler/composearchive"
	"github.com/colonyfleet/colony/co/compiler/mountspec"
	"github.com/colonyfleet/colony/protocol"
)

// relativeBind translates a bind of a path beside compose.yaml: a file or a directory of
// the archive is delivered with its content, and anything else is a volume of the
// deployment, which is what a directory that Docker makes is used as. So is one in the
// home directory of a user, which nodes do not have.
func (t *Translation) relativeBind(service string, v types.ServiceVolumeConfig) ([]protocol.Mount, error) {
	source := path.Clean(v.Source)
	if source == "." || source == ".." || strings.HasPrefix(source, "../") || source == "~" {
		return nil, fmt.Errorf("bind source %q: want a path below the directory of %s, or an absolute path of the node", v.Source, composearchive.ComposeFile)
	}
	if content, ok := t.Archive.Files[source]; ok {
		if !v.ReadOnly {
			t.Warn("services."+service+".volumes", "%s: the file %q of the archive is delivered read-only", v.Target, source)
		}
		return []protocol.Mount{{Kind: protocol.MountFile, Target: v.Target, ReadOnly: true, Content: content, Mode: t.Archive.Mode(source)}}, nil
	}
	volume := protocol.Mount{Kind: protocol.MountVolume, Target: v.Target, ReadOnly: v.ReadOnly, Source: t.Component + "_" + mountspec.BindVolume(source)}
	files := t.Archive.Below(source)
	names := slices.Sorted(maps.Keys(files))
	switch {
	case len(files) > 0 && v.ReadOnly && !mountspec.Written(t.Project.Services, source):
		// The directory hides what the image has there, as a bind of it does.
		mounts := []protocol.Mount{{Kind: protocol.MountTmpfs, Target: v.Target, ReadOnly: true}}
		for _, name := range names {
			mounts = append(mounts, protocol.Mount{
				Kind: protocol.MountFile, Target: path.Join(v.Target, name), ReadOnly: true,
				Content: files[name], Mode: t.Archive.Mode(path.Join(source, name)),
			})
		}
		return mounts, nil
	case len(files) > 0:
		t.Warn("services."+service+".volumes", "%s: %q is a volume of the deployment, which begins with the files of the archive", v.Target, source)
		for _, name := range names {
			volume.Files = append(volume.Files, protocol.File{Path: name, Content: files[name], Exec: t.Archive.Exec[path.Join(source, name)]})
		}
	case mountspec.EndsLikeFile(source):
		return nil, fmt.Errorf("bind source %q: the archive has no such file: put it in, beside %s", v.Source, composearchive.ComposeFile)
	case mountspec.AtFile(v.Target):
		return nil, fmt.Errorf("bind source %q: the archive has no such file, and the target is one: put it in, beside %s; for a directory, use a named volume", v.Source, composearchive.ComposeFile)
	default:
		empty := ""
		if v.ReadOnly && !mountspec.Written(t.Project.Services, source) {
			empty = fmt.Sprintf(", which stays empty, as nothing writes there: put the files in (an archive has at most %d bytes, and %d unpacked), or larger ones into an image, "+
				"or into a directory of the node that an absolute path names", composearchive.MaxBytes, composearchive.MaxUnpacked)
		}
		t.Warn("services."+service+".volumes", "%s: the archive has no %q: it is a volume of the deployment%s", v.Target, source, empty)
	}
	if o := mountspec.OwnerOf(t.Project.Services, source); o.Service != "" {
		volume.UID, volume.GID = o.UID, o.GID
		t.Warn("services."+service+".volumes", "%s: the volume belongs to user %d and group %d, as whom service %s runs; one that is there already keeps its owner", v.Target, o.UID, o.GID, o.Service)
		t.shared(service, v)
	}
	return []protocol.Mount{volume}, nil
}

// CheckBinds refuses relative binds that would be one directory in Docker and two
// volumes here, or two in Docker and one here.
func (t *Translation) CheckBinds() {
	used := map[string]string{} // by source, the volume
	for _, name := range slices.Sorted(maps.Keys(t.Project.Services)) {
		for _, v := range t.Project.Services[name].Volumes {
			source := path.Clean(v.Source)
			if v.Type != types.VolumeTypeBind || path.IsAbs(source) || len(t.Archive.Below(source)) > 0 && !mountspec.Written(t.Project.Services, source) || t.Archive.Files[source] != nil {
				continue
			}
			if _, taken := t.Project.Volumes[mountspec.BindVolume(source)]; taken {
				t.Problem(name, "volumes", "%s: %q becomes a volume of the name %s, which another one has: rename that one", v.Target, source, mountspec.BindVolume(source))
			}
			for _, other := range slices.Sorted(maps.Keys(used)) {
				inside := strings.HasPrefix(source, other+"/") || strings.HasPrefix(other, source+"/")
				if inside || other != source && used[other] == mountspec.BindVolume(source) {
					t.Problem(name, "volumes", "%s: %q and %q become volumes of their own, and one lies in the other or has its name: mount one directory, or use named volumes", v.Target, source, other)
				}
			}
			used[source] = mountspec.BindVolume(source)
		}
	}
}
