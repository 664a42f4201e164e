package packaging

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// stand chooses the name that the vendor's compose.yaml has in a component whose compose.yaml is
// another file: one that is none in the vendor's folder. It is empty where compose.yaml alone was
// given, and stays what it is.
func stand(folder fs.FS, names []string) (string, error) {
	if len(names) == 1 && names[0] == composeFile {
		return "", nil
	}
	for i := range maxFiles {
		name := "compose.base.yaml"
		if i > 0 {
			name = fmt.Sprintf("compose.base-%d.yaml", i+1)
		}
		if _, err := fs.Stat(folder, name); errors.Is(err, fs.ErrNotExist) {
			return name, nil
		}
	}
	return "", invalid("there is no name left that %s can have beside the one in the package", composeFile)
}

// held returns the name that a file of the vendor's folder has in the component.
func (s *source) held(file string) string {
	if file == composeFile && s.stand != "" {
		return s.stand
	}
	return file
}

// A position is where a text stands in a file of the vendor's folder.
type position struct {
	file         string
	line, column int
}

// means notes what a text that may be a path of the vendor's compose.yaml is. The same text may be read several times: by
// aliases of YAML, and as of several folders. If it is not always that path, it cannot change.
func (s *source) means(n *yaml.Node, compose bool) {
	if s.stand == "" || !strings.Contains(n.Value, composeFile) {
		return
	}
	at := position{s.part.file, n.Line, n.Column}
	was, seen := s.meant[at]
	if seen && was != compose && s.unfit == nil {
		s.unfit = invalid("%s, line %d: %q is the file %s in one place where it is read, and something else in another; that file is another one in a package: write the two apart, or give the file another name",
			s.part.file, n.Line, n.Value, composeFile)
	}
	if s.meant == nil {
		s.meant = map[position]bool{}
	}
	s.meant[at] = compose
}

// rename notes a path of the vendor's compose.yaml, which has another name in the component: it
// must change in the file that is read. What is not written there as it is, is refused.
func (s *source) rename(n *yaml.Node) {
	before, after, _ := strings.Cut(n.Value, composeFile)
	folder := strings.NewReplacer("${PWD}", "", "$PWD", "").Replace(before)
	whole := (folder == "" || strings.ContainsAny(folder[len(folder)-1:], "/=:")) && (after == "" || after[0] == ':')
	if at, ok := begins(s.content, n, before+composeFile); ok && whole && !strings.Contains(folder, "$") {
		if s.renames[s.part.file] == nil {
			s.renames[s.part.file] = map[int]bool{}
		}
		s.renames[s.part.file][at+len(before)] = true
	} else if s.unfit == nil {
		s.unfit = invalid("%s, line %d: %q is the file %s, which is another one in a package: give the file another name, and write that here", s.part.file, n.Line, n.Value, composeFile)
	}
}

// begins returns where a text begins in a file that stands at the beginning of a value.
func begins(content []byte, n *yaml.Node, text string) (at int, ok bool) {
	for range n.Line - 1 {
		at += bytes.IndexByte(content[at:], '\n') + 1
	}
	line, _, _ := bytes.Cut(content[at:], []byte("\n"))
	before := []rune(string(line))
	before = before[:min(n.Column-1, len(before))]
	at += len(string(before))
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		at++
	}
	return at, at <= len(content) && bytes.HasPrefix(content[at:], []byte(text))
}

// renamed returns a Compose file of the vendor as it is in the component.
func (s *source) renamed(file string, content []byte) []byte {
	var all []int
	for at := range s.renames[file] {
		all = append(all, at)
	}
	slices.Sort(all)
	for _, at := range slices.Backward(all) {
		content = slices.Concat(content[:at], []byte(s.stand), content[at+len(composeFile):])
	}
	return content
}

// apart checks that nothing names what is not in the vendor's folder and has the name that the
// vendor's compose.yaml has in the component.
func (p *Package) apart(s *source) error {
	for _, r := range s.files {
		if _, taken := p.Files[path.Join(p.folder(), s.stand)]; taken && r.file == s.stand {
			return invalid("line %d: there is no file %s, and %s has that name in the package: write another name here", r.line, r.file, composeFile)
		}
	}
	return nil
}
