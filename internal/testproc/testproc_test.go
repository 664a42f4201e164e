package testproc

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/internal/testpart"
)

// recorder keeps what a test would be failed with.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper()           {}
func (r *recorder) Failed() bool      { return len(r.errors) > 0 }
func (r *recorder) Error(args ...any) { r.errors = append(r.errors, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func TestLife(t *testing.T) {
	r := &recorder{TB: t}
	p := New(r, "sleeper", filepath.Join(t.TempDir(), "log"))
	if err := p.Running(); err == nil || p.PID() != 0 {
		t.Errorf("before the start: error %v, pid %d", err, p.PID())
	}
	for _, end := range []func(){p.Kill, p.Stop} {
		p.Start("sh", "-c", "echo started; exec sleep 600")
		pid := p.PID()
		if err := p.Running(); err != nil {
			t.Fatal(err)
		}
		end()
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("process %d after its end: %v, want none", pid, err)
		}
		end() // again does nothing
	}
	if len(r.errors) > 0 {
		t.Errorf("failed with %q", r.errors)
	}
}

func TestEndByItself(t *testing.T) {
	r := &recorder{TB: t}
	p := New(r, "quitter", filepath.Join(t.TempDir(), "log"))
	p.Start("sh", "-c", "echo it is broken; exit 3")
	testpart.Eventually(t, "it has ended", func() bool { return p.Running() != nil })
	p.Kill()
	if len(r.errors) != 1 || !strings.Contains(r.errors[0], "quitter ended by itself: exit status 3") || !strings.Contains(r.errors[0], "it is broken") {
		t.Errorf("failed with %q, want its end and its last words", r.errors)
	}
}
