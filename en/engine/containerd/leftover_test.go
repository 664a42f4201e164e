package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Directories of snapshots that containerd does not know, as a power cut leaves them, stand where the next snapshots belong:
// containers are made all the same.
func TestLeftoverSnapshots(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.run(t, r.container("wait")) // so that there are snapshots
	dirs, err := filepath.Glob(filepath.Join(r.daemon.Dir, "*", "*", "io.containerd.snapshotter.v1.*", "snapshots", "*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("directories of snapshots: %q, %v", dirs, err)
	}
	latest := 0
	for _, d := range dirs {
		n, err := strconv.Atoi(filepath.Base(d))
		if err == nil {
			latest = max(latest, n)
		}
	}
	for i := range 5 {
		if err := os.MkdirAll(filepath.Join(filepath.Dir(dirs[0]), fmt.Sprint(latest+1+i), "fs", "left"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		c := r.container("wait")
		c.ID.Component = fmt.Sprint("next-", i)
		r.run(t, c)
	}
}
