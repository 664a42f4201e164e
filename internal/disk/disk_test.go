package disk_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/internal/filelock"
)

// TestContract holds both file systems to what FS says.
func TestContract(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]disk.FS{"machine": disk.OS, "simulated": simdisk.New(1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "a", "b")
			must(t, d.MkdirAll(dir, 0o700))
			must(t, d.MkdirAll(dir, 0o700))
			t.Run("files", func(t *testing.T) { files(t, d, dir) })
			t.Run("names", func(t *testing.T) { names(t, d, dir) })
			t.Run("irregular", func(t *testing.T) { directory(t, d, dir) })
			t.Run("locks", func(t *testing.T) { locks(t, d, dir) })
		})
	}
}

func files(t *testing.T, d disk.FS, dir string) {
	path := filepath.Join(dir, "file")
	if _, err := d.Open(path, os.O_RDWR, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open what does not exist: %v", err)
	}
	if _, err := d.Open(filepath.Join(dir, "no", "file"), os.O_RDWR|os.O_CREATE, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("create where there is no directory: %v", err)
	}
	f, err := d.Open(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	must(t, err)
	if _, err := d.Open(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create what exists: %v", err)
	}
	_, err = f.WriteAt([]byte("cdef"), 2)
	must(t, err)
	_, err = f.WriteAt([]byte("ab"), 0)
	must(t, err)
	must(t, f.Truncate(5))
	if size, err := f.Size(); size != 5 || err != nil {
		t.Errorf("size = %d, %v", size, err)
	}
	b := make([]byte, 4)
	if n, err := f.ReadAt(b, 3); n != 2 || !errors.Is(err, io.EOF) || string(b[:n]) != "de" {
		t.Errorf("read past the end = %d %q, %v", n, b[:n], err)
	}
	must(t, f.Truncate(7))
	must(t, errors.Join(f.Sync(), f.Close()))
	if b, err := disk.ReadFile(d, path); string(b) != "abcde\x00\x00" || err != nil {
		t.Errorf("content = %q, %v", b, err)
	}
	f, err = d.Open(path, os.O_RDWR|os.O_TRUNC, 0)
	must(t, err)
	must(t, f.Close())
	must(t, d.Chmod(path, 0o640))
	if st, err := d.Stat(path); err != nil || st.Size() != 0 || st.Mode() != 0o640 || st.Name() != "file" || st.IsDir() {
		t.Errorf("stat = %v, %v", st, err)
	}
	at := time.Unix(1_700_000_000, 0)
	must(t, d.Chtimes(path, at))
	if st, err := d.Stat(path); err != nil || !st.ModTime().Equal(at) {
		t.Errorf("changed at %v, %v", st.ModTime(), err)
	}
	if free, err := d.Free(dir); free <= 0 || err != nil {
		t.Errorf("free = %d, %v", free, err)
	}
	must(t, d.Remove(path))
	if err := d.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove what does not exist: %v", err)
	}
	if _, err := d.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of what does not exist: %v", err)
	}
}

func names(t *testing.T, d disk.FS, dir string) {
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"one", "two"} {
		f, err := d.Open(at(name), os.O_RDWR|os.O_CREATE, 0o600)
		must(t, err)
		_, err = f.WriteAt([]byte(name), 0)
		must(t, errors.Join(err, f.Close()))
	}
	must(t, d.MkdirAll(at("sub"), 0o700))
	must(t, d.Link(at("one"), at("link")))
	if err := d.Link(at("two"), at("link")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("link to what exists: %v", err)
	}
	must(t, d.Rename(at("two"), at("one")))
	if err := d.Rename(at("two"), at("one")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rename what does not exist: %v", err)
	}
	must(t, d.SyncDir(dir))
	if err := d.SyncDir(at("no")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("sync a directory that does not exist: %v", err)
	}
	all, err := d.List(dir)
	must(t, err)
	var got []string
	for _, e := range all {
		got = append(got, e.Name()+map[bool]string{true: "/"}[e.IsDir()])
	}
	if want := []string{"link", "one", "sub/"}; !slices.Equal(got, want) {
		t.Errorf("list = %q, want %q", got, want)
	}
	for name, want := range map[string]string{"one": "two", "link": "one"} {
		if b, err := disk.ReadFile(d, at(name)); string(b) != want || err != nil {
			t.Errorf("content of %s = %q, %v", name, b, err)
		}
	}
	if err := d.Remove(dir); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("remove a directory with files: %v", err)
	}
	must(t, disk.RemoveAll(d, dir))
	must(t, disk.RemoveAll(d, dir))
	if _, err := d.List(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("list what does not exist: %v", err)
	}
	must(t, d.MkdirAll(dir, 0o700))
}

func directory(t *testing.T, d disk.FS, dir string) {
	for _, flag := range []int{os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREATE} {
		if _, err := d.Open(dir, flag, 0o600); !errors.Is(err, disk.ErrIrregular) || !disk.Unreadable(err) {
			t.Errorf("open a directory with %#x: %v", flag, err)
		}
	}
}

// TestIrregular opens what is no file: nothing waits for the other end of a FIFO.
func TestIrregular(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo, socket, loop := filepath.Join(dir, "fifo"), filepath.Join(dir, "socket"), filepath.Join(dir, "loop")
	must(t, syscall.Mkfifo(fifo, 0o600))
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	must(t, err)
	defer l.Close()
	must(t, os.Symlink(loop, loop))
	for _, path := range []string{fifo, socket, loop, os.DevNull} {
		for _, flag := range []int{os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREATE | os.O_TRUNC} {
			if _, err := disk.OS.Open(path, flag, 0o600); !disk.Unreadable(err) {
				t.Errorf("open %s with %#x: %v", path, flag, err)
			}
		}
		if _, err := disk.ReadFile(disk.OS, path); !disk.Unreadable(err) {
			t.Errorf("read %s: %v", path, err)
		}
	}
	if !disk.Unreadable(fmt.Errorf("read: %w", syscall.EIO)) || disk.Unreadable(fs.ErrNotExist) || disk.Unreadable(nil) {
		t.Error("a disk that gives nothing back is unreadable, and a file that is missing is not")
	}
}

func locks(t *testing.T, d disk.FS, dir string) {
	lock, err := d.Lock(filepath.Join(dir, "LOCK"))
	must(t, err)
	if _, err := d.Lock(filepath.Join(dir, "LOCK")); !errors.Is(err, filelock.ErrHeld) {
		t.Errorf("lock what is locked: %v", err)
	}
	must(t, lock.Close())
	lock, err = d.Lock(filepath.Join(dir, "LOCK"))
	must(t, err)
	must(t, lock.Close())
}

// TestSimulatedPowerCut has a power cut keep what was synced, in each of many ways that
// it may keep what was not.
func TestSimulatedPowerCut(t *testing.T) {
	t.Parallel()
	contents := map[string]bool{}
	for seed := range uint64(200) {
		d := simdisk.New(seed)
		must(t, d.MkdirAll("/d", 0o700))
		f, err := d.Open("/d/f", os.O_RDWR|os.O_CREATE, 0o600)
		must(t, err)
		_, err = f.WriteAt([]byte("durable"), 0)
		must(t, errors.Join(err, f.Sync(), d.SyncDir("/d")))
		_, err = f.WriteAt([]byte(strings.Repeat("x", 300)), 7)
		must(t, err)
		_, err = d.Open("/d/new", os.O_RDWR|os.O_CREATE, 0o600)
		must(t, err)
		d.Cut()
		if _, err := f.WriteAt([]byte("y"), 0); !errors.Is(err, simdisk.ErrPower) {
			t.Fatalf("write without power: %v", err)
		}
		d.Restart(true)
		b, err := disk.ReadFile(d, "/d/f")
		must(t, err)
		if !strings.HasPrefix(string(b), "durable") {
			t.Fatalf("seed %d: what was synced is lost: %q", seed, b)
		}
		_, err = d.Stat("/d/new")
		contents[string(b)+map[bool]string{true: "+new"}[err == nil]] = true
	}
	if len(contents) < 20 {
		t.Errorf("200 power cuts leave %d states of the disk, want more variety", len(contents))
	}
}

// TestSimulatedFull fills the disk in the middle of a write.
func TestSimulatedFull(t *testing.T) {
	t.Parallel()
	d := simdisk.New(1)
	d.Space(3)
	f, err := d.Open("/f", os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	if n, err := f.WriteAt([]byte("12345"), 0); n != 3 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write = %d, %v", n, err)
	}
	if _, err := f.WriteAt([]byte("67"), 0); err != nil {
		t.Errorf("write over what is there: %v", err)
	}
	d.Space(-1)
	if _, err := f.WriteAt([]byte("45"), 3); err != nil {
		t.Errorf("write with space: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A file that is much longer than what was stored is not read into memory: it counts as one that cannot be read.
func TestReadFileOfWrongLength(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(path, []byte("state"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 256<<30); err != nil {
		t.Fatal(err)
	}
	_, err := disk.ReadFile(disk.OS, path)
	if !errors.Is(err, disk.ErrTooLong) || !disk.Unreadable(err) {
		t.Errorf("got %v", err)
	}
}
