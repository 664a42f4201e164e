package filelock

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
)

func TestOneHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	l, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(path); !errors.Is(err, ErrHeld) {
		t.Errorf("a second holder: %v", err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	again, err := Acquire(path)
	if err != nil {
		t.Fatalf("it cannot be acquired again: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestCopyInAChild plays a child that is just being forked: it holds a copy of
// the file when the lock is given back.
func TestCopyInAChild(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	l, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(l.f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd) //nolint:errcheck // a copy
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Acquire(path)
	if err != nil {
		t.Fatalf("the copy still holds it: %v", err)
	}
	_ = again.Close()
}

func TestNoSuchDirectory(t *testing.T) {
	t.Parallel()
	if _, err := Acquire(filepath.Join(t.TempDir(), "none", "lock")); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("error %v", err)
	}
}
