// Package privatecontainerd runs a containerd of its own: own root, state and
// socket, without the Kubernetes parts. It uses the programs of the system and
// disturbs no other daemon on the machine.
//
// Containers outlive the daemon, as with every containerd; a daemon that is
// started again finds them. Purge ends and unmounts what is left of them.
package privatecontainerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/childproc"
	"github.com/colonyfleet/colony/internal/filelock"
)

// maxSocketPath is what fits into sockaddr_un, less the ".ttrpc" that the daemon
// puts behind the name of its second socket.
const maxSocketPath = 107 - len(".ttrpc")

const (
	pollEvery = 15 * time.Millisecond
	logLimit  = 8 << 20 // bytes; a longer log begins anew with the next start
)

// Options say where and how a daemon runs. Only Dir is needed.
type Options struct {
	// Dir holds the images and containers, the log and, where the path is short
	// enough, the socket. It is created where absent.
	Dir string
	// Program is the daemon. Empty: containerd in PATH.
	Program string
	// DieWithParent has the kernel kill the daemon when this program ends, however
	// that happens. Containers go on.
	DieWithParent bool
	// StartTimeout bounds Start. 0 means 30 s.
	StartTimeout time.Duration
	// Logger may be nil.
	Logger *slog.Logger
}

// A Daemon is a running containerd. Its methods may be called concurrently.
type Daemon struct {
	dir   string
	log   *slog.Logger
	lock  *filelock.Lock
	child *childproc.Child
}

// Socket returns the socket of the daemon in dir. The same dir always has the
// same socket.
func Socket(dir string) string {
	path := filepath.Join(dir, "containerd.sock")
	if len(path) <= maxSocketPath {
		return path
	}
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join("/run", "colony-"+hex.EncodeToString(sum[:6]), "containerd.sock")
}

// Command writes the configuration of the daemon in opts.Dir and returns the command that runs it
// in the foreground, for callers that supervise it themselves.
func Command(opts Options) (*exec.Cmd, error) {
	dir, err := filepath.Abs(opts.Dir)
	if err != nil || opts.Dir == "" {
		return nil, fmt.Errorf("private containerd: want a directory, got %q", opts.Dir)
	}
	program := opts.Program
	if program == "" {
		program = "containerd"
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("private containerd: %w: install it (apt-get install containerd)", err)
	}
	for _, d := range []string{dir, filepath.Dir(Socket(dir))} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, fmt.Errorf("private containerd: %w", err)
		}
	}
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, configuration(dir), 0o600); err != nil {
		return nil, fmt.Errorf("private containerd: %w", err)
	}
	cmd := exec.Command(path, "--config", config)
	cmd.Dir = dir
	return cmd, nil
}

// configuration returns the daemon's configuration. Version 2 is read by 1.6 as
// well as by 2.x, and so both names of the Kubernetes plugins are given.
func configuration(dir string) []byte {
	return fmt.Appendf(nil, `version = 2
root = %q
state = %q
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.internal.v1.restart", "io.containerd.nri.v1.nri",
]
[grpc]
address = %q
[plugins."io.containerd.internal.v1.opt"]
path = %q
`, filepath.Join(dir, "root"), filepath.Join(dir, "state"), Socket(dir), filepath.Join(dir, "opt"))
}

// Start brings the daemon in opts.Dir up and returns when it accepts
// connections. A daemon that outlived the program that started it is replaced.
// One Dir has one Daemon at a time, across processes.
func Start(ctx context.Context, opts Options) (*Daemon, error) {
	cmd, err := Command(opts)
	if err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.StartTimeout <= 0 {
		opts.StartTimeout = 30 * time.Second
	}
	d := &Daemon{dir: cmd.Dir, log: opts.Logger.With("component", "containerd")}
	ctx, cancel := context.WithTimeoutCause(ctx, opts.StartTimeout,
		fmt.Errorf("not ready after %s: see %s", opts.StartTimeout, d.LogPath()))
	defer cancel()
	if err := d.start(ctx, cmd, opts.DieWithParent); err != nil {
		return nil, fmt.Errorf("private containerd in %s: %w", d.dir, errors.Join(err, d.lock.Close()))
	}
	d.log.Info("containerd ready", "dir", d.dir, "pid", d.PID())
	return d, nil
}

func (d *Daemon) start(ctx context.Context, cmd *exec.Cmd, die bool) error {
	if err := d.acquireLock(); err != nil {
		return err
	}
	dir, err := filepath.EvalSymlinks(d.dir) // as the kernel names it
	if err != nil {
		return err
	}
	if err := endOrphans(ctx, dir); err != nil {
		return err
	}
	if err := os.Remove(d.Socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := d.spawn(cmd, die); err != nil {
		return err
	}
	if err := d.waitReady(ctx); err != nil {
		return errors.Join(err, d.Kill())
	}
	return nil
}

func (d *Daemon) acquireLock() error {
	lock, err := filelock.Acquire(filepath.Join(d.dir, "lock"))
	if errors.Is(err, filelock.ErrHeld) {
		return fmt.Errorf("another program runs the daemon in this directory: stop it first (%w)", err)
	}
	d.lock = lock
	return err
}

func (d *Daemon) spawn(cmd *exec.Cmd, die bool) error {
	out, _, err := childproc.OpenLog(d.LogPath(), logLimit)
	if err != nil {
		return err
	}
	defer out.Close() // the daemon has its own copy
	cmd.Stdout, cmd.Stderr = out, out
	// Its own process group: Ctrl-C in the terminal is for the program that stops
	// the daemon last.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	with := syscall.Signal(0)
	if die {
		with = syscall.SIGKILL
	}
	if d.child, err = childproc.Start(cmd, with); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	return nil
}

// waitReady returns nil once the daemon listens, which it does when all its
// plugins are loaded.
func (d *Daemon) waitReady(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.child.Done():
			return fmt.Errorf("containerd ended while starting (%w): see %s", orEnded(d.child.Err()), d.LogPath())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		var dialer net.Dialer
		c, err := dialer.DialContext(ctx, "unix", d.Socket())
		if err == nil {
			return c.Close()
		}
	}
}

func orEnded(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// Socket returns the path of the daemon's socket.
func (d *Daemon) Socket() string { return Socket(d.dir) }

// LogPath returns the path of the daemon's log.
func (d *Daemon) LogPath() string { return filepath.Join(d.dir, "containerd.log") }

// PID returns the process id of the daemon.
func (d *Daemon) PID() int { return d.child.PID() }

// Done is closed when the daemon has ended.
func (d *Daemon) Done() <-chan struct{} { return d.child.Done() }

// Stop ends the daemon, and kills it if it has not ended when ctx does.
// Containers go on.
func (d *Daemon) Stop(ctx context.Context) error {
	d.child.Signal(syscall.SIGTERM)
	select {
	case <-d.child.Done():
	case <-ctx.Done():
		d.log.WarnContext(ctx, "containerd killed because it did not stop", "pid", d.PID())
	}
	return d.Kill()
}

// Kill kills the daemon if it still runs. Containers go on.
func (d *Daemon) Kill() error {
	d.child.Signal(syscall.SIGKILL)
	<-d.child.Done()
	return d.lock.Close()
}
