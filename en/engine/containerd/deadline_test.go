package containerd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// A daemon that is stopped takes calls and answers none.
func TestStoppedDaemonIsUnavailable(t *testing.T) {
	t.Parallel()
	r := setup(t)
	e := r.openWith(t, func(o *Options) { o.answer = 2 * time.Second })
	if _, err := e.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := daemonOf(t, r.daemon.Socket)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitStopped(t, pid)
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, listed := e.List(within)
	_, asked := e.Info(within)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"list": listed, "info": asked} {
		if engine.CodeOf(err) != protocol.EngineUnavailable {
			t.Errorf("%s: %v, want the engine unavailable", what, err)
		}
	}
	if _, err := r.List(t.Context()); err != nil {
		t.Errorf("the daemon goes on: %v", err)
	}
}

// awaitStopped waits until each thread of a process has stopped: a signal is delivered to
// a thread when it runs next.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	for {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("process %d has no threads: %v", pid, err)
		}
		running := slices.ContainsFunc(threads, func(path string) bool {
			b, err := os.ReadFile(path)
			// The state follows the name, which is in parentheses (proc_pid_stat(5)).
			return err == nil && !strings.HasPrefix(string(b[bytes.LastIndexByte(b, ')')+1:]), " T")
		})
		if !running {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the process does not stop")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// daemonOf returns the process of the containerd that listens on a socket.
func daemonOf(t *testing.T, socket string) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(b), "\x00")
		if filepath.Base(args[0]) == "containerd" && strings.Contains(string(b), filepath.Dir(socket)) {
			var pid int
			for _, digit := range filepath.Base(filepath.Dir(path)) {
				pid = 10*pid + int(digit-'0')
			}
			return pid
		}
	}
	t.Fatalf("no containerd at %s", socket)
	return 0
}

// DHCP may bring the name servers after the first container was started.
func TestNameServersFollowTheNode(t *testing.T) {
	t.Parallel()
	node := filepath.Join(t.TempDir(), "resolv.conf")
	r := setupWith(t, func(o *Options) { o.resolvConf = []string{node} })
	c := r.container("wait")
	r.run(t, c)
	if err := os.WriteFile(node, []byte("nameserver 192.0.2.7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.names.Follow(); err != nil {
		t.Fatal(err)
	}
	if got := r.output(t, c, "cat", "/etc/resolv.conf"); !strings.Contains(got, "192.0.2.7") {
		t.Errorf("the container's name servers are %q", got)
	}
	if err := os.WriteFile(node, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.names.Follow(); err != nil {
		t.Fatal(err)
	}
	if got := r.output(t, c, "cat", "/etc/resolv.conf"); !strings.Contains(got, "192.0.2.7") {
		t.Errorf("the container lost its name servers: %q", got)
	}
}
