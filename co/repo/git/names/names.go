// Package names checks the names that people and files give for what is in a git repository, before git reads them.
// Errors are of kind Invalid.
package names

import (
	"path"
	"regexp"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

var (
	commitForm = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	// refForm is narrower than git's own rule: what it accepts means the same
	// to every git, and never an option or a revision expression.
	refForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+/@-]*$`)
)

// Branch checks the name of a branch.
func Branch(branch string) error {
	if err := Ref(branch); err != nil {
		return protocol.Errorf(protocol.Invalid, "git branch %q: not a branch name", branch)
	}
	return nil
}

// Ref checks the name of a branch or tag, or a commit.
func Ref(ref string) error {
	bad := !refForm.MatchString(ref) || strings.Contains(ref, "..") || strings.Contains(ref, "@{") ||
		strings.Contains(ref, "//") || strings.Contains(ref, "/.") || strings.HasSuffix(ref, "/") ||
		strings.HasSuffix(ref, ".") || strings.HasSuffix(ref, ".lock") || strings.Contains(ref, ".lock/")
	if bad {
		return protocol.Errorf(protocol.Invalid, "git ref %q: not a branch, tag or commit", ref)
	}
	return nil
}

// Commit checks the full name of a commit.
func Commit(commit string) error {
	if !commitForm.MatchString(commit) {
		return protocol.Errorf(protocol.Invalid, "commit %q: want 40 or 64 lower-case hex digits", commit)
	}
	return nil
}

// Path checks a path of a file or folder in a repository.
func Path(p string) error {
	if p == "" || p == "." || path.IsAbs(p) || path.Clean(p) != p || strings.HasPrefix(p, "../") || p == ".." ||
		strings.HasPrefix(p, "-") || strings.ContainsAny(p, "\x00\n\r\\") {
		return protocol.Errorf(protocol.Invalid, "path %q: want a clean path relative to the repository", p)
	}
	for part := range strings.SplitSeq(p, "/") {
		if strings.EqualFold(part, ".git") {
			return protocol.Errorf(protocol.Invalid, "path %q: %q is not allowed", p, part)
		}
	}
	return nil
}
