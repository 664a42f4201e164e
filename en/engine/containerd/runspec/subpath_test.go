package runspec

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// What is mounted must be what lies in the volume, whatever its path led to at the mount.
func TestCheckMounted(t *testing.T) {
	t.Parallel()
	volume, root, outside := t.TempDir(), t.TempDir(), t.TempDir()
	target := filepath.Join(root, "data")
	for _, dir := range []string{filepath.Join(volume, "part"), target} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(volume, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("part", filepath.Join(volume, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		subpath, source string
		ok              bool
	}{
		{"part", filepath.Join(volume, "part"), true},
		{"link", filepath.Join(volume, "part"), true},
		{"part", outside, false}, // it was a link out of the volume when it was mounted
		{"out", outside, false},
		{"none", outside, false},
	} {
		if err := syscall.Mount(c.source, target, "", syscall.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		err := checkMounted(root, volume, protocol.Mount{Target: "/data", Subpath: c.subpath})
		if uerr := syscall.Unmount(target, 0); uerr != nil {
			t.Fatal(uerr)
		}
		if (err == nil) != c.ok {
			t.Errorf("subpath %s with %s mounted: %v, want ok: %v", c.subpath, c.source, err, c.ok)
		}
	}
}
