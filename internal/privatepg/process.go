package privatepg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/childproc"
	"github.com/colonyfleet/colony/internal/retry"
)

const (
	pollEvery   = 15 * time.Millisecond
	launchTries = 5
	logLimit    = 8 << 20 // bytes; a longer log begins anew with the next start
)

// clearStale removes what a killed server left behind, so that the next one
// starts. The caller holds the lock: a server still alive has lost its owner.
func (c *Cluster) clearStale(ctx context.Context) error {
	pidFile := filepath.Join(c.data, "postmaster.pid")
	b, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read postmaster.pid: %w", err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err == nil && c.serves(pid) {
		c.log.Info("stopping postgres that lost its owner", "pid", pid)
		if err := c.endOrphan(ctx, pid); err != nil {
			return err
		}
	}
	stale := []string{
		pidFile, filepath.Join(c.socket, ".s.PGSQL.5432.lock"), filepath.Join(c.socket, ".s.PGSQL.5432"),
	}
	for _, path := range stale {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove stale file: %w", err)
		}
	}
	return nil
}

// serves reports whether process pid is a server of this data directory. The
// server works in its data directory, which no unrelated process does.
func (c *Cluster) serves(pid int) bool {
	proc := "/proc/" + strconv.Itoa(pid)
	exe, err1 := os.Readlink(proc + "/exe")
	cwd, err2 := os.Readlink(proc + "/cwd")
	data, err3 := filepath.EvalSymlinks(c.data)
	return err1 == nil && err2 == nil && err3 == nil &&
		strings.HasPrefix(filepath.Base(exe), "postgres") && cwd == data
}

func (c *Cluster) endOrphan(ctx context.Context, pid int) error {
	const patience = 10 * time.Second
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	began := time.Now()
	sig := syscall.SIGINT
	_ = syscall.Kill(pid, sig) // it may end meanwhile
	for c.serves(pid) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop server %d that lost its owner: %w", pid, context.Cause(ctx))
		case <-tick.C:
		}
		if sig == syscall.SIGINT && time.Since(began) > patience {
			sig = syscall.SIGQUIT
			_ = syscall.Kill(pid, sig)
		}
	}
	return nil
}

// launch starts the server and waits until it is ready. It tries again where the
// server ends at once, because the children of a killed server may hold its
// shared memory for a moment longer.
func (c *Cluster) launch(ctx context.Context) error {
	var last error
	for try := range launchTries {
		if err := retry.Sleep(ctx, time.Duration(try)*200*time.Millisecond); err != nil {
			return errors.Join(err, last)
		}
		mark, err := c.spawn()
		if err != nil {
			return err
		}
		if err = c.waitReady(ctx); err == nil {
			return nil
		}
		last = fmt.Errorf("%w: %s", err, c.logSince(mark))
		if ctx.Err() != nil {
			c.child.Signal(syscall.SIGQUIT)
			<-c.child.Done()
			return last
		}
	}
	return last
}

func (c *Cluster) arguments() []string {
	settings := map[string]string{
		"listen_addresses":        "",
		"unix_socket_directories": c.socket,
		"unix_socket_permissions": "0700",
		"port":                    "5432",
		"logging_collector":       "off",
		"log_destination":         "stderr",
		"shared_buffers":          "64MB",
		"max_connections":         "60",
		"timezone":                "UTC",
	}
	if c.opts.NoFsync {
		settings["fsync"] = "off"
		settings["synchronous_commit"] = "off"
		settings["full_page_writes"] = "off"
	}
	for name, value := range c.opts.Settings {
		settings[name] = value
	}
	args := []string{"-D", c.data}
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}
	return args
}

// spawn starts the server process and the goroutine that waits for its end. It
// returns the length of the log before.
func (c *Cluster) spawn() (mark int64, err error) {
	out, mark, err := childproc.OpenLog(c.logPath(), logLimit)
	if err != nil {
		return 0, err
	}
	defer out.Close() // the server has its own copy
	cmd := exec.Command(filepath.Join(c.bin, "postgres"), c.arguments()...)
	cmd.Dir = c.opts.Dir
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = out, out
	// Its own process group: Ctrl-C in the terminal is for the program that stops
	// the server last.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner, Setpgid: true}
	with := syscall.Signal(0)
	if c.opts.DieWithParent {
		with = syscall.SIGQUIT
	}
	child, err := childproc.Start(cmd, with)
	if err != nil {
		return mark, fmt.Errorf("start postgres: %w", err)
	}
	c.child = child
	return mark, nil
}

// waitReady returns nil when the server accepts connections, which it writes
// into postmaster.pid (line 8), or an error when it ends before.
func (c *Cluster) waitReady(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.child.Done():
			return fmt.Errorf("the server ended while starting (%w)", orElse(c.child.Err(), errors.New("exit status 0")))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		b, err := os.ReadFile(filepath.Join(c.data, "postmaster.pid"))
		lines := strings.Split(string(b), "\n")
		if err == nil && len(lines) > 7 && lines[0] == strconv.Itoa(c.PID()) && strings.TrimSpace(lines[7]) == "ready" {
			return nil
		}
	}
}

func orElse(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// logSince returns the end of what the server wrote after mark.
func (c *Cluster) logSince(mark int64) string {
	b, err := os.ReadFile(c.logPath())
	if err != nil || int64(len(b)) < mark {
		return "no log"
	}
	b = bytes.TrimSpace(b[mark:])
	const enough = 1500
	if len(b) > enough {
		b = b[len(b)-enough:]
	}
	return string(b)
}
