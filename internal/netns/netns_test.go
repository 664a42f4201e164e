package netns

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLife(t *testing.T) {
	t.Parallel()
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ns", "one")
	if Live(path) {
		t.Error("a namespace lives before it is made")
	}
	if err := Make(path); err != nil {
		t.Fatal(err)
	}
	if !Live(path) {
		t.Error("it does not live")
	}
	var own, made unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &own); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat(path, &made); err != nil || own.Ino == made.Ino {
		t.Errorf("it is our own namespace, or not there: %v", err)
	}
	if after, err := os.Readlink("/proc/self/ns/net"); err != nil || after != before {
		t.Errorf("the process moved from %s to %s (%v)", before, after, err)
	}
	for range 2 {
		if err := Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
}

// A bare file, as a reboot leaves it, is no namespace and becomes one.
func TestStaleFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "one")
	if err := os.WriteFile(path, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if Live(path) {
		t.Error("a bare file lives")
	}
	if err := Make(path); err != nil || !Live(path) {
		t.Fatalf("made on a stale file: %v", err)
	}
	if err := Remove(path); err != nil {
		t.Fatal(err)
	}
}

func TestNoBridge(t *testing.T) {
	t.Parallel()
	if err := RemoveBridge("cl-none"); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
}
