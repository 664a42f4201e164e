package compiler

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/protocol"
)

// fileEndings are those of files that an author writes. A relative bind of one that the
// archive does not have is a file that was forgotten: a volume in its place would give
// the program a directory.
var fileEndings = pathSet(`
.acl .cfg .cnf .conf .config .cron .crt .csv .env .html .hcl .ini .js .json .key .list .lua .passwd .pem
.properties .py .rules .sh .sql .template .tmpl .toml .txt .xml .yaml .yml
`)

var notInVolumeName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// relativeBind translates a bind of a path beside compose.yaml: a file or a directory of
// the archive is delivered with its content, and anything else is a volume of the
// deployment, which is what a directory that Docker makes is used as. So is one in the
// home directory of a user, which nodes do not have.
func (t *translation) relativeBind(service string, v types.ServiceVolumeConfig) ([]protocol.Mount, error) {
	source := path.Clean(v.Source)
	if source == "." || source == ".." || strings.HasPrefix(source, "../") || source == "~" {
		return nil, fmt.Errorf("bind source %q: want a path below the directory of %s, or an absolute path of the node", v.Source, composeFile)
	}
	if content, ok := t.archive.files[source]; ok {
		if !v.ReadOnly {
			t.warn("services."+service+".volumes", "%s: the file %q of the archive is delivered read-only", v.Target, source)
		}
		return []protocol.Mount{{Kind: protocol.MountFile, Target: v.Target, ReadOnly: true, Content: content}}, nil
	}
	volume := protocol.Mount{Kind: protocol.MountVolume, Target: v.Target, ReadOnly: v.ReadOnly, Source: t.component + "_" + bindVolume(source)}
	files := t.archive.below(source)
	switch {
	case len(files) > 0 && v.ReadOnly:
		// The directory hides what the image has there, as a bind of it does.
		volume = protocol.Mount{Kind: protocol.MountTmpfs, Target: v.Target, ReadOnly: true}
	case len(files) > 0:
		t.warn("services."+service+".volumes", "%s: the files of the archive below %q are delivered read-only; what is written beside them is kept in a volume", v.Target, source)
	case fileEndings[path.Ext(source)]:
		return nil, fmt.Errorf("bind source %q: the archive has no such file: put it in, beside %s", v.Source, composeFile)
	default:
		t.warn("services."+service+".volumes", "%s: the archive has no %q: it is a volume of the deployment", v.Target, source)
	}
	mounts := []protocol.Mount{volume}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		mounts = append(mounts, protocol.Mount{Kind: protocol.MountFile, Target: path.Join(v.Target, name), ReadOnly: true, Content: files[name]})
	}
	return mounts, nil
}

// bindVolume returns the name of the volume that stands for a relative path.
func bindVolume(source string) string {
	return "bind_" + strings.Trim(notInVolumeName.ReplaceAllString(source, "_"), "_")
}

// below returns the files in a directory of the archive, by their paths in it.
func (a *archive) below(dir string) map[string][]byte {
	files := map[string][]byte{}
	for name, content := range a.files {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok {
			files[rest] = content
		}
	}
	return files
}

// checkBindVolumes refuses relative binds that would be one directory in Docker and two
// volumes here.
func (t *translation) checkBindVolumes() {
	used := map[string]string{} // by source, the volume
	for _, name := range slices.Sorted(maps.Keys(t.project.Services)) {
		for _, v := range t.project.Services[name].Volumes {
			source := path.Clean(v.Source)
			if v.Type != types.VolumeTypeBind || path.IsAbs(source) || len(t.archive.below(source)) > 0 || t.archive.files[source] != nil {
				continue
			}
			for _, other := range slices.Sorted(maps.Keys(used)) {
				inside := strings.HasPrefix(source, other+"/") || strings.HasPrefix(other, source+"/")
				if inside || other != source && used[other] == bindVolume(source) {
					t.problem(name, "volumes", "%s: %q and %q become volumes of their own, and one lies in the other or has its name: mount one directory, or use named volumes", v.Target, source, other)
				}
			}
			used[source] = bindVolume(source)
		}
	}
}
