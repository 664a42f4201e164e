package output

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := func(w io.Writer) (int64, error) { return io.Copy(w, io.LimitReader(zeros{}, 5)) }
	file, link, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that no opener waits for the other
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, path := range []string{file, link, fifo, os.DevNull} {
		before, _ := os.Lstat(path) // the file is not there yet
		if n, err := WriteFile(path, text); n != 5 || err != nil {
			t.Errorf("%s: %d, %v", path, n, err)
		}
		after, err := os.Lstat(path)
		if err != nil || before != nil && after.Mode() != before.Mode() {
			t.Errorf("%s was %v, and is %v, %v", path, before.Mode(), after.Mode(), err)
		}
	}
	if content, err := os.ReadFile(link); err != nil || len(content) != 5 {
		t.Errorf("by the link: %q, %v", content, err)
	}
	failed := errors.New("cut")
	if _, err := WriteFile(file, func(io.Writer) (int64, error) { return 0, failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if content, err := os.ReadFile(file); err != nil || len(content) != 5 {
		t.Errorf("after an error: %q, %v", content, err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
