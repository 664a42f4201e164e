package lo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// noRoom fails what needs room on a disk, as where it is full and copies on write.
func noRoom(op, _ string) error {
	switch op {
	case "create", "write":
		return syscall.ENOSPC
	default:
		return nil
	}
}

// killLO ends an LO as a kill does: nothing that it would do on its way reaches the disk.
func killLO(t *testing.T, l *LO, d *simdisk.Disk) {
	t.Helper()
	d.Cut()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := l.Stop(ctx); err != nil && !errors.Is(err, simdisk.ErrPower) {
		t.Logf("stop without power: %v", err)
	}
	d.Restart(false)
}

// TestStartOnAFullDisk kills an LO while its journal has events that the stored records lack,
// fills its disk and starts it: it has all that it had, and goes on when there is room.
func TestStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	c, d := newFakeCO(t), simdisk.New(1)
	c.want(site1(1, "1", protocol.Policy{}))
	o := localOptions(t, c, "/state", "127.0.0.1:0")
	o.Disk = d
	l := startLO(t, o)
	a := startAgent(t, "gw-1", l.MQTTAddr())
	desired := a.next("with the deployment", func(d protocol.NodeDesired) bool { return len(d.Assignments) == 1 })
	a.report(desired, lifecycle.Installing, "")
	a.report(desired, lifecycle.Installed, "")
	a.stop()
	killLO(t, l, d)
	d.Fail(noRoom)
	l = startLO(t, o)
	if got := l.site.Status(); len(got) != 1 || len(got[0].Deployments) != 1 || got[0].Deployments[0].State != lifecycle.Installed {
		t.Errorf("the LO on a full disk knows %+v, want what its journal says: web INSTALLED on gw-1", got)
	}
	d.Fail(nil)
	stopLO(t, l)
	if err := disk.RemoveAll(d, "/state/journal"); err != nil { // so that only the stored records have it
		t.Fatal(err)
	}
	l = startLO(t, o)
	if got := l.site.Status(); len(got) != 1 || len(got[0].Deployments) != 1 || got[0].Deployments[0].State != lifecycle.Installed {
		t.Errorf("after a restart with room the LO knows %+v, want web INSTALLED on gw-1", got)
	}
	startAgent(t, "gw-1", l.MQTTAddr()).next("once there is room", func(d protocol.NodeDesired) bool { return len(d.Assignments) == 1 })
}

// stateFiles returns the paths of all files below a directory.
func stateFiles(t *testing.T, d *simdisk.Disk, dir string) (paths []string) {
	t.Helper()
	entries, err := d.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			paths = append(paths, stateFiles(t, d, path)...)
		} else {
			paths = append(paths, path)
		}
	}
	return paths
}

// TestDamageOnAFullDisk damages, or removes, each file of state of an LO whose disk is full:
// it starts, and goes on when there is room.
func TestDamageOnAFullDisk(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	c.want(site1(1, "1", protocol.Policy{}))
	filled := func() (*simdisk.Disk, Options) {
		d := simdisk.New(1)
		o := localOptions(t, c, "/state", "127.0.0.1:0")
		o.Disk = d
		l := startLO(t, o)
		a := startAgent(t, "gw-1", l.MQTTAddr())
		desired := a.next("with the deployment", func(d protocol.NodeDesired) bool { return len(d.Assignments) == 1 })
		a.report(desired, lifecycle.Installing, "")
		a.stop()
		killLO(t, l, d)
		return d, o
	}
	d, _ := filled()
	paths := stateFiles(t, d, "/state")
	if len(paths) < 8 {
		t.Fatalf("the LO has only these files: %q", paths)
	}
	for _, path := range paths {
		for _, what := range []string{"damaged", "removed"} {
			d, o := filled()
			if _, err := d.Stat(path); err != nil {
				continue // its name is another each time
			}
			var err error
			if what == "removed" {
				err = d.Remove(path)
			} else {
				err = d.Edit(path, func(b []byte) []byte {
					if len(b) > 0 {
						b[len(b)/2] ^= 4
					}
					return b
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			d.Fail(noRoom)
			l, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Start(t.Context()); err != nil {
				t.Errorf("%s %s on a full disk: %v", path, what, err)
				continue
			}
			d.Fail(nil)
			a := startAgent(t, "gw-1", l.MQTTAddr())
			a.next(path+" "+what+", once there is room", func(d protocol.NodeDesired) bool { return len(d.Assignments) == 1 })
			a.stop()
			stopLO(t, l)
		}
	}
}

// TestFullDiskIsSaid fills the disk of an LO that runs, without a write: the LO reports it in its
// status and to the CO, and says when there is room again.
func TestFullDiskIsSaid(t *testing.T) {
	t.Parallel()
	c, d := newFakeCO(t), simdisk.New(1)
	c.want(site1(1, "1", protocol.Policy{}))
	o := localOptions(t, c, "/state", "127.0.0.1:0")
	o.Disk = d
	l := startLO(t, o)
	eventually(t, "the site is online", c.online)
	said := func(path string) string {
		t.Helper()
		resp := get(t, l, path)
		b, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: %s, %v", path, resp.Status, err)
		}
		return string(b)
	}
	problem := func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.presence.Problem
	}
	for _, full := range []bool{true, false} {
		if d.Space(-1); full {
			d.Space(1000)
		}
		eventually(t, fmt.Sprintf("the CO knows that the disk is full: %t", full), func() bool { return full == (problem() != "") })
		for path, text := range map[string]string{"/readyz": "the disk of /state is full", "/status": "the disk of /state is full", "/metrics": "\ncolony_lo_disk_full 1\n"} {
			if got := said(path); full != strings.Contains(got, text) {
				t.Errorf("%s with a full disk %t: %.400s", path, full, got)
			}
		}
	}
}
