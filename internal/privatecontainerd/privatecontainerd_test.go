package privatecontainerd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
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

// A daemon whose starter was killed is replaced.
func TestOrphan(t *testing.T) {
	t.Parallel()
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
	if err := os.WriteFile(pidFile(opts.Dir), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
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

// A process that merely has the number of an old daemon is left alone.
func TestForeignPID(t *testing.T) {
	t.Parallel()
	opts := options(t)
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pidFile(opts.Dir), []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, opts)
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
