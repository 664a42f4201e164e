package privatecontainerd

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options(t *testing.T) Options {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("running containerd needs root")
	}
	return Options{Dir: filepath.Join(t.TempDir(), "c"), DieWithParent: true}
}

func start(t *testing.T, opts Options) *Daemon {
	t.Helper()
	d, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := d.Stop(ctx); err != nil {
			t.Error(err)
		}
		if err := Purge(ctx, opts.Dir); err != nil {
			t.Error(err)
		}
		if dir := filepath.Dir(d.Socket()); strings.HasPrefix(dir, "/run/") {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
	return d
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	opts := options(t)
	d := start(t, opts)
	c, err := net.Dial("unix", d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("a second daemon: %v, want a refusal that says what to do", err)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if commandLine(d.PID()) != nil {
		t.Error("the daemon lives on after Stop")
	}
	again := start(t, opts)
	if err := again.Kill(); err != nil {
		t.Fatal(err)
	}
	<-again.Done()
	start(t, opts)
}

// A directory too long for a socket has its socket elsewhere, always the same.
func TestLongDir(t *testing.T) {
	t.Parallel()
	opts := options(t)
	opts.Dir = filepath.Join(opts.Dir, strings.Repeat("long/", 25))
	d := start(t, opts)
	if len(d.Socket()) > maxSocketPath || d.Socket() != Socket(opts.Dir) {
		t.Errorf("socket %s, want one of at most %d characters", d.Socket(), maxSocketPath)
	}
}

// A daemon whose starter was killed is replaced, at whatever moment that was: the successor
// comes while the daemon is still being executed, too.
func TestOrphan(t *testing.T) {
	t.Parallel()
	for range 10 {
		opts := options(t)
		cmd, err := Command(opts)
		if err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		d := start(t, opts)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("the orphan lives on")
		}
		if d.PID() == cmd.Process.Pid {
			t.Error("the orphan was treated as the new daemon")
		}
	}
}

// Other processes that work in the directory of a daemon, and daemons of directories within
// it, are left alone.
func TestForeignProcesses(t *testing.T) {
	t.Parallel()
	opts := options(t)
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "600")
	other.Dir = opts.Dir
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.Process.Kill(); err != nil {
			t.Errorf("the other process has ended: %v", err)
		}
		_ = other.Wait() // it was killed
	})
	within := opts
	within.Dir = filepath.Join(opts.Dir, "within")
	inner := start(t, within)
	start(t, opts)
	select {
	case <-inner.Done():
		t.Error("the daemon of another directory has ended")
	default:
	}
}

// A process of which the program is being executed has no arguments yet, and is known all
// the same.
func TestKnownWhileItIsExecuted(t *testing.T) {
	t.Parallel()
	opts := options(t)
	for range 200 {
		cmd, err := Command(opts)
		if err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		known := serves(cmd.Process.Pid, cmd.Dir)
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it was killed
		if !known {
			t.Fatal("a daemon that has just begun is not known as one")
		}
	}
}

func TestFaultsSayWhatToDo(t *testing.T) {
	t.Parallel()
	opts := options(t)
	opts.Program = "/nowhere/containerd"
	if _, err := Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "install") {
		t.Errorf("no program: %v", err)
	}
	opts.Program = "/bin/false"
	if _, err := Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "containerd.log") {
		t.Errorf("a program that ends at once: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("changed my mind")
	cancel(cause)
	opts.Program = ""
	if _, err := Start(ctx, opts); !errors.Is(err, cause) {
		t.Errorf("cancelled: %v", err)
	}
}
