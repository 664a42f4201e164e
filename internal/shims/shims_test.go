package shims

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const child = "COLONY_SHIM_CHILD"

// TestMain plays a shim: it begins a process, says so, and waits.
func TestMain(m *testing.M) {
	if os.Getenv(child) == "" {
		os.Exit(m.Run())
	}
	inner := exec.Command("cat")
	inner.Stdin, inner.Stdout = os.Stdin, os.Stdout // the reader of stdout sees its end
	if err := inner.Start(); err != nil {
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString("ready\n") // a reader that went away ends the test by itself
	_ = inner.Wait()                        // both are killed
}

func TestFindAndKill(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	address := t.TempDir() + "/sock"
	cmd.Args = []string{"/usr/bin/containerd-shim-runc-v2", "-namespace", "ns", "-id", "box", "-address", address}
	cmd.Env = append(os.Environ(), child+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, 6)
	if _, err := io.ReadFull(out, ready); err != nil || !strings.HasPrefix(string(ready), "ready") {
		t.Fatalf("%q %v", ready, err)
	}
	for _, other := range [][2]string{{address, "other"}, {address + "x", "ns"}} {
		if got, err := Find(other[0], other[1]); err != nil || len(got) != 0 {
			t.Errorf("of %q: %v %v, want none", other, got, err)
		}
	}
	got, err := Find(address, "ns")
	if err != nil || len(got) != 1 || got[0].Container != "box" || got[0].PID != cmd.Process.Pid {
		t.Fatalf("found %+v %v, want box", got, err)
	}
	if err := got[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(out); err != nil { // ends when the child has, too
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if err := got[0].Kill(); err != nil {
		t.Errorf("killed again: %v", err)
	}
	if left, err := Find(address, "ns"); err != nil || len(left) != 0 {
		t.Errorf("left %+v %v", left, err)
	}
}
