// Package smalldisk gives tests a file system of their own that they can fill up. It needs
// root.
package smalldisk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A Disk is a small file system in memory, mounted until the end of a test.
type Disk struct {
	t   *testing.T
	dir string
}

// New mounts a Disk of a size in bytes.
func New(t *testing.T, size int) *Disk {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprint("size=", size)); err != nil {
		t.Fatalf("mount a small disk: %v: run the tests as root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return &Disk{t: t, dir: dir}
}

// Path is the path of a file on the disk.
func (d *Disk) Path(name string) string { return filepath.Join(d.dir, name) }

func (d *Disk) ballast() string { return d.Path("ballast") }

// Fill takes all the room that is left.
func (d *Disk) Fill() {
	d.t.Helper()
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	for page := make([]byte, os.Getpagesize()); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		d.t.Error(err)
	}
	if err := f.Close(); err != nil {
		d.t.Error(err)
	}
}

// Free gives back what Fill has taken.
func (d *Disk) Free() {
	d.t.Helper()
	if err := os.Remove(d.ballast()); err != nil {
		d.t.Error(err)
	}
}
