package atomicfile

import (
	"path/filepath"
	"testing"
)

func TestSyncFileSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := SyncFileSystem(dir); err != nil {
		t.Error(err)
	}
	if err := SyncFileSystem(filepath.Join(dir, "absent")); err == nil {
		t.Error("synced the file system of a directory that does not exist")
	}
}
