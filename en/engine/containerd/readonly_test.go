package containerd

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// submounted returns a directory with another mount below it.
func submounted(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", below, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(below, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestReadOnlyBindsAreRecursive(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	c.Spec.Mounts = []protocol.Mount{
		{Kind: protocol.MountBind, Source: submounted(t), Target: "/host", ReadOnly: true},
		{Kind: protocol.MountVolume, Source: "main_inner", Target: "/host/below/inner"},
	}
	// The author of a mount inside the read-only one wants it writable.
	if err := os.Mkdir(filepath.Join(c.Spec.Mounts[0].Source, "below", "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.run(t, c)
	for _, path := range []string{"/host/x", "/host/below/x"} {
		if res, err := r.Exec(t.Context(), c.ID, []string{"/toolbox", "write", path, "x"}); err != nil || res.ExitCode == 0 {
			t.Errorf("%s could be written (%v)", path, err)
		}
	}
	r.output(t, c, "write", "/host/below/inner/x", "x")
}

// On an old kernel such a container does not run, rather than run writable.
func TestReadOnlyBindThatIsNotIsRefused(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.readOnly = "ro"
	dir := submounted(t)
	c := r.container("wait")
	c.Spec.Mounts = []protocol.Mount{{Kind: protocol.MountBind, Source: dir, Target: "/host", ReadOnly: true}}
	if err := r.Pull(t.Context(), c.Spec.Image, nil); err != nil {
		t.Fatal(err)
	}
	err := r.Start(t.Context(), c)
	if engine.CodeOf(err) != protocol.Incompatible {
		t.Fatalf("start: %v, want it refused as %s", err, protocol.Incompatible)
	}
	if err := r.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	c.Spec.Mounts[0].Source = t.TempDir() // nothing is mounted below this one
	r.run(t, c)
}
