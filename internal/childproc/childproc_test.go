package childproc_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/childproc"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
)

// parentEnv has this program play a parent: it starts a child, prints its process id, and waits.
const parentEnv = "CHILDPROC_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentEnv) == "" {
		os.Exit(m.Run())
	}
	child := exec.Command("cat")
	child.Stdin = os.Stdin // it ends with it: never
	c, err := childproc.Start(child, syscall.SIGKILL)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(c.PID())
	select {}
}

// TestEndsWithItsParent kills a process that has started a child: the child ends, too.
func TestEndsWithItsParent(t *testing.T) {
	t.Parallel()
	in, keep := pipe(t)
	defer keep.Close()
	pid := testproc.Orphan(t, in, parentEnv+"=1")
	testpart.Eventually(t, "the child ends", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return errors.Is(err, fs.ErrNotExist) || strings.Contains(string(state), ") Z ")
	})
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// TestEnd reports how a program ended, and that one cannot be started.
func TestEnd(t *testing.T) {
	t.Parallel()
	var status *exec.ExitError
	if err := childproc.Run(exec.Command("sh", "-c", "exit 3"), syscall.SIGKILL); !errors.As(err, &status) || status.ExitCode() != 3 {
		t.Errorf("error %v, want exit status 3", err)
	}
	if err := childproc.Run(exec.Command("true"), 0); err != nil {
		t.Errorf("error %v, want none", err)
	}
	if _, err := childproc.Start(exec.Command(filepath.Join(t.TempDir(), "none")), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want that there is no such program", err)
	}
	c, err := childproc.Start(exec.Command("sleep", "1000"), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	c.Signal(syscall.SIGTERM)
	<-c.Done()
	if !errors.As(c.Err(), &status) || status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM { //nolint:errcheck,forcetypeassert // it is what os/exec says it is
		t.Errorf("error %v, want the end by SIGTERM", c.Err())
	}
	c.Signal(syscall.SIGTERM) // nothing happens
	if !c.End(syscall.SIGTERM, time.Hour) {
		t.Error("a program that has ended does not end in time")
	}
	in, keep := pipe(t)
	defer keep.Close()
	deaf := exec.Command("sh", "-c", "trap '' TERM; echo deaf; read x")
	deaf.Stdin = in
	out, err := deaf.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c, err = childproc.Start(deaf, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if c.End(syscall.SIGTERM, time.Millisecond) {
		t.Error("a program that ignores SIGTERM ends in time")
	}
	<-c.Done()
}

// TestOpenLog adds to a log until it is too long.
func TestOpenLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	for i, want := range []int64{0, 5, 10, 0} {
		out, size, err := childproc.OpenLog(path, 10)
		if err != nil {
			t.Fatal(err)
		}
		if size != want {
			t.Errorf("opened for the %d. time it has %d bytes, want %d", i+1, size, want)
		}
		if _, err := out.WriteString("12345"); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "12345" {
		t.Errorf("the log holds %q (%v), want what was written since it was begun anew", b, err)
	}
}
