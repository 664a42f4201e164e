package leftover

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func renameError(root, from, to, why string) error {
	return fmt.Errorf("create container: failed to rename: rename %s/%s %s/%s: %s: unknown", root, from, root, to, why)
}

func TestMoved(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "io.containerd.snapshotter.v1.overlayfs", "snapshots")
	for _, d := range []string{"44/fs/known", "45/fs/left", "46/fs/left"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tries := 0
	err := Moved(func() error {
		tries++
		for _, name := range []string{"45", "46"} {
			if _, err := os.Stat(filepath.Join(root, name)); err == nil {
				return renameError(root, "new-123", name, "file exists")
			}
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("%v after %d tries", err, tries)
	}
	if aside, err := filepath.Glob(filepath.Join(root, "new-4*", "fs", "left")); err != nil || len(aside) != 2 {
		t.Errorf("aside are %q, %v", aside, err)
	}
	if _, err := os.Stat(filepath.Join(root, "44/fs/known")); err != nil {
		t.Error(err)
	}
}

// What is no directory in the way, or none of a snapshot, is left alone.
func TestNotInTheWay(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"another error":     errors.New("no space left on device"),
		"a full disk":       renameError("/r/snapshots", "new-1", "45", "no space left on device"),
		"another directory": renameError("/r/content", "new-1", "45", "file exists"),
		"another name":      renameError("/r/snapshots", "new-1", "x45", "file exists"),
		"above it":          renameError("/r/../etc/snapshots", "new-1", "45", "file exists"),
		"two directories":   errors.New("failed to rename: rename /a/snapshots/new-1 /b/snapshots/45: file exists"),
	} {
		tries := 0
		if got := Moved(func() error { tries++; return err }); !errors.Is(got, err) || tries != 1 {
			t.Errorf("%s: %v after %d tries", name, got, tries)
		}
	}
	tries, vanished := 0, renameError(filepath.Join(t.TempDir(), "snapshots"), "new-1", "45", "directory not empty")
	if err := Moved(func() error { tries++; return vanished }); !errors.Is(err, vanished) || tries != most+1 {
		t.Errorf("a directory that is named though it is not there: %v after %d tries", err, tries)
	}
}
