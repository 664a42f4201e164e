package git

import (
	"fmt"
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

func checkBranch(branch string) error {
	if err := checkRef(branch); err != nil {
		return protocol.Errorf(protocol.Invalid, "git branch %q: not a branch name", branch)
	}
	return nil
}

func checkRef(ref string) error {
	bad := !refForm.MatchString(ref) || strings.Contains(ref, "..") || strings.Contains(ref, "@{") ||
		strings.Contains(ref, "//") || strings.Contains(ref, "/.") || strings.HasSuffix(ref, "/") ||
		strings.HasSuffix(ref, ".") || strings.HasSuffix(ref, ".lock") || strings.Contains(ref, ".lock/")
	if bad {
		return protocol.Errorf(protocol.Invalid, "git ref %q: not a branch, tag or commit", ref)
	}
	return nil
}

func checkCommit(commit string) error {
	if !commitForm.MatchString(commit) {
		return protocol.Errorf(protocol.Invalid, "commit %q: want 40 or 64 lower-case hex digits", commit)
	}
	return nil
}

func checkPath(p string) error {
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

func (a Author) check() error {
	for _, s := range []string{a.Name, a.Email} {
		if s == "" || strings.ContainsAny(s, "<>\n\r\x00") {
			return protocol.Errorf(protocol.Invalid, "git author %s: name and e-mail must be given, without < and >", a)
		}
	}
	return nil
}

// String returns the author as git writes it.
func (a Author) String() string { return fmt.Sprintf("%s <%s>", a.Name, a.Email) }
