package containerd

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// A tmpfs has the mode and the owner that it is given, also where the image has a directory;
// without a mode it has that of the directory, as in Docker, else the one that all may write to.
func TestModeOfATmpfs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	c.Spec.User = "1000:1001"
	c.Spec.Mounts = []protocol.Mount{
		{Kind: protocol.MountTmpfs, Target: "/data", Mode: 0o700, UID: 1000, GID: 1001},
		{Kind: protocol.MountTmpfs, Target: "/tmp", Mode: 0o2775, GID: 1001},
		{Kind: protocol.MountTmpfs, Target: "/made", Mode: 0o750, UID: 1000, GID: 1001},
		{Kind: protocol.MountTmpfs, Target: "/open"},
		{Kind: protocol.MountTmpfs, Target: "/closed", ReadOnly: true},
	}
	r.run(t, c)
	for path, want := range map[string]string{"/data": "700 1000 1001", "/tmp": "2775 0 1001", "/made": "750 1000 1001", "/open": "1777 0 0", "/closed": "755 0 0"} {
		if got := strings.TrimSpace(r.output(t, c, "stat", path)); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	other := c
	other.ID.Name, other.Spec.Mounts = "other", []protocol.Mount{{Kind: protocol.MountTmpfs, Target: "/data"}}
	r.run(t, other)
	if got := strings.TrimSpace(r.output(t, other, "stat", "/data")); got != "755 0 0" {
		t.Errorf("without a mode /data has %q, want that of the image", got)
	}
	r.output(t, c, "write", "/data/file", "x")
	r.output(t, c, "write", "/tmp/file", "x")
}
