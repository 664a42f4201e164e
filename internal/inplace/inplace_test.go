package inplace

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWriteKeepsTheInode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	var first os.FileInfo
	for _, content := range []string{"first and rather long", "second", "third!", "third!", ""} {
		if err := Write(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = info
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content || !os.SameFile(first, info) {
			t.Errorf("content %q (%v), the same file: %t; want %q", got, err, os.SameFile(first, info), content)
		}
	}
}

// A container can give a file that it has mounted any size. The agent does not read it.
func TestWriteReplacesAFileOfAnySize(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("nameserver"), 0o644); err != nil {
		t.Fatal(err)
	}
	const size = 1 << 40 // more than any node's memory; the file is sparse
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "new" {
		t.Errorf("content %q, %v", got, err)
	}
}

func TestWriteRefusesWhatIsNoRegularFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, link, target := filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), filepath.Join(dir, "target")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, link, dir} {
		if err := Write(path, []byte("x")); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	if _, err := os.Stat(target); err == nil {
		t.Error("a link was followed")
	}
}
