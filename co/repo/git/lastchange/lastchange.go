// Package lastchange knows which commit changed each file of a git repository last, so that a
// caller need not walk its history for that.
package lastchange

import (
	"path"
	"strings"
)

// An Index says for each path of a commit which commit changed it last.
type Index struct {
	Head    string            `json:"head"`    // the commit
	Commits map[string]string `json:"commits"` // by path, the files of the commit
}

// Put applies a commit that made a difference, by its files: their contents, or nil for one that is
// removed with all that is below it. It returns false, and changes nothing, where what the commit
// changed does not follow from that: it has several files, a removal, or a file in the place of a
// folder or below another file.
func (c *Index) Put(files map[string][]byte, commit string) bool {
	for p, content := range files {
		if len(files) != 1 || content == nil {
			return false
		}
		if _, known := c.Commits[p]; !known && c.replaces(p) {
			return false
		}
		c.Commits[p] = commit
	}
	c.Head = commit
	return true
}

// replaces reports whether a new file takes the place of a folder, or of a file above it.
func (c *Index) replaces(p string) bool {
	for up := path.Dir(p); up != "."; up = path.Dir(up) {
		if _, file := c.Commits[up]; file {
			return true
		}
	}
	for other := range c.Commits {
		if strings.HasPrefix(other, p+"/") {
			return true
		}
	}
	return false
}

// Apply adds what git log prints of commits with --name-status -z and the format %x01%H, the newest
// first, and returns how many commits it has.
func (c *Index) Apply(log string) (commits int) {
	seen := map[string]bool{}
	current, status := "", ""
	for item := range strings.SplitSeq(log, "\x00") {
		item = strings.TrimPrefix(item, "\n")
		switch commit, ok := strings.CutPrefix(item, "\x01"); {
		case ok:
			current, status = strings.Clone(commit), ""
			commits++
		case item == "":
		case status == "":
			status = item
		default:
			if !seen[item] {
				seen[item] = true
				if delete(c.Commits, item); status != "D" {
					c.Commits[strings.Clone(item)] = current
				}
			}
			status = ""
		}
	}
	return commits
}
