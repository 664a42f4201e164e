package netns

import (
	"net"
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

// What Do opens is in the namespace, and the caller stays where it is.
func TestDo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "one")
	if ID(path) != 0 {
		t.Error("a namespace that is not there has an id")
	}
	if err := Do(path, func() error { return nil }); err == nil {
		t.Error("nothing was wrong with a namespace that is not there")
	}
	if err := Make(path); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}()
	var l net.Listener
	err := Do(path, func() (err error) {
		if links, err := net.Interfaces(); err != nil || len(links) != 1 {
			t.Errorf("interfaces %v (%v), want the loopback alone", links, err)
		}
		l, err = net.Listen("tcp4", "127.0.0.11:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := net.Dial("tcp4", l.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("the listener is reached from outside of the namespace")
	}
	err = Do(path, func() error {
		c, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			return err
		}
		return c.Close()
	})
	if err != nil {
		t.Errorf("the listener is not reached from inside: %v", err)
	}
	if ID(path) == 0 || ID(path) == ID("/proc/self/ns/net") {
		t.Errorf("the namespace has the id %d", ID(path))
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
