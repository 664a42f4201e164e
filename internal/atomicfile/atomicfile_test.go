package atomicfile

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/colonyfleet/colony/internal/disk"
)

func TestWriteReplacesWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "record")
	for _, content := range []string{"first and rather long", "second", ""} {
		if err := Write(disk.OS, path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Fatalf("content %q, %v; want %q", got, err, content)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if names := list(t, dir); len(names) != 1 {
		t.Errorf("left behind: %q", names)
	}
}

func TestWriteFailsWithoutTrace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(path, "child"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := Write(disk.OS, path, []byte("x"), 0o600)
	if err == nil {
		t.Fatal("replaced a directory")
	}
	if next := Write(disk.OS, path, []byte("x"), 0o600); next == nil || next.Error() != err.Error() {
		t.Errorf("the same error says %v, and then %v", err, next)
	}
	if names := list(t, dir); len(names) != 1 || names[0] != "taken" {
		t.Errorf("directory holds %q, want only %q", names, "taken")
	}
	if err := Write(disk.OS, filepath.Join(dir, "absent", "f"), nil, 0o600); err == nil {
		t.Error("wrote into a directory that does not exist")
	}
}

func TestConcurrentWritersLeaveOneWhole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := Write(disk.OS, path, bytes.Repeat([]byte{byte('a' + i)}, 10_000), 0o600); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := os.ReadFile(path)
	if err != nil || len(got) != 10_000 || strings.Trim(string(got), string(got[:1])) != "" {
		t.Errorf("%d bytes of mixed content, %v", len(got), err)
	}
}

func TestRemoveAndClean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"kept", prefix + "kept-123"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Clean(disk.OS, dir); err != nil {
		t.Fatal(err)
	}
	if names := list(t, dir); len(names) != 1 || names[0] != "kept" {
		t.Fatalf("after Clean: %q", names)
	}
	for range 2 {
		if err := Remove(disk.OS, filepath.Join(dir, "kept")); err != nil {
			t.Fatal(err)
		}
	}
	if names := list(t, dir); len(names) != 0 {
		t.Errorf("after Remove: %q", names)
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
