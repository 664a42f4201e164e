// Package address knows how the address of a git repository is written: a path, a URL, or
// user@host:path.
package address

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

var (
	scpForm    = regexp.MustCompile(`^[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+:[^:]`)
	secretForm = regexp.MustCompile(`(://[^/@:\s]*):[^/@\s]*@`)
)

// Check checks that a remote is a path, or a URL of a transport that cannot
// be made to run a command. Errors are of kind Invalid.
func Check(remote string) error {
	switch {
	case remote == "":
		return protocol.Errorf(protocol.Invalid, "git remote is empty: give a URL or a path")
	case strings.HasPrefix(remote, "-"), strings.ContainsAny(remote, "\x00\n\r"):
		return protocol.Errorf(protocol.Invalid, "git remote %q: not a URL or path", Redact(remote))
	case strings.Contains(remote, "::"):
		return protocol.Errorf(protocol.Invalid, "git remote %q: remote helpers are not allowed", Redact(remote))
	}
	if scheme, _, ok := strings.Cut(remote, "://"); ok {
		return checkURL(scheme, remote)
	}
	return nil
}

func checkURL(scheme, remote string) error {
	switch scheme {
	case "https", "http", "ssh", "git", "file":
	default:
		return protocol.Errorf(protocol.Invalid, "git remote %q: scheme %q is not one of https, http, ssh, git, file", Redact(remote), scheme)
	}
	u, err := url.Parse(remote)
	if err != nil {
		return protocol.Errorf(protocol.Invalid, "git remote %q: not a URL", Redact(remote))
	}
	if strings.HasPrefix(u.Hostname(), "-") || strings.HasPrefix(u.User.Username(), "-") || (scheme != "file" && u.Host == "") {
		return protocol.Errorf(protocol.Invalid, "git remote %q: bad host", Redact(remote))
	}
	return nil
}

// IsRemote reports whether s is written like the address of a git repository, and
// not like the path of a directory.
func IsRemote(s string) bool { return strings.Contains(s, "://") || IsSCP(s) }

// IsSCP reports whether s is an address of the form user@host:path (git-clone, "scp-like
// syntax").
func IsSCP(s string) bool { return !strings.Contains(s, "://") && scpForm.MatchString(s) }

// Redact replaces a password in any URL of s.
func Redact(s string) string { return secretForm.ReplaceAllString(s, "$1:***@") }
