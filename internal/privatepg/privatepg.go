// Package privatepg runs a PostgreSQL server of its own: own data directory, a Unix socket that
// only its owner can enter, no network, never as root. It uses the server programs of the system
// and disturbs no other server on the machine.
//
// A cluster survives being killed at any moment. Initialisation is renamed into place when
// complete. A postmaster.pid that is left behind is recognised as stale, even if its process number
// belongs to another program by now. A server that outlived the program that started it is shut
// down before a new one starts.
package privatepg

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/childproc"
	"github.com/colonyfleet/colony/internal/filelock"
)

// superuser is the role that owns the cluster. Any user that can open the socket can use it: the
// permissions of the socket's directory are the access control.
const superuser = "colony"

// maxSocketPath is what fits into sockaddr_un, less the ".s.PGSQL.5432.lock"
// that the server puts behind the directory.
const maxSocketPath = 107 - len("/.s.PGSQL.5432.lock")

// Options say where and how a cluster runs. Only Dir is needed.
type Options struct {
	// Dir holds the data, the log and, where the path is short enough, the socket.
	// It is created where absent. Its parents must let the server's user through.
	Dir string
	// BinDir holds initdb and postgres. Empty: the version that made the data, or
	// the newest below /usr/lib/postgresql, or that in PATH.
	BinDir string
	// User runs the server when this program is root. Empty: postgres, else the unprivileged user of the system.
	User string
	// Settings are further server settings, by name.
	Settings map[string]string
	// NoFsync gives up durability for speed. For tests.
	NoFsync bool
	// DieWithParent has the kernel stop the server when this program ends, however
	// that happens. For tests.
	DieWithParent bool
	// StartTimeout bounds Start, recovery after a crash included. 0 means 60 s.
	StartTimeout time.Duration
	// Logger may be nil.
	Logger *slog.Logger
}

// A Cluster is a running server. Its methods may be called concurrently.
type Cluster struct {
	opts   Options
	owner  *syscall.Credential // nil: the user of this program
	bin    string
	data   string
	socket string
	lock   *filelock.Lock
	log    *slog.Logger

	child *childproc.Child
}

// Start brings the cluster in opts.Dir up, creating it first where there is
// none, and returns when it accepts connections. When ctx ends early, nothing is
// left running. One Dir has one Cluster at a time, across processes.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	if opts.Dir == "" {
		return nil, errors.New("private postgres: no directory given")
	}
	if opts.StartTimeout <= 0 {
		opts.StartTimeout = time.Minute
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("private postgres: %w", err)
	}
	opts.Dir = dir
	c := &Cluster{opts: opts, data: filepath.Join(dir, "data"), log: opts.Logger.With("component", "postgres")}
	ctx, cancel := context.WithTimeoutCause(ctx, opts.StartTimeout,
		fmt.Errorf("not ready after %s: see %s", opts.StartTimeout, c.logPath()))
	defer cancel()
	if err := c.start(ctx); err != nil {
		c.unlock()
		return nil, fmt.Errorf("private postgres in %s: %w", dir, err)
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	steps := []func(context.Context) error{
		c.findUser, c.prepareDirs, c.findPrograms, c.initialise, c.clearStale, c.launch,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	c.log.Info("postgres ready", "dir", c.opts.Dir, "pid", c.PID())
	return nil
}

// URL returns the connection URL of a database. "postgres" always exists.
func (c *Cluster) URL(database string) string {
	q := url.Values{"host": {c.socket}, "sslmode": {"disable"}}
	return "postgres://" + superuser + "@/" + url.PathEscape(database) + "?" + q.Encode()
}

// PID returns the process id of the server.
func (c *Cluster) PID() int { return c.child.PID() }

// Done is closed when the server has ended, by Stop or by itself.
func (c *Cluster) Done() <-chan struct{} { return c.child.Done() }

// Err says how the server ended. It is nil before Done is closed, and after a
// shutdown without fault.
func (c *Cluster) Err() error {
	select {
	case <-c.child.Done():
		return c.child.Err()
	default:
		return nil
	}
}

// Stop shuts the server down: open transactions are rolled back and everything
// is written out. When ctx ends first, the server is killed; the next Start then
// recovers. Stopping twice is allowed.
func (c *Cluster) Stop(ctx context.Context) error {
	defer c.unlock()
	c.child.Signal(syscall.SIGINT)
	select {
	case <-c.child.Done():
		return c.child.Err()
	case <-ctx.Done():
	}
	c.child.End(syscall.SIGQUIT, 2*time.Second) // immediate shutdown: its children end too
	return fmt.Errorf("stop private postgres in %s: killed: %w", c.opts.Dir, context.Cause(ctx))
}

// unlock gives the directory free.
func (c *Cluster) unlock() {
	if err := c.lock.Close(); err != nil {
		c.log.Warn("lock not given back", "dir", c.opts.Dir, "err", err)
	}
}

func (c *Cluster) logPath() string { return filepath.Join(c.opts.Dir, "postgres.log") }

// socketDir returns where the socket goes: below Dir, or, where that path does
// not fit into a socket address, in the temporary directory under a name that
// follows from Dir.
func (c *Cluster) socketDir() string {
	if dir := filepath.Join(c.opts.Dir, "run"); len(dir) <= maxSocketPath {
		return dir
	}
	h := fnv.New64a()
	h.Write([]byte(c.opts.Dir))
	return filepath.Join(os.TempDir(), fmt.Sprintf("colony-pg-%x", h.Sum64()))
}
