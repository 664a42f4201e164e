package composefile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A finding is about a key that is refused, or accepted with a warning. It is one of the project
// where the key is in the document that the files make together: a file that is merged over, or
// a service that extends, may take the key out.
type finding struct {
	path string // of the key: see pathOf
	line int    // in its file
	text string
	note bool // the key is accepted
}

// before stands before each step of a path: no key has it in it.
const before = "\x00"

// pathOf returns a path that is unique, with any text in the keys.
func pathOf(steps ...any) string {
	var b strings.Builder
	for _, step := range steps {
		b.WriteString(before)
		if n, ok := step.(int); ok {
			fmt.Fprintf(&b, "[%d]", n)
		} else {
			fmt.Fprint(&b, step)
		}
	}
	return b.String()
}

// around reports whether a path, or one around it, is among others.
func around(path string, others map[string]bool) bool {
	for i := 1; i < len(path) && len(others) > 0; i++ {
		if path[i:i+1] == before && others[path[:i]] {
			return true
		}
	}
	return others[path]
}

// pathsOf returns a set of paths.
func pathsOf(all [][]any) map[string]bool {
	set := make(map[string]bool, len(all))
	for _, path := range all {
		set[pathOf(path...)] = true
	}
	return set
}

// findings are those of a document, by the path of the service, or of the entry of another
// section, that they are about.
type findings map[string][]finding

func (all findings) add(f finding) {
	entry := f.path
	if parts := strings.SplitN(f.path, before, 4); len(parts) == 4 {
		entry = before + parts[1] + before + parts[2]
	}
	all[entry] = append(all[entry], f)
}

// bring adds those of another document, which is not merged.
func (all findings) bring(other findings) {
	for entry, more := range other {
		all[entry] = slices.Concat(all[entry], more)
	}
}

// merge adds those of a document that is merged over this one, from which it takes out replaced.
func (all findings) merge(other findings, replaced map[string]bool) {
	for entry := range all {
		all[entry] = over(all[entry], other[entry], replaced)
	}
	for entry, more := range other {
		if _, both := all[entry]; !both {
			all[entry] = more
		}
	}
}

// sorted returns all of them, one entry after the other.
func (all findings) sorted() (list []finding) {
	for _, entry := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[entry]...)
	}
	return list
}

// texts returns what refuses keys and what warns of them, each text once.
func (all findings) texts() (problems, notes []string) {
	seen := map[string]bool{}
	for _, f := range all.sorted() {
		switch {
		case seen[f.text]: // several services extend the same
		case f.note:
			notes = append(notes, f.text)
		default:
			problems = append(problems, f.text)
		}
		seen[f.text] = true
	}
	return problems, notes
}

// over returns the findings of an entry with another one merged over it, from which that takes
// out replaced. Of a key that both have, the finding is that of the other; lists are joined.
func over(entry, other []finding, replaced map[string]bool) (all []finding) {
	both := make(map[string]bool, len(other))
	for _, f := range other {
		both[f.path] = true
	}
	for _, f := range entry {
		inList := strings.Contains(f.path, before+"[")
		if !around(f.path, replaced) && (inList || !both[f.path]) {
			all = append(all, f)
		}
	}
	return append(all, other...)
}

// renamed returns the findings of a service as those of another one, which extends it.
func renamed(service []finding, from, to string) []finding {
	all := slices.Clone(service)
	for i := range all {
		all[i].path = pathOf("services", to) + strings.TrimPrefix(all[i].path, pathOf("services", from))
	}
	return all
}

// standIn gives a service whose build is refused the name of an image where it has none, so that
// the rest of it can be judged.
func (all findings) standIn(values map[string]any) {
	services, _ := values["services"].(map[string]any)
	for name, v := range services {
		service, ok := v.(map[string]any)
		build := pathOf("services", name, "build")
		refused := slices.ContainsFunc(all[pathOf("services", name)], func(f finding) bool { return f.path == build })
		if ok && refused && service["image"] == nil {
			service["image"] = "built"
		}
	}
}
