package catalog

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/protocol"
)

// Sources say where packages may come from: a caller of the API must not be able to read the files
// of the CO's machine, use its credentials, or reach its networks. The zero value allows nothing.
type Sources struct {
	// Roots are directories of this machine, absolute. What is below one may be
	// imported; a symbolic link that leads out of it is not followed.
	Roots []string
	// Remotes are git repositories, each with all below it.
	Remotes []Remote
	// Registries are hosts of OCI registries, host or host:port; docker.io is Docker Hub.
	Registries []string
}

// A Remote is a git repository, or in Sources a prefix of such, and the means to reach it.
type Remote struct {
	// URL is scheme://host/path; the scheme is https, http, ssh or git. In Sources it
	// stands for itself and for all paths below it.
	URL string
	// SSHCommand takes the place of ssh; "": an ssh without any key.
	SSHCommand string
	// CredentialFile is in the form of git-credential-store; "": no credentials.
	CredentialFile string
}

// Check returns all faults of s.
func (s Sources) Check() error {
	var errs []error
	for i, root := range s.Roots {
		if !filepath.IsAbs(root) {
			errs = append(errs, fmt.Errorf("roots[%d] %q: want an absolute path", i, root))
		}
	}
	for i, r := range s.Remotes {
		if _, err := parseRemote(r.URL); err != nil {
			errs = append(errs, fmt.Errorf("git[%d].url: %w", i, err))
		}
	}
	for i, host := range s.Registries {
		if host == "" || strings.ContainsAny(host, "/@ ") {
			errs = append(errs, fmt.Errorf("registries[%d] %q: want host or host:port", i, host))
		}
	}
	return errors.Join(errs...)
}

// parseRemote reads a git URL, or the form user@host:path of one.
func parseRemote(remote string) (*url.URL, error) {
	if address.IsSCP(remote) {
		host, p, _ := strings.Cut(remote, ":")
		remote = "ssh://" + host + "/" + strings.TrimPrefix(p, "/")
	}
	u, err := url.Parse(remote)
	if err != nil { // its text would show a password
		return nil, errors.New("not a URL")
	}
	p := strings.TrimSuffix(u.Path, "/")
	switch {
	case !slices.Contains([]string{"https", "http", "ssh", "git"}, u.Scheme):
		return nil, fmt.Errorf("scheme %q is not one of https, http, ssh, git", u.Scheme)
	case u.Host == "":
		return nil, errors.New("no host")
	case p != "" && path.Clean(p) != p, strings.ContainsAny(p, "\\\x00"):
		return nil, errors.New("the path is not in its shortest form")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("a query has no meaning here")
	}
	u.Path, u.Host = p, strings.ToLower(u.Host)
	return u, nil
}

// remote returns how the remote of an import may be reached.
func (s Sources) remote(remote string) (Remote, error) {
	u, err := parseRemote(remote)
	if err != nil {
		return Remote{}, protocol.Errorf(protocol.Invalid, "import %s: %w", redact(remote), err)
	}
	for _, r := range s.Remotes {
		allowed, err := parseRemote(r.URL)
		if err != nil || u.Scheme != allowed.Scheme || u.Host != allowed.Host {
			continue
		}
		if rest, ok := strings.CutPrefix(u.Path, allowed.Path); ok && (rest == "" || rest[0] == '/' || rest == ".git") {
			r.URL = remote
			return r, nil
		}
	}
	return Remote{}, protocol.Errorf(protocol.Denied, "import %s: no remote like this may be imported: name it in import.git of the CO's configuration", redact(remote))
}

// ErrNotNamed is a registry that the configuration does not name.
var ErrNotNamed = errors.New("name it in import.registries of the CO's configuration, or use one that is named there")

// Registry says why the registry of a host may not be read. It holds for packages, for
// Compose archives and for the images of both, whether an import or a deployment asks.
func (s Sources) Registry(host string) error {
	if host == "index.docker.io" { // another name of the same registry
		host = "docker.io"
	}
	if slices.Contains(s.Registries, host) {
		return nil
	}
	return protocol.Errorf(protocol.Denied, "registry %s may not be read: %w", host, ErrNotNamed)
}

// A local is a path below an import root.
type local struct {
	root *os.Root // of the import root; the caller closes it
	rel  string   // the path below it
	path string   // without symbolic links
}

// local opens the import root that holds a path. What it answers about a path outside
// of all roots does not depend on whether there is such a file.
func (s Sources) local(source string) (local, error) {
	p := filepath.Clean(source)
	for _, root := range s.Roots {
		rel, ok := below(filepath.Clean(root), p)
		if !ok {
			continue
		}
		r, err := os.OpenRoot(root)
		if err != nil {
			return local{}, protocol.Errorf(protocol.Unavailable, "import %s: open import root %s: %w", source, root, cause(err))
		}
		l := local{root: r, rel: rel}
		if err := l.resolve(root, p); err != nil {
			return local{}, errors.Join(protocol.Errorf(protocol.KindOf(err), "import %s: %w", source, err), r.Close())
		}
		return l, nil
	}
	return local{}, protocol.Errorf(protocol.Denied,
		"import %s: the path is below none of the import roots of the central orchestrator: name one in import.roots of its configuration", source)
}

// resolve finds the path without symbolic links, which must stay below the root.
func (l *local) resolve(root, p string) error {
	_, err := l.root.Stat(l.rel)
	if errors.Is(err, os.ErrNotExist) {
		return protocol.Errorf(protocol.NotFound, "no such file or directory on the machine of the central orchestrator")
	}
	if err != nil { // a link that leads out is one
		return protocol.Errorf(protocol.Denied, "it cannot be reached from its import root: %w", cause(err))
	}
	realRoot, err := filepath.EvalSymlinks(root)
	if err == nil {
		l.path, err = filepath.EvalSymlinks(p)
	}
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, "resolve symbolic links: %w", cause(err))
	}
	if _, ok := below(realRoot, l.path); !ok {
		return protocol.Errorf(protocol.Denied, "it leads out of its import root")
	}
	return nil
}

// below returns the path of p relative to dir, where it is below dir or dir itself.
func below(dir, p string) (string, bool) {
	rel, err := filepath.Rel(dir, p)
	return rel, err == nil && filepath.IsLocal(rel)
}

// repository checks that a path is a git repository which holds all its objects
// itself: git must not be led to another one.
func (l local) repository() error {
	dir := l.rel
	if !l.isBare() {
		dir = path.Join(dir, ".git")
		if info, err := l.root.Lstat(dir); err != nil || !info.IsDir() {
			return protocol.Errorf(protocol.Invalid, "not a git repository with a folder .git of its own")
		}
	}
	for _, name := range []string{"commondir", "objects/info/alternates", "objects/info/http-alternates"} {
		if _, err := l.root.Lstat(path.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			return protocol.Errorf(protocol.Denied, "the git repository refers to another one (%s)", name)
		}
	}
	for _, name := range []string{"HEAD", "objects", "refs", "config"} {
		info, err := l.root.Lstat(path.Join(dir, name))
		if err == nil && !info.IsDir() && !info.Mode().IsRegular() || err != nil && !errors.Is(err, os.ErrNotExist) {
			return protocol.Errorf(protocol.Denied, "%s of the git repository is neither a file nor a folder", name)
		}
	}
	return nil
}

// isBare reports whether the path is a bare git repository.
func (l local) isBare() bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := l.root.Stat(path.Join(l.rel, name)); err != nil {
			return false
		}
	}
	return true
}
