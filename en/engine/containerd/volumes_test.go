package containerd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/protocol"
)

// What an image declares with VOLUME is data, though the deployment names no volume.
func TestImageVolumesAreKept(t *testing.T) {
	t.Parallel()
	r := setup(t)
	img := r.registry.Add(t, "db", containerdtest.Image{
		Program: program(t), Cmd: []string{"wait"}, Volumes: []string{"/data", "/var/lib/db/"},
		Files: map[string]string{"data/": "", "data/seed": "seed\n"},
	})
	c := r.container("db")
	c.Spec = protocol.Container{Image: img, User: "1000", ReadOnly: true, Mounts: []protocol.Mount{
		{Kind: protocol.MountTmpfs, Target: "/data/cache"}, // inside a volume of the image
		{Kind: protocol.MountVolume, Source: "main_own", Target: "/var/lib/db"},
	}}
	r.run(t, c)
	if got := r.output(t, c, "cat", "/data/seed"); got != "seed\n" {
		t.Errorf("the volume begins with %q", got)
	}
	r.output(t, c, "write", "/data/kept", "first")
	r.output(t, c, "write", "/data/cache/scratch", "short-lived")
	if names := volumesOf(t, r, "shop"); len(names) != 2 {
		t.Errorf("volumes %q: want the image's and the named one", names)
	}

	other := c
	other.ID.Name = "second"
	r.run(t, other)
	if res, err := r.Exec(t.Context(), other.ID, []string{"/toolbox", "cat", "/data/kept"}); err != nil || res.ExitCode == 0 {
		t.Errorf("another container of the image has the same volume (%v)", err)
	}

	for _, digest := range []protocol.Digest{"sha256:2", "sha256:3", "sha256:2"} {
		if err := r.Remove(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		c.Digest = digest
		r.run(t, c)
		if got := r.output(t, c, "cat", "/data/kept"); got != "first" {
			t.Fatalf("after the update to %s the volume holds %q", digest, got)
		}
	}
	r.daemon.Crash(t)
	r.daemon.Restart(t)
	again := *r
	again.Engine = r.open(t)
	again.run(t, c)
	if got := again.output(t, c, "cat", "/data/kept"); got != "first" {
		t.Errorf("after a reboot the volume holds %q", got)
	}
}

// A volume belongs to whom its mount says, with what it begins with: what the image has, or the
// files of a version; also of a later one. One that is there already is left as it is.
func TestOwnerOfAVolume(t *testing.T) {
	t.Parallel()
	r := setup(t)
	volume := func(target string, uid, gid uint32, files ...protocol.File) protocol.Mount {
		return protocol.Mount{Kind: protocol.MountVolume, Source: "main" + strings.ReplaceAll(target, "/", "_"), Target: target, UID: uid, GID: gid, Files: files}
	}
	conf := protocol.File{Path: "sub/app.conf", Content: []byte("delivered")}
	c := r.container("wait")
	c.Spec.User = "1000:1001"
	c.Spec.Mounts = []protocol.Mount{volume("/data", 1000, 1001), volume("/conf", 1000, 1001, conf), volume("/none", 1000, 0)}
	r.run(t, c)
	expect := func(c engine.Container, owners map[string]string) {
		t.Helper()
		for path, want := range owners {
			if _, got, _ := strings.Cut(strings.TrimSpace(r.output(t, c, "stat", path)), " "); got != want {
				t.Errorf("%s belongs to %q, want %q", path, got, want)
			}
		}
	}
	expect(c, map[string]string{
		"/data": "1000 1001", "/data/seed": "1000 1001", "/conf": "1000 1001", "/conf/sub": "1000 1001", "/conf/sub/app.conf": "1000 1001", "/none": "1000 0",
	})
	for _, path := range []string{"/data/seed", "/conf/sub/app.conf", "/none/file"} {
		r.output(t, c, "write", path, "x")
	}
	if err := r.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	later := protocol.File{Path: "later.conf", Content: []byte("of a later version")}
	c.Digest, c.Spec.User, c.Spec.Mounts = "sha256:2", "2000", []protocol.Mount{volume("/data", 2000, 0), volume("/conf", 2000, 0, conf, later)}
	r.run(t, c)
	expect(c, map[string]string{"/data/seed": "1000 1001", "/conf/sub/app.conf": "1000 1001", "/conf/later.conf": "1000 1001"})
}

// A volume at whose target the image has nothing belongs to the user of the container that comes
// first and can write there: also that of the image, by its name there. One where it has something
// is as the image says, and one that begins empty by its own word is root's.
func TestVolumeThatTheImageLacks(t *testing.T) {
	t.Parallel()
	r := setup(t)
	img := r.registry.Add(t, "named", containerdtest.Image{
		Program: program(t), Cmd: []string{"wait"}, User: "app:staff", Volumes: []string{"/var/own"},
		Files: map[string]string{"data/": "", "etc/passwd": "root:x:0:0::/:\napp:x:1234:99::/:\n", "etc/group": "staff:x:50:\n"},
	})
	c := r.container("wait")
	c.Spec.Image = img
	c.Spec.Mounts = []protocol.Mount{
		{Kind: protocol.MountVolume, Source: "main_a", Target: "/srv/a"},
		{Kind: protocol.MountVolume, Source: "main_conf", Target: "/srv/conf", Files: []protocol.File{{Path: "app.conf", Content: []byte("x")}}},
		{Kind: protocol.MountVolume, Source: "main_data", Target: "/data"},
		{Kind: protocol.MountVolume, Source: "main_empty", Target: "/srv/empty", NoCopy: true},
		{Kind: protocol.MountVolume, Source: "main_given", Target: "/srv/given", UID: 7},
	}
	r.run(t, c)
	for path, want := range map[string]string{
		"/srv/a": "755 1234 50", "/srv/conf": "755 1234 50", "/srv/conf/app.conf": "644 1234 50", "/var/own": "755 1234 50", "/data": "755 1000 1000", "/srv/empty": "755 0 0", "/srv/given": "755 7 0",
	} {
		if got := strings.TrimSpace(r.output(t, c, "stat", path)); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	r.output(t, c, "write", "/srv/a/file", "x")
	other := c
	other.ID.Name, other.Spec.User, other.Spec.Mounts = "other", "4321", []protocol.Mount{c.Spec.Mounts[0], {Kind: protocol.MountVolume, Source: "main_b", Target: "/srv/b"}}
	r.run(t, other)
	for path, want := range map[string]string{"/srv/a": "755 1234 50", "/srv/b": "755 4321 0"} {
		if got := strings.TrimSpace(r.output(t, other, "stat", path)); got != want {
			t.Errorf("%s of another one: %q, want %q", path, got, want)
		}
	}
}

// A container that only reads a volume, and comes first, does not have it: the first that can write
// there does, also root without capabilities.
func TestVolumeThatAReaderMakes(t *testing.T) {
	t.Parallel()
	r := setup(t)
	volume := func(name, target string, readOnly bool) protocol.Mount {
		return protocol.Mount{Kind: protocol.MountVolume, Source: "main_" + name, Target: target, ReadOnly: readOnly}
	}
	start := func(name, user string, mounts ...protocol.Mount) engine.Container {
		c := r.container("wait")
		c.ID.Name, c.Spec.User, c.Spec.Mounts = name, user, mounts
		r.run(t, c)
		return c
	}
	given := volume("given", "/given", true)
	given.UID = 7
	reader := start("reader", "1000", volume("a", "/a", true), volume("b", "/b", true), volume("c", "/c", true), given)
	expect := func(owners map[string]string) {
		t.Helper()
		for path, want := range owners {
			if got := strings.TrimSpace(r.output(t, reader, "stat", path)); got != want {
				t.Errorf("%s: %q, want %q", path, got, want)
			}
		}
	}
	expect(map[string]string{"/a": "755 0 0", "/b": "755 0 0", "/c": "755 0 0", "/given": "755 7 0"})
	w := start("writer", "2000:5", volume("a", "/a", false), volume("b", "/b", true))
	r.output(t, w, "write", "/a/file", "x")
	start("other", "3000", volume("a", "/a", false), volume("given", "/given", false))
	start("root", "0", volume("b", "/b", false))
	start("later", "3000", volume("b", "/b", false), volume("c", "/data", false)) // the image has /data, of another user
	expect(map[string]string{"/a": "755 2000 5", "/a/file": "644 2000 5", "/b": "755 0 0", "/c": "755 1000 1000", "/given": "755 7 0"})
}

// An outer mount that comes last would hide the inner one.
func TestMountsNestInAnyOrder(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	c.Spec.Mounts = []protocol.Mount{
		{Kind: protocol.MountFile, Target: "/data/etc/app.ini", Content: []byte("inner")},
		{Kind: protocol.MountVolume, Source: "main_data", Target: "/data"},
	}
	r.run(t, c)
	if got := r.output(t, c, "cat", "/data/etc/app.ini", "/data/seed"); !strings.HasPrefix(got, "inner") {
		t.Errorf("files hold %q", got)
	}
}

// A part of a volume is mounted where it lies in the volume, at each start anew; never what a
// link there leads to on the node.
func TestSubpathStaysInItsVolume(t *testing.T) {
	t.Parallel()
	r := setup(t)
	whole := r.container("wait")
	whole.ID.Name = "whole"
	whole.Spec.Mounts = []protocol.Mount{{Kind: protocol.MountVolume, Source: "main_data", Target: "/whole"}}
	r.run(t, whole)
	r.output(t, whole, "mkdir", "/whole/part")

	c := r.container("wait")
	c.Spec.Mounts = []protocol.Mount{{Kind: protocol.MountVolume, Source: "main_data", Target: "/data", Subpath: "part"}}
	r.run(t, c)
	r.output(t, c, "write", "/data/file", "inside")
	if got := r.output(t, whole, "cat", "/whole/part/file"); got != "inside" {
		t.Errorf("the part has %q", got)
	}

	if err := r.Stop(t.Context(), c.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(r.volumes.Dir("shop", "main_data"), "part")
	if err := os.RemoveAll(part); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{t.TempDir(), "../../.."} {
		if err := os.Symlink(to, part); err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context(), c); engine.CodeOf(err) != protocol.CreateFailed || !strings.Contains(err.Error(), "part") {
			t.Errorf("a part that is a link to %s: %v, want it refused", to, err)
		}
		if err := os.Remove(part); err != nil {
			t.Fatal(err)
		}
	}
	r.output(t, whole, "mkdir", "/whole/part")
	if err := r.Start(t.Context(), c); err != nil {
		t.Errorf("the part is there again: %v", err)
	}
}

func volumesOf(t *testing.T, r *rig, d protocol.DeploymentName) []string {
	t.Helper()
	paths, err := filepath.Glob(r.volumes.Dir(d, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
