package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	mqtt "github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/client/clienttest"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/privatecontainerd"
	"github.com/colonyfleet/colony/internal/shims"
	"github.com/colonyfleet/colony/internal/testproc"
	"github.com/colonyfleet/colony/protocol"
)

// A machine is one that runs a whole fleet: colony up.
type machine struct {
	*colony
	up   *testproc.Process
	args []string
}

// newMachine prepares the state directory of a fleet, and its addresses.
func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "colony-up-") // short, because Unix sockets have short names
	if err == nil {
		err = os.Chmod(dir, 0o755) // for the user of the database
	}
	if err != nil {
		t.Fatal(err)
	}
	ports := freeport.Ports(t, 5)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	m := &machine{colony: &colony{t: t, dir: dir, http: at(0), loHTTP: at(1), loMQTT: at(2), port: ports[4]}}
	m.up = testproc.New(t, "colony up", filepath.Join(dir, "up.out"))
	m.args = []string{
		"up", "--state-dir", dir, "--site", site, "--node", node, "--http", at(0), "--lo-http", at(1), "--lo-mqtt", at(2), "--co-mqtt", at(3),
		"--samples", "../../examples", "--sample-binaries", "../../bin/samples", "--sample-parameter", fmt.Sprintf("port=%d", m.port),
	}
	t.Cleanup(func() {
		m.up.Stop()
		if t.Failed() {
			t.Logf("the state directory is left for inspection: %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return m
}

// start runs the fleet by the programs of a release, and waits until it is up.
func (m *machine) start(r release, more ...string) {
	m.t.Helper()
	before, err := os.ReadFile(m.up.Log())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	m.up.Start(append(append([]string{filepath.Join(string(r), "colony")}, m.args...), more...)...)
	m.eventually("the fleet is up", func() error {
		if err := m.up.Running(); err != nil {
			m.t.Fatal(err)
		}
		out, err := os.ReadFile(m.up.Log())
		if err == nil && !bytes.Contains(out[len(before):], []byte("Colony is up")) {
			err = errors.New("not yet")
		}
		return err
	})
}

// nsPID says of a process that it is the first one of a namespace of processes below the machine's.
var nsPID = regexp.MustCompile(`(?m)^NSpid:(\s+\d+)+\s+1$`)

// containers returns the process ids of the shims, each with that of a container's first process.
func (m *machine) containers() (pids []string) {
	m.t.Helper()
	found, err := shims.Find(privatecontainerd.Socket(filepath.Join(m.dir, "containerd")), "colony")
	if err != nil {
		m.t.Fatal(err)
	}
	for _, one := range found {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", one.PID, one.PID))
		if err != nil {
			m.t.Fatal(err)
		}
		for _, child := range strings.Fields(string(children)) {
			// A probe is a child, too, and no first process of its container.
			status, err := os.ReadFile("/proc/" + child + "/status")
			if err == nil && nsPID.Match(status) {
				pids = append(pids, fmt.Sprintf("%d: %s", one.PID, child))
			}
		}
	}
	return pids
}

// signal sends a signal to a tier.
func (m *machine) signal(role string, sig syscall.Signal) {
	m.t.Helper()
	raw, err := os.ReadFile(filepath.Join(m.dir, "run", role+".pid"))
	if err != nil {
		m.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err == nil {
		err = syscall.Kill(pid, sig)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// arrivals counts the events by which the CO knows that the agent of a release came online.
func (m *machine) arrivals(version string) (n int, err error) {
	var page struct{ Items []fleet.Event }
	err = m.get("/events?limit=500&kind="+string(protocol.NodeOnlineEvent), &page)
	for _, e := range page.Items {
		if e.Message == version {
			n++
		}
	}
	return n, err
}

// secure returns the flags of free addresses for machines with certificates.
func secure(t *testing.T) (flags []string) {
	t.Helper()
	ports := freeport.Ports(t, 6)
	for i, flag := range []string{"--co-mqtt-tls", "--lo-mqtt-tls", "--co-enrol", "--lo-enrol", "--co-https", "--lo-https"} {
		flags = append(flags, flag, fmt.Sprintf("127.0.0.1:%d", ports[i]))
	}
	return flags
}

// edit changes a file below the state directory.
func (m *machine) edit(file string, change func(content []byte)) {
	m.t.Helper()
	path := filepath.Join(m.dir, file)
	b, err := os.ReadFile(path)
	if err == nil {
		change(b)
		err = rewrite(path, b)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// TestDamagedIdentityOfAMachine damages the keys and the clocks' floors of LO and agent, and the root of the fleet, between
// a kill and the start. Containers go on, also where the fleet cannot come up; both machines enrol anew, and
// say what was damaged.
func TestDamagedIdentityOfAMachine(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	present, flags := built(t), secure(t)
	m.co = &tier{program: []string{filepath.Join(string(present), "colony")}} // for the command line
	m.start(present, flags...)
	ran := m.containers()
	if len(ran) == 0 {
		t.Fatal("no container runs")
	}
	same := func(when string) {
		t.Helper()
		if now := m.containers(); strings.Join(now, ",") != strings.Join(ran, ",") {
			t.Errorf("%s the containers are %q, were %q", when, now, ran)
		}
	}
	flip := func(at, bit int) func([]byte) { return func(b []byte) { b[at] ^= 1 << bit } }

	m.up.Kill()
	m.edit("co/identity/root.key", flip(60, 2))
	m.up.Start(append(append([]string{filepath.Join(string(present), "colony")}, m.args...), flags...)...)
	m.eventually("the fleet does not come up without its root", func() error {
		if m.up.Running() == nil {
			return errors.New("it runs")
		}
		return nil
	})
	same("after a start that failed")

	m.edit("co/identity/root.key", flip(60, 2))
	for _, file := range []string{"lo/identity/machine.key", "en/identity/machine.key", "lo/identity/clock.floor", "en/identity/clock.floor"} {
		m.edit(file, flip(60, 2))
	}
	m.start(present, flags...)
	m.eventually("all is as before", func() error {
		return errors.Join(m.online(), m.runs("hello", "1.0.0"), m.greets("I am version 1.0.0."))
	})
	same("after both machines enrolled anew")
	m.eventually("the damage is known", func() error {
		var page struct{ Items []fleet.Event }
		err := m.get("/events?limit=500&kind="+string(protocol.StateDamaged), &page)
		for _, want := range []string{"machine.key", "clock"} {
			for _, of := range []protocol.NodeID{"", node} {
				if !slices.ContainsFunc(page.Items, func(e fleet.Event) bool { return e.Node == of && strings.Contains(e.Message, want) }) {
					err = errors.Join(err, fmt.Errorf("no event of %q names %s: %+v", of, want, page.Items))
				}
			}
		}
		return err
	})
	m.must("deploy", "hello@1.1.0", "--site", site, "--set", fmt.Sprintf("port=%d", m.port), "--wait", "--healthy-for", "1s")
}

// TestUpMigrates ends a fleet of the first release, which knew no certificates, the hard way,
// while its site has events for a CO that hangs, and starts the present release in its state
// directory: site, node, deployment and journal are as before, the container was not touched,
// and machines connect with certificates alone.
func TestUpMigrates(t *testing.T) {
	present := built(t)
	all, err := releases("../..")
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	m.start(programs(t, all[len(all)-1]))
	waiting := func(check func(events int) bool) func() error {
		return func() error {
			s, err := m.site()
			if err == nil && !check(int(s.Journal.Depth)) {
				err = fmt.Errorf("%d events wait for the CO", s.Journal.Depth)
			}
			return err
		}
	}
	m.eventually("the CO has all events", waiting(func(n int) bool { return n == 0 }))
	var site0 fleet.Site
	if err := m.get("/sites/"+site, &site0); err != nil {
		t.Fatal(err)
	}
	came, err := m.arrivals(oldest)
	if err != nil {
		t.Fatal(err)
	}
	ran := m.containers()
	if len(ran) == 0 {
		t.Fatal("no container runs")
	}
	m.signal("co", syscall.SIGSTOP)
	m.signal("en", syscall.SIGKILL)
	m.eventually("the site has events for the CO: the node is offline, and online again", waiting(func(n int) bool { return n >= 2 }))
	m.up.Kill()

	m.start(present, secure(t)...)
	m.eventually("the events of before have come", func() error {
		now, err := m.arrivals(oldest)
		if err == nil && now <= came {
			err = fmt.Errorf("the former agent came online %d times, and %d before", now, came)
		}
		return err
	})
	m.eventually("all is as before", func() error {
		return errors.Join(m.online(), m.runs("hello", "1.0.0"), m.greets("I am version 1.0.0."))
	})
	if now := m.containers(); strings.Join(now, ",") != strings.Join(ran, ",") {
		t.Errorf("containers %q, were %q", now, ran)
	}
	var site1 fleet.Site
	if err := m.get("/sites/"+site, &site1); err != nil || site1.JournalEpoch != site0.JournalEpoch || site1.JournalSeq <= site0.JournalSeq || site1.Nodes != 1 || site1.EventsLost != 0 {
		t.Errorf("the site is %+v, %v; before it was %+v", site1, err, site0)
	}
	attempt := func(user string) error {
		return clienttest.Attempt(t, mqtt.Options{URLs: []string{"tcp://" + m.loMQTT}, ClientID: user, Username: user})
	}
	if err := attempt(node + "." + site); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a client that names itself the node, without a certificate: %v", err)
	}
	if err := attempt("plc@" + site); err != nil {
		t.Errorf("a client that is no part of Colony: %v", err)
	}
	for _, tier := range []string{"co", "lo", "en"} {
		if _, err := os.Stat(filepath.Join(m.dir, tier, "identity", "machine.crt")); err != nil {
			t.Errorf("certificate of the %s: %v", tier, err)
		}
	}
}
