package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

// keepAlive is what `colony up` gives its connections; a peer that hangs is found
// within half as much again.
const keepAlive = 10 * time.Second

// noticed is when a peer that hangs must be known as offline at the latest, on a machine
// that is busy with other things too.
const noticed = 3 * keepAlive

// event waits for an event of a kind that is newer than mark, and returns it.
func (c *colony) event(within time.Duration, kind string, mark int64) fleet.Event {
	c.t.Helper()
	var found fleet.Event
	c.eventually(within, "an event "+kind, func() error {
		var page struct{ Items []fleet.Event }
		if err := c.get(fmt.Sprintf("/events?kind=%s&after=%d", kind, mark), &page); err != nil {
			return err
		}
		if len(page.Items) == 0 {
			return errors.New("no event")
		}
		found = page.Items[0]
		return nil
	})
	return found
}

// mark returns the id of the newest event.
func (c *colony) mark() int64 {
	c.t.Helper()
	var page struct{ Items []fleet.Event }
	if err := c.get("/events?newest=true&limit=1", &page); err != nil || len(page.Items) == 0 {
		c.t.Fatal("events:", err)
	}
	return page.Items[0].ID
}

// signal sends a signal to a part. After SIGSTOP it waits until each thread has stopped: one
// that is in a system call ends that first.
func (c *colony) signal(name string, sig syscall.Signal) {
	c.t.Helper()
	pid, err := c.pid(name)
	if err == nil {
		err = syscall.Kill(pid, sig)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	if sig != syscall.SIGSTOP {
		return
	}
	look, late := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer look.Stop()
	for !stopped(pid) {
		select {
		case <-look.C:
		case <-late:
			c.t.Fatalf("%s has not stopped within a minute", name)
		}
	}
}

// stopped reports whether all threads of a process are stopped (proc(5), state T).
func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false
	}
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if _, state, _ := strings.Cut(string(b), ") "); !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// gitUnreachable takes the deployments repo away: what runs goes on, writes are
// refused with a reason, and nothing is half done.
func gitUnreachable(t *testing.T, c *colony) {
	repo := filepath.Join(c.dir, "git", "deployments.git")
	mark := c.mark()
	if err := os.Rename(repo, repo+".away"); err != nil {
		t.Fatal(err)
	}
	c.event(time.Minute, fleet.GitUnreachable, mark)
	c.refused(5, []string{"deployments"}, "deploy", "hello@1.1.0", "--site", site)
	c.greets("I am version")
	if err := os.Rename(repo+".away", repo); err != nil {
		t.Fatal(err)
	}
	c.event(time.Minute, fleet.GitReachable, mark)
	c.must("deploy", "hello@1.1.0", "--site", site, "--wait")
	c.greets("I am version 1.1.0.")
}

// siteHangs stops the LO without closing its connections: the site is offline
// within 1.5 × keep-alive, a deployment waits, and happens when the site is back.
func siteHangs(t *testing.T, c *colony) {
	mark := c.mark()
	c.signal("lo", syscall.SIGSTOP)
	began := time.Now()
	defer c.signal("lo", syscall.SIGCONT)
	e := c.event(2*time.Minute, fleet.SiteOffline, mark)
	if late := e.Time.Sub(began); late > noticed {
		t.Errorf("offline after %s, want %s, or a little more on a busy machine", late, keepAlive*3/2)
	}
	c.must("deploy", "hello@1.0.0", "--site", site)
	c.greets("I am version 1.1.0.")
	c.signal("lo", syscall.SIGCONT)
	c.event(time.Minute, fleet.SiteOnline, mark)
	c.installed("hello", "1.0.0")
	c.greets("I am version 1.0.0.")
}

// nodeHangs stops the agent without closing its connection.
func nodeHangs(t *testing.T, c *colony) {
	mark := c.mark()
	c.signal("en", syscall.SIGSTOP)
	began := time.Now()
	defer c.signal("en", syscall.SIGCONT)
	e := c.event(2*time.Minute, string(protocol.NodeOfflineEvent), mark)
	if late := e.Time.Sub(began); late > noticed {
		t.Errorf("offline after %s, want %s, or a little more on a busy machine", late, keepAlive*3/2)
	}
	c.greets("I am version")
	c.signal("en", syscall.SIGCONT)
	c.event(time.Minute, string(protocol.NodeOnlineEvent), mark)
}

// siteLosesItsDisk removes all that the LO has on disk, its journal included, while the
// agent hangs: the CO keeps what it knows of the node, the container goes on, and the site
// learns from the node what runs there once it is back.
func siteLosesItsDisk(t *testing.T, c *colony) {
	sample, mark := c.samplePID(), c.mark()
	c.signal("en", syscall.SIGSTOP)
	defer c.signal("en", syscall.SIGCONT)
	c.signal("lo", syscall.SIGSTOP) // it writes nothing any more
	dir := filepath.Join(c.dir, "lo")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%d entries in the LO's state directory: %v", len(entries), err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	c.kill("lo")
	c.event(time.Minute, string(protocol.SnapshotEvent), mark)
	var n fleet.Node
	if err := c.get("/nodes/"+site+"/"+node, &n); err != nil || n.State == fleet.NodeOnline || n.Problem == "" {
		t.Errorf("the node, while it is away: %+v, %v; want it known, away and with a problem", n, err)
	}
	if d, err := c.deployment("hello"); err != nil || len(d.Nodes) != 1 {
		t.Errorf("the deployment, while its node is away: %+v, %v", d, err)
	}
	c.signal("en", syscall.SIGCONT)
	if e := c.event(time.Minute, string(protocol.NodeEpochRaised), mark); e.Node != node {
		t.Errorf("event %+v: want it of node %s", e, node)
	}
	c.installed("hello", "1.0.0")
	if now := c.samplePID(); now != sample {
		t.Errorf("the container was restarted: pid %s, was %s", now, sample)
	}
	c.must("deploy", "hello@1.1.0", "--site", site, "--wait")
	c.greets("I am version 1.1.0.")
	c.must("deploy", "hello@1.0.0", "--site", site, "--wait")
	c.greets("I am version 1.0.0.")
}

// postgresHangs stops the database: reads say so, the site's journal waits, and
// nothing is lost.
func postgresHangs(t *testing.T, c *colony) {
	pid, err := c.pid("postgres")
	if err != nil {
		t.Fatal(err)
	}
	group := func(sig string) {
		t.Helper()
		// The server and its children.
		if out, err := exec.Command("sh", "-c", fmt.Sprintf("kill -%s %d $(pgrep -P %d)", sig, pid, pid)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	before := len(c.history("hello"))
	group("STOP")
	c.kill("en") // its offline and online events have to wait
	group("CONT")
	c.eventually(time.Minute, "the node is online", func() error {
		online, err := c.nodeOnline()
		if err == nil && !online {
			err = errors.New("offline")
		}
		return err
	})
	if after := len(c.history("hello")); after != before {
		t.Errorf("%d moves appeared", after-before)
	}
	c.greets("I am version")
}

// TestFullDisk pulls an image onto a disk that has no room for it.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	c := newColony(t)
	disk := filepath.Join(c.dir, "containerd")
	if err := os.Mkdir(disk, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.down()
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	c.start()
	c.eventually(10*time.Minute, "the deployment says that there is no space", func() error { // the start of all parts is a part of that
		d, err := c.deployment("hello")
		if err != nil {
			return err
		}
		for _, n := range d.Nodes {
			if n.Code == protocol.NoSpace {
				return nil
			}
		}
		return fmt.Errorf("%+v", d.Nodes)
	})
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, "size=400m"); err != nil {
		t.Fatal(err)
	}
	c.must("deployment", "retry", site+"/hello")
	c.installed("hello", "1.0.0")
	c.greets("Hello, World!")
	if !strings.Contains(c.must("deployment", "history", site+"/hello"), "no_space") {
		t.Error("the history does not say what happened")
	}
}

// TestExistingParts runs a fleet on a PostgreSQL and a containerd that are there
// already, and leaves both as they were.
func TestExistingParts(t *testing.T) {
	t.Parallel()
	pg, daemon := pgtest.NewOwn(t), containerdtest.Start(t)
	c := newColony(t)
	c.args = append(c.args, "--database-url", pg.URL(), "--containerd", daemon.Socket)
	c.up()
	c.greets("Hello, World! I am version 1.0.0.")
	tasks := func() string {
		out, err := exec.Command("ctr", "-a", daemon.Socket, "-n", "colony", "task", "ls", "-q").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := tasks(); !strings.Contains(got, "hello") {
		t.Errorf("tasks in containerd: %q", got)
	}
	c.down()
	if got := tasks(); got != "" {
		t.Errorf("the fleet is down, and these still run: %q", got)
	}
}
