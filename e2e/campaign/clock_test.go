package campaign

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var clockAll = flag.Bool("clocks", false, "have TestClocks go through every wrong clock of the LO with every one of the agent")

// faulty builds the programs with a clock that a file sets: the compiler is given another
// source of package time, in which time.Now asks that file. What the monotonic clock says, and
// so every timer, stays as it is. Nothing of it is in the programs that make build leaves.
func faulty(t testing.TB) release {
	t.Helper()
	root, err := run(".", "go", "env", "GOROOT")
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(root), "src", "time")
	b, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(b), now) != 1 {
		t.Fatalf("%s does not begin its Now as this test expects: see how it reads the clock, and write faulty anew", source)
	}
	dir := t.TempDir()
	patched := filepath.Join(dir, "time.go")
	if err := os.WriteFile(patched, []byte(strings.Replace(string(b), now, now+"\tsec, nsec = faultyWall(sec, nsec, mono)\n", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	added, err := filepath.Abs("testdata/time_fault.txt")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(source, "time.go"): patched, filepath.Join(source, "fault.go"): added,
	}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "bin")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"colony", "colony-en", "colony-init"} {
		if _, err := run("../..", "go", "build", "-trimpath", "-overlay", file, "-ldflags", "-s -w", "-o", out+"/", "./cmd/"+name); err != nil {
			t.Fatal(err)
		}
	}
	return release(out)
}

// A clock is a wrong one, as testdata/time_fault.txt reads it.
type clock struct {
	name  string
	fault [3]int64 // seconds more, parts per million faster, seconds since 1970 where it stands still
}

const tenYears = 10 * 365 * 24 * 60 * 60

// wrong returns the clocks that a tier may have. None is right.
func wrong() []clock {
	boot := -time.Now().Unix() // to 1970
	return []clock{
		{"at 1970", [3]int64{boot}},
		{"ten years ahead", [3]int64{tenYears}},
		{"ten years behind", [3]int64{-tenYears}},
		{"1 % fast", [3]int64{0, 10_000}},
		{"frozen", [3]int64{0, 0, time.Now().Unix()}},
	}
}

var right = clock{name: "right"}

// clocked is a fleet whose LO and agent have clocks that can be set.
type clocked struct {
	*colony
	greeting int
}

// set gives a tier a clock, which it has within moments where it runs.
func (c *clocked) set(p *tier, to clock) {
	c.t.Helper()
	path := filepath.Join(c.dir, p.role+".clock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	var b []byte
	for _, n := range to.fault {
		b = binary.NativeEndian.AppendUint64(b, uint64(n))
	}
	_, err = f.WriteAt(b, 0) // in place: a process has it in its memory
	if err := errors.Join(err, f.Close()); err != nil {
		c.t.Fatal(err)
	}
	p.SetEnv("COLONY_TEST_CLOCK=" + path)
}

// boot starts LO and agent with wrong clocks, as after a power cut.
func (c *clocked) boot(lo, en clock) {
	c.t.Helper()
	c.lo.Kill()
	c.en.Kill()
	c.set(c.lo, lo)
	c.set(c.en, en)
	c.lo.start()
	c.serves(c.lo, c.loHTTP, "/healthz")
	c.en.start()
	c.works(fmt.Sprintf("booted with the LO's clock %s and the agent's %s", lo.name, en.name))
}

// works waits until the fleet is whole, and a change gets through to the container.
func (c *clocked) works(what string) {
	c.t.Helper()
	began := time.Now()
	c.eventually(what+": the node is online", c.online)
	c.greeting++
	text := fmt.Sprintf("Clock%d", c.greeting)
	c.must("deploy", "hello@1.1.0", "--site", site, "--set", "addressee="+text)
	c.eventually(what+": the change is there", func() error {
		return errors.Join(c.lo.Running(), c.en.Running(), c.greets(text), c.runs("hello", "1.1.0"))
	})
	c.t.Logf("%s: whole after %s", what, time.Since(began).Round(time.Millisecond))
}

// fails deploys a version that fails, which is tried twice and then rolled back: neither the
// wait between the tries nor what is kept of them depends on the time of day.
func (c *clocked) fails(what string) {
	c.t.Helper()
	out, err := c.cli("deploy", "hello@1.2.0-exits", "--site", site, "--attempts", "2", "--backoff", "1s", "--wait", "--timeout", "2m")
	if err == nil || !strings.Contains(out, "went back to 1.1.0") {
		c.t.Fatalf("%s: a version that exits: %v, want that the node went back to 1.1.0\n%s", what, err, out)
	}
	c.works(what + ", after a rollback")
}

// TestClocks has an LO and an agent, as processes, whose clocks are wrong when they start, or
// are set while they run, as by NTP: changes, retries and rollbacks go on as ever, nothing is
// lost, and no container is removed.
func TestClocks(t *testing.T) {
	t.Parallel()
	programs := faulty(t)
	c := &clocked{colony: newColony(t, built(t), programs, programs)}
	c.set(c.lo, right)
	c.set(c.en, right)
	c.up()
	c.must("deploy", "keeper", "--site", site)
	c.must("deploy", "hello@1.1.0", "--site", site, "--set", fmt.Sprintf("port=%d", c.port))
	c.eventually("both run", func() error { return errors.Join(c.runs("hello", "1.1.0"), c.runs("keeper", "1.0.0")) })

	clocks := wrong()
	past := clocks[0]
	c.boot(past, past)
	for _, p := range []*tier{c.lo, c.en} {
		if said := string(p.Tail()); !strings.Contains(said, "1970-01-01T") {
			t.Fatalf("the clock of %s is not at 1970: its log says\n%s", p.role, said)
		}
	}
	c.fails("both at 1970")
	c.set(c.lo, right) // NTP answers, first at the LO
	c.works("the LO's clock was set from 1970 while it ran")
	c.set(c.en, right)
	c.works("the agent's clock was set from 1970 while it ran")
	c.boot(past, right) // set, and after a power cut at 1970 once more
	c.boot(clocks[1], clocks[2])
	c.set(c.lo, clocks[2])
	c.set(c.en, clocks[1])
	c.works("both clocks were set by twenty years, apart")
	c.boot(clocks[4], clocks[4])
	c.fails("both frozen")
	if *clockAll {
		for _, lo := range clocks {
			for _, en := range clocks {
				c.boot(lo, en)
				c.fails(fmt.Sprintf("the LO's clock %s and the agent's %s", lo.name, en.name))
				for _, to := range clocks {
					c.set(c.lo, to)
					c.set(c.en, to)
					c.works("both were set while they ran, to " + to.name)
				}
			}
		}
	}
	c.set(c.lo, right)
	c.set(c.en, right)
	c.works("both clocks are right")
	if err := c.runs("keeper", "1.0.0"); err != nil {
		t.Error(err)
	}
	if lost, err := c.query("select coalesce(sum(events_lost), 0) from sites"); err != nil || lost != 0 {
		t.Errorf("%d events are lost (%v), want none", lost, err)
	}
	if restarts, err := c.query("select count(*) from deployment_history where deployment = 'keeper' and to_state <> 'PENDING'"); err != nil || restarts != 2 {
		t.Errorf("keeper made %d transitions after PENDING (%v), want INSTALLING and INSTALLED alone", restarts, err)
	}
}
