package git

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/colonyfleet/colony/co/repo/git/names"

	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/co/repo/git/program"
	"github.com/colonyfleet/colony/protocol"
)

// maxExport bounds what Export writes, in bytes and in files.
const (
	maxExportBytes = 128 << 20
	maxExportFiles = 20_000
)

// Export writes the files of one commit of a remote into dir, which must be empty,
// and returns the commit. ref is a branch, a tag or a full commit; "" means the
// remote's default branch. Symbolic links and submodules are not exported: nothing
// that the repository holds can make a reader leave dir. Only the options about the
// connection are used: SSHCommand, CredentialFile, Timeout. Without them no key, agent
// or credential of this process is offered, and no redirect is followed. Errors are of
// kind Invalid for bad names, NotFound for an unknown ref, and Unavailable where
// the remote is away.
func Export(ctx context.Context, o Options, remote, ref, dir string) (string, error) {
	o.Remote = remote
	o.setDefaults()
	if err := address.Check(remote); err != nil {
		return "", err
	}
	if ref == "" {
		ref = "HEAD"
	}
	if err := names.Ref(ref); err != nil {
		return "", err
	}
	home, err := os.MkdirTemp("", "colony-git-")
	if err != nil {
		return "", protocol.Errorf(protocol.Unavailable, "export git remote: %w", err)
	}
	defer os.RemoveAll(home) //nolint:errcheck // a temporary directory
	r := &Repo{opts: o, log: slog.New(slog.DiscardHandler), git: program.Git{Home: home, SSHCommand: o.SSHCommand, Timeout: o.Timeout, Foreign: transport(remote)}}
	r.opts.Dir = home
	if r.opts.Remote, err = absolute(remote); err != nil {
		return "", err
	}
	if err := errors.Join(r.git.WriteConfig(o.CredentialFile), r.initBare(ctx, r.bare())); err != nil {
		return "", err
	}
	_, err = r.local(ctx, "fetch", "--quiet", "--no-tags", "--depth=1", "--no-recurse-submodules", "--",
		r.opts.Remote, "+"+ref+":"+remoteRef)
	switch {
	case err == nil:
	case program.Printed(err, "couldn't find remote ref", "not our ref"):
		return "", protocol.Errorf(protocol.NotFound, "git remote %s has no ref %q", r.Remote(), ref)
	case program.Printed(err, "died of signal 25", "File too large"):
		return "", protocol.Errorf(protocol.Invalid, "git remote %s is larger than 256 MiB", r.Remote())
	default:
		return "", r.unavailable("fetch", err)
	}
	commit, err := r.cachedHead(ctx)
	if err != nil {
		return "", err
	}
	s, err := r.exportable(ctx, commit)
	if err != nil {
		return "", err
	}
	return commit, writeFiles(dir, s.Files)
}

// transport returns the git transport that a remote is reached by.
func transport(remote string) string {
	if scheme, _, ok := strings.Cut(remote, "://"); ok {
		return scheme
	}
	if address.IsRemote(remote) {
		return "ssh"
	}
	return "file"
}

// exportable reads the files of a commit that has no history here.
func (r *Repo) exportable(ctx context.Context, commit string) (*snapshotState, error) {
	objects, err := r.tree(ctx, commit)
	if err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "read commit %.12s: %w", commit, err)
	}
	if len(objects) > maxExportFiles {
		return nil, protocol.Errorf(protocol.Invalid, "git remote %s has %d files, the limit is %d", r.Remote(), len(objects), maxExportFiles)
	}
	s := &snapshotState{objects: objects, Snapshot: Snapshot{Commit: commit, Files: map[string][]byte{}}}
	var paths []string
	for p, o := range objects {
		if o.skip == "" && names.Path(p) == nil {
			paths = append(paths, p)
		}
	}
	if err := r.contents(ctx, paths, s); err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "read commit %.12s: %w", commit, err)
	}
	return s, nil
}

func writeFiles(dir string, files map[string][]byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("export to %s: %w", dir, err)
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	total := 0
	for p, content := range files {
		if total += len(content); total > maxExportBytes {
			return protocol.Errorf(protocol.Invalid, "the repository holds more than %d bytes", maxExportBytes)
		}
		if err := root.MkdirAll(path.Dir(p), 0o750); err != nil {
			return fmt.Errorf("export %s: %w", p, err)
		}
		if err := root.WriteFile(p, content, 0o640); err != nil {
			return fmt.Errorf("export %s: %w", p, err)
		}
	}
	return nil
}

// absolute makes the path of a repository on this machine independent of the
// directory in which git runs.
func absolute(remote string) (string, error) {
	if address.IsRemote(remote) {
		return remote, nil
	}
	abs, err := filepath.Abs(remote)
	if err != nil {
		return "", fmt.Errorf("git remote %s: %w", remote, err)
	}
	return abs, nil
}
