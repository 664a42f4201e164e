package layout

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// idsWithin is how much of a file is looked at for ids, in bytes.
	idsWithin = 64 << 10
	// idsOfFile is how many ids of one file count.
	idsOfFile = 16
)

var uuid = regexp.MustCompile(`[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)

// A Tree is one commit of the deployments repo. Its maps are by path.
type Tree struct {
	// Files has contents, Blobs their ids, and Commits the last commits that changed the files.
	Files          map[string][]byte
	Blobs, Commits map[string]string
	// Age has the commits along the first parents, the newest with 0.
	Age map[string]int
	// Since is the age of the oldest commit that was not looked at before, -1 where none is known: what was pushed with a removal counts as if one
	// commit had made both.
	Since int
	// Refused reports whether a file that is where the CO reads it is refused.
	Refused func(file string) bool
}

// A Missing is a file that a commit removed.
type Missing struct {
	Path, Commit string
	// Blob is the id of the content that it had.
	Blob string
	// Site and ID are those of what it deployed. Fleet: it is the file of a fleet deployment, and may have deployed at more sites.
	Site  protocol.SiteID
	ID    string
	Fleet bool
}

// Leftovers are the files that the CO does not read as a deployment, or refuses: each may be one that is missing, under a name or in a folder that was not meant.
type Leftovers struct {
	tree Tree
	// folders has the files of each folder; alike those whose name begins as that of a deployment's file, by the last folder and by the last two, in lower
	// case; contents those that the newest commits changed by the id of their content, and ids by what looks like the id of a deployment in them.
	folders, alike, contents, ids map[string][]string
	// found has what was found, by the path of the missing file.
	found map[string]string
}

// LeftoversOf looks for what may be missing since commits of an age, or younger ones.
func LeftoversOf(t Tree, oldest int) *Leftovers {
	out := &Leftovers{
		tree: t, found: map[string]string{},
		folders: map[string][]string{}, alike: map[string][]string{}, contents: map[string][]string{}, ids: map[string][]string{},
	}
	oldest = max(oldest, t.Since)
	for _, p := range slices.Sorted(maps.Keys(t.Commits)) {
		age, along := t.Age[t.Commits[p]]
		changed := along && age <= oldest
		ours := strings.HasPrefix(p, "deployments/") || strings.HasPrefix(p, "fleet/")
		if !changed && !ours || t.reads(p) {
			continue
		}
		folder, base := split(p)
		out.folders[folder] = append(out.folders[folder], p)
		if changed {
			out.index(p, folder, base)
		}
	}
	return out
}

func (f *Leftovers) index(p, folder, base string) {
	if named(base) {
		above, last := split(strings.ToLower(folder))
		_, first := split(above)
		f.alike[last] = append(f.alike[last], p)
		f.alike[first+"/"+last] = append(f.alike[first+"/"+last], p)
	}
	if blob := f.tree.Blobs[p]; blob != "" {
		f.contents[blob] = append(f.contents[blob], p)
	}
	content := f.tree.Files[p]
	for _, id := range uuid.FindAll(content[:min(len(content), idsWithin)], idsOfFile) {
		key := strings.ToLower(string(id))
		f.ids[key] = append(f.ids[key], p)
	}
}

// reads reports whether the CO reads a file as a deployment, or as one of a fleet deployment, and does not refuse it.
func (t *Tree) reads(p string) bool {
	_, _, ok := fleetfile.Of(p)
	return (ok || IsDeployment(strings.Split(p, "/"))) && !t.Refused(p)
}

// split returns the folder of a path and the last part of it.
func split(p string) (folder, base string) {
	i := strings.LastIndexByte(p, '/')
	return p[:max(i, 0)], p[i+1:]
}

// named reports whether the name of a file begins as that of a deployment's file.
func named(base string) bool {
	return strings.HasPrefix(strings.ToLower(strings.TrimSpace(base)), "deployment")
}

// Of returns what may be a missing file, "" where nothing looks so.
func (f *Leftovers) Of(m Missing) string {
	if p, known := f.found[m.Path]; known { // of another site, where a fleet deployment is at several
		return p
	}
	found := ""
	look := func(list []string, holds func(p string) bool) {
		if i := slices.IndexFunc(list, holds); found == "" && i >= 0 {
			found = list[i]
		}
	}
	changed := func(p string) bool { return f.changed(p, m.Commit) }
	folder, _ := split(m.Path)
	look(f.contents[m.Blob], changed)
	look(f.folders[folder], func(p string) bool {
		_, base := split(p)
		return named(base) || !strings.HasPrefix(base, ".") && changed(p)
	})
	_, last, _ := strings.Cut(folder, "/") // without the first folder: the names
	look(f.alike[last], changed)
	if !m.Fleet {
		look(f.ids[m.ID], changed)
	} else if found == "" {
		for _, u := range slices.Sorted(maps.Keys(f.ids)) {
			if of := (&fleetfile.File{ID: u}); of.IDAt(m.Site) == m.ID {
				look(f.ids[u], changed)
			}
		}
	}
	f.found[m.Path] = found
	return found
}

// changed reports whether the last change of a file came with a commit or after it, or was pushed with it.
func (f *Leftovers) changed(p, commit string) bool {
	age, along := f.tree.Age[f.tree.Commits[p]]
	of, ok := f.tree.Age[commit]
	if !along || !ok {
		return f.tree.Commits[p] == commit
	}
	return age <= max(of, f.tree.Since)
}
