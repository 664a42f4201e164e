// Package git keeps the deployments repository: it reads commits, writes
// commits, and notices those of others. The remote owns the history; what lies on
// this machine is a bare cache that may be deleted, or torn by a crash, at any
// time and is built again from the remote.
//
// It drives the git binary, because git itself has every transport, credential
// and server quirk of the field. Every call has an environment of its own (no
// system or user configuration, no prompt), a time limit, and checked arguments.
package git

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/co/repo/git/names"

	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/co/repo/git/lastchange"
	"github.com/colonyfleet/colony/co/repo/git/leftlocks"
	"github.com/colonyfleet/colony/co/repo/git/program"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol"
)

// remoteRef is the ref of the cache that holds the remote's branch as seen last.
const remoteRef = "refs/colony/remote"

// An Author is the author of a commit.
type Author struct {
	Name  string `yaml:"name"`
	Email string `yaml:"email"` // of the commits that the CO makes
}

// Options configure a Repo.
type Options struct {
	// Dir is the directory of the cache. It belongs to one Repo at a time.
	Dir string
	// Remote is a URL that git understands (https, http, ssh, git, file,
	// user@host:path) or the path of a repository on this machine.
	Remote string
	// Branch defaults to main.
	Branch string
	// Author signs commits that name no author of their own. Default: Colony.
	Author Author
	// SSHCommand replaces "ssh -oBatchMode=yes", for example to name a key.
	SSHCommand string
	// CredentialFile is the path of a file in the format of git-credential-store,
	// for HTTP remotes. Empty: none.
	CredentialFile string
	// Timeout bounds one call of git. Default 60 s.
	Timeout time.Duration
	// OnReach, if given, is called by Watch on its goroutine each time that the
	// remote becomes unreachable (with the reason) or reachable again (with nil),
	// and never twice in a row for the same. It is reachable at first.
	OnReach func(ctx context.Context, remote string, err error)
	// Stamp, if given, returns the message of a commit with what is to be known of whose request ctx is of.
	Stamp func(ctx context.Context, message string) string
	// OnCommit, if given, is called with each commit that was made for a request.
	OnCommit func(ctx context.Context, commit string)
	// OnCall, if given, is called with each call of git that has ended, by the name of its command. It may be called concurrently.
	OnCall func(command string, took time.Duration, err error)
	// Logger defaults to one that discards.
	Logger *slog.Logger
}

// A Repo is one branch of one remote. It may be used concurrently.
type Repo struct {
	opts  Options
	git   program.Git
	log   *slog.Logger
	lock  *filelock.Lock // held for the Repo's life, against a second process in Dir
	asked notify.Signal  // by Notify

	// cache guards the cache's directory: readers share it, a rebuild owns it.
	cache sync.RWMutex
	// remote holds a value while a fetch or a push is under way.
	remote chan struct{}
	// writes counts fetches and commits since the last maintenance. Held by remote.
	writes int
	worn   notify.Signal // maintenance is due
	// writers are the changes that wait to be committed.
	writers writers

	// snapshot is the result of the last Read, to which the next adds only what
	// changed. Guarded by snapshotMu.
	snapshotMu sync.Mutex
	snapshot   *snapshotState

	// changes says which commit changed each path last. Guarded by changesMu.
	changesMu sync.Mutex
	changes   *lastchange.Index
	unsaved   int // commits that are in it and not in its file
}

// Open prepares the cache in o.Dir. It does not need the remote: a Repo whose
// remote is away serves what it has cached. Errors are of kind Invalid for wrong
// options, Conflict where another process uses Dir, and Unavailable otherwise.
func Open(ctx context.Context, o Options) (*Repo, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open git cache: %w", err)
	}
	o.Dir = dir
	if o.Remote, err = absolute(o.Remote); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "create git cache: %w", err)
	}
	lock, err := program.LockDir(dir)
	if err != nil {
		return nil, err
	}
	r := &Repo{
		opts: o, log: o.Logger, lock: lock,
		git:    program.Git{Home: dir, SSHCommand: o.SSHCommand, Timeout: o.Timeout, OnCall: o.OnCall},
		asked:  notify.New(),
		worn:   notify.New(),
		remote: make(chan struct{}, 1),
	}
	if err := r.prepare(ctx); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return r, nil
}

func (o *Options) setDefaults() {
	if o.Branch == "" {
		o.Branch = "main"
	}
	if o.Author == (Author{}) {
		o.Author = Author{Name: "Colony", Email: "colony@localhost"}
	}
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (o *Options) validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, protocol.Errorf(protocol.Invalid, "git cache directory is empty"))
	}
	errs = append(errs, address.Check(o.Remote), names.Branch(o.Branch), o.Author.check())
	return invalid(errors.Join(errs...))
}

// invalid gives a joined error one kind.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return protocol.Errorf(protocol.Invalid, "%w", err)
}

// Close ends the use of the cache's directory. Calls that still run fail.
func (r *Repo) Close() error {
	return r.lock.Close()
}

// Remote returns the remote without a password that may stand in its URL.
func (r *Repo) Remote() string { return address.Redact(r.opts.Remote) }

// bare is the path of the cache's repository.
func (r *Repo) bare() string { return filepath.Join(r.opts.Dir, "repo.git") }

// besides is where the remote has its files, where that is on this machine; else "".
func (r *Repo) besides() string {
	path, isFile := strings.CutPrefix(r.opts.Remote, "file://")
	if !isFile && address.IsRemote(r.opts.Remote) {
		return ""
	}
	return gitDir(path)
}

// prepare makes the cache usable after any crash: it removes what a killed git
// left behind and creates the repository where there is none.
func (r *Repo) prepare(ctx context.Context) error {
	if err := r.git.WriteConfig(r.opts.CredentialFile); err != nil {
		return err
	}
	if err := os.RemoveAll(r.bare() + ".new"); err != nil {
		return protocol.Errorf(protocol.Unavailable, "clean git cache: %w", err)
	}
	if err := program.RemoveStale(r.opts.Dir); err != nil {
		return err
	}
	if _, err := leftlocks.Clear(r.besides(), r.log); err != nil { // if a lock is in the way, the push fails with that
		r.log.WarnContext(ctx, "the deployments repository may be locked", "err", err)
	}
	if _, err := r.git.Run(ctx, program.Call{Dir: r.bare(), Args: []string{"rev-parse", "--git-dir"}}); err == nil {
		return nil
	}
	return r.initBare(ctx, r.bare())
}

func (r *Repo) initBare(ctx context.Context, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return protocol.Errorf(protocol.Unavailable, "clean git cache: %w", err)
	}
	_, err := r.git.Run(ctx, program.Call{Args: []string{"init", "--quiet", "--bare", "--template=", "--initial-branch=" + r.opts.Branch, "--", dir}})
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, "create git cache %s: %w", dir, err)
	}
	return nil
}

// InitBare creates an empty bare repository in dir, to serve as a remote, unless
// there is one already. Its writes are flushed to disk before a push is confirmed.
func InitBare(ctx context.Context, dir, branch string) error {
	if err := names.Branch(branch); err != nil {
		return err
	}
	if err := address.Check(dir); err != nil {
		return err
	}
	home, err := os.MkdirTemp("", "colony-git-")
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, "create repository %s: %w", dir, err)
	}
	defer os.RemoveAll(home) //nolint:errcheck // a temporary directory
	g := program.Git{Home: home, Timeout: time.Minute}
	if err := g.WriteConfig(""); err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("create repository: %w", err)
	}
	_, _ = leftlocks.Clear(dir, slog.New(slog.DiscardHandler)) // a lock that stays shows where it is in the way
	// Initialising again is harmless, and repairs one whose creation was cut short.
	steps := [][]string{
		{"init", "--quiet", "--bare", "--template=", "--initial-branch=" + branch, "--", dir},
		{"--git-dir=" + dir, "config", "core.fsync", "committed,loose-object,reference"},
	}
	for _, args := range steps {
		if _, err := g.Run(ctx, program.Call{Args: args}); err != nil {
			return protocol.Errorf(protocol.Unavailable, "create repository %s: %w", dir, err)
		}
	}
	return nil
}
