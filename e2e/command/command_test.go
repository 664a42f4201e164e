package command_test

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
)

// TestKinds asks the nodes of a site for each kind that gives a result.
func TestKinds(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	s.join("n1")
	s.join("n2")
	c.desire(1, protocol.Container{Name: "web", Image: "r/web"}, protocol.Container{Name: "db", Image: "r/db"})
	c.installed("n1")
	c.installed("n2")

	id := c.send(c.command(command.Inventory, nil))
	if m := c.receipt(id); m.Nodes != 2 || m.Code != "" {
		t.Errorf("received %+v, want two nodes", m)
	}
	for _, n := range []protocol.NodeID{"n1", "n2"} {
		if r := c.ends(id, n, command.Done, ""); !strings.Contains(r.Output, "engine memory") {
			t.Errorf("inventory of %s: %q", n, r.Output)
		}
	}
	id = c.send(c.command(command.Probe, command.Subject{Deployment: "app"}, "n2"))
	if r := c.ends(id, "n2", command.Done, ""); r.Output != "main/web: runs; it has no health check\nmain/db: runs; it has no health check\n" {
		t.Errorf("probe: %q", r.Output)
	}
	id = c.send(c.command(command.Probe, command.Subject{Deployment: "app", Container: "cache"}, "n2"))
	if r := c.ends(id, "n2", command.Failed, command.NoSuchSubject); r.Message != "deployment app has no such container: it has main/web, main/db" {
		t.Errorf("probe of no container: %q", r.Message)
	}
	id = c.send(c.command(command.Pull, command.Subject{Deployment: "app", Container: "db"}, "n1"))
	if r := c.ends(id, "n1", command.Done, ""); !strings.HasPrefix(r.Output, "r/db: ") {
		t.Errorf("pull: %q", r.Output)
	}
	id = c.send(c.command(command.Restart, command.Subject{Deployment: "app", Container: "web"}, "n1"))
	if r := c.ends(id, "n1", command.Done, ""); r.Output != "main/web: restarted\n" {
		t.Errorf("restart: %q", r.Output)
	}
	list, err := s.nodes["n1"].engine.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Restarts != 0 || list[1].Restarts != 1 {
		t.Errorf("after the restart of web: %+v, %v", list, err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	id = c.send(c.command(command.Check, command.NetworkCheck{Method: command.Connect, Target: l.Addr().String(), Count: 2}, "n1"))
	if r := c.ends(id, "n1", command.Done, ""); !strings.Contains(r.Output, "2 of 2 attempts succeeded") {
		t.Errorf("tcp: %q", r.Output)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	id = c.send(c.command(command.Check, command.NetworkCheck{Method: command.Connect, Target: l.Addr().String()}, "n1"))
	if r := c.ends(id, "n1", command.Failed, command.ExecutionFailed); !strings.Contains(r.Message, "refused") {
		t.Errorf("tcp to a closed port: %q", r.Message)
	}
	id = c.send(c.command(command.Check, command.NetworkCheck{Method: command.Ping, Target: "127.0.0.1"}, "n1"))
	if r := c.ends(id, "n1", command.Done, ""); !strings.Contains(r.Output, "answer of 127.0.0.1") {
		t.Errorf("ping: %q", r.Output)
	}
}

// TestWhoIsMeant sends commands by labels and names, to nodes that the site has and does not have.
func TestWhoIsMeant(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c, func(o *lo.Options) { o.PresenceGrace = time.Millisecond })
	s.join("n1")
	s.join("n2")
	byLabel := c.command(command.Inventory, nil)
	byLabel.All, byLabel.Selector = false, map[string]string{"name": "n2"}
	id := c.send(byLabel)
	if m := c.receipt(id); m.Nodes != 1 {
		t.Errorf("received %+v, want one node", m)
	}
	c.ends(id, "n2", command.Done, "")
	byLabel = c.command(command.Inventory, nil)
	byLabel.All, byLabel.Selector = false, map[string]string{"name": "n3"}
	if m := c.receipt(c.send(byLabel)); m.Code != command.NoNode || m.Message != "no node of the site has the labels name=n3" {
		t.Errorf("received %+v, want that no node is meant", m)
	}
	id = c.send(c.command(command.Inventory, nil, "n1", "n9"))
	c.ends(id, "n1", command.Done, "")
	c.ends(id, "n9", command.Refused, command.NoNode)
}

// TestNotSigned sends what the CO did not sign for the site.
func TestNotSigned(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	s.join("n1")
	other := &co{t: t, keys: signtest.New(t, 50)}
	forged := c.command(command.Inventory, nil)
	c.publish(forged.ID, other.envelope(forged))
	altered := c.command(command.Inventory, nil)
	b := c.envelope(altered)
	c.publish(altered.ID, bytes.Replace(b, []byte("inventory"), []byte("inventarY"), 1))
	elsewhere := c.command(command.Inventory, nil)
	elsewhere.Site = "mill"
	c.publish(elsewhere.ID, c.envelope(elsewhere))
	moved := c.command(command.Inventory, nil)
	at := newID()
	c.publish(at, c.envelope(moved))
	for what, id := range map[string]command.ID{"unknown_key": forged.ID, "bad_signature": altered.ID, "wrong_site": elsewhere.ID, "mismatch": at} {
		if m := c.receipt(id); m.Code != command.BadSignature || !strings.HasPrefix(m.Message, what+": ") {
			t.Errorf("%s: received %+v", what, m)
		}
	}
	c.ends(c.send(c.command(command.Inventory, nil)), "n1", command.Done, "")
}

// TestDeadline has the CO say its time in all ways: not at all, late, and after the deadline.
func TestDeadline(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	s.join("n1")
	past := c.command(command.Inventory, nil, "n1")
	past.IssuedMillis -= 3 * 60 * 60 * 1000
	past.DeadlineMillis -= 3 * 60 * 60 * 1000
	r := c.ends(c.send(past), "n1", command.Expired, "")
	if !r.ByLO || !strings.Contains(r.Message, "only after the deadline") {
		t.Errorf("after the deadline: %+v", r)
	}
	// The LO gives nothing to its nodes before it knows the time, in this run.
	c.mu.Lock()
	c.silent = true
	c.mu.Unlock()
	s.stop()
	s.start()
	c.mu.Lock()
	asks := c.asks
	c.mu.Unlock()
	id := c.send(c.command(command.Inventory, nil, "n1"))
	c.receipt(id)
	testpart.Eventually(t, "the LO asks twice more", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.asks >= asks+2
	})
	if r := c.last(id, "n1"); r.State != "" {
		t.Errorf("without the time of the CO: %+v", r)
	}
	c.mu.Lock()
	c.silent = false
	c.mu.Unlock()
	c.ends(id, "n1", command.Done, "")
}

// TestAway cancels a command for a node that is away, and expires one.
func TestAway(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	n := s.join("n1")
	c.ends(c.send(c.command(command.Inventory, nil)), "n1", command.Done, "")
	n.stop()
	id := c.send(c.command(command.Inventory, nil))
	c.receipt(id)
	c.publish(id, nil)
	if r := c.ends(id, "n1", command.Expired, command.Cancelled); !r.ByLO {
		t.Errorf("cancelled: %+v", r)
	}
	short := c.command(command.Inventory, nil)
	short.DeadlineMillis = short.IssuedMillis + 1000
	late := c.send(short)
	waits := c.send(c.command(command.Inventory, nil))
	c.receipt(waits)
	if r := c.ends(late, "n1", command.Expired, command.NodeAway); !r.ByLO {
		t.Errorf("after the deadline: %+v", r)
	}
	s.join("n1")
	if r := c.ends(waits, "n1", command.Done, ""); r.ByLO {
		t.Errorf("a node that is back: %+v", r)
	}
}

// TestOnce publishes a command again and again, over restarts of the LO and of the agent: the container restarts once.
func TestOnce(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	n := s.join("n1")
	c.desire(1, protocol.Container{Name: "web", Image: "r/web", Restart: protocol.Restart{Policy: protocol.RestartAlways}})
	c.installed("n1")
	m := c.command(command.Restart, command.Subject{Deployment: "app"})
	envelope := c.envelope(m)
	c.publish(m.ID, envelope)
	c.ends(m.ID, "n1", command.Done, "")
	for _, again := range []func(){
		func() {},
		func() { s.stop(); s.start() },
		func() { n.stop(); n = s.join("n1") },
		func() { n.stop(); s.stop(); n.disk.Restart(true); s.start(); n = s.join("n1") },
	} {
		again()
		c.mu.Lock()
		before := len(c.results[m.ID]["n1"])
		c.mu.Unlock()
		c.publish(m.ID, envelope)
		testpart.Eventually(t, "the result is reported again", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.results[m.ID]["n1"]) > before
		})
		if r := c.last(m.ID, "n1"); r.State != command.Done || r.ByLO {
			t.Errorf("reported again: %+v", r)
		}
	}
	c.ends(c.send(c.command(command.Inventory, nil)), "n1", command.Done, "")
	list, err := n.engine.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Restarts != 1 || list[0].State != "running" {
		t.Errorf("%+v, %v; want one restart", list, err)
	}
	// An LO that has lost its record receives it anew, and the node answers what it did.
	n.stop()
	s.stop()
	s.o.StateDir = t.TempDir()
	s.start()
	n = s.join("n1")
	c.mu.Lock()
	delete(c.results, m.ID)
	c.mu.Unlock()
	c.publish(m.ID, envelope)
	c.ends(m.ID, "n1", command.Done, "")
	if list, err := n.engine.List(t.Context()); err != nil || list[0].Restarts != 1 {
		t.Errorf("%+v, %v; want one restart", list, err)
	}
}

// TestRestartIsNoCrash restarts a container that is not proven yet more often than it may crash.
func TestRestartIsNoCrash(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	n := s.join("n1")
	c.desire(1, protocol.Container{Name: "web", Image: "r/web", Restart: protocol.Restart{Policy: protocol.RestartAlways}})
	c.installed("n1")
	for range 10 {
		c.ends(c.send(c.command(command.Restart, command.Subject{Deployment: "app"})), "n1", command.Done, "")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := fmt.Sprint(c.moves["n1/app"]); got != "[INSTALLING INSTALLED]" {
		t.Errorf("states %s", got)
	}
	if list, err := n.engine.List(t.Context()); err != nil || len(list) != 1 || list[0].Restarts != 10 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestNewAgent replaces an agent by one that remembers nothing: it executes nothing that was issued before.
func TestNewAgent(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	n := s.join("n1")
	n.stop()
	m := c.command(command.Inventory, nil)
	c.receipt(c.send(m))
	c.advance(time.Minute)
	delete(s.nodes, "n1")
	s.join("n1")
	c.ends(m.ID, "n1", command.Refused, command.IssuedBeforeAgent)
	c.advance(time.Minute)
	c.ends(c.send(c.command(command.Inventory, nil)), "n1", command.Done, "")
}
