package command_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// The test runs itself as an agent, to be killed, where this is set: to its directory, and the address of its LO.
const (
	agentDir = "COLONY_TEST_AGENT"
	agentLO  = "COLONY_TEST_LO"
	// agentNode is its name; without it it is n1.
	agentNode = "COLONY_TEST_NODE"
)

// stopping is how long a container takes to stop.
const stopping = 20 * time.Millisecond

// A seam is an engine that writes down what a restart of containers does, and does not come back from a step that the test names in a file.
type seam struct {
	*memory.Engine
	dir string
}

// reach writes down that a step was reached, and stays there where it is named.
func (s seam) reach(ctx context.Context, step string) {
	f, err := os.OpenFile(filepath.Join(s.dir, "steps"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, step)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		panic(err)
	}
	if b, err := os.ReadFile(filepath.Join(s.dir, "stay")); err == nil && string(b) == step {
		<-ctx.Done()
	}
}

// Stop implements engine.Engine.
func (s seam) Stop(ctx context.Context, id engine.ID, grace time.Duration) error {
	s.reach(ctx, "before")
	time.Sleep(stopping)
	err := s.Engine.Stop(ctx, id, grace)
	s.reach(ctx, "after")
	return err
}

// agent runs as an agent until it is killed.
func agent(dir string) error {
	o := en.DefaultOptions()
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
		return err
	}
	o.Site, o.Node, o.StateDir, o.RootKeyFile, o.Runtime = plant, "n1", filepath.Join(dir, "state"), filepath.Join(dir, "root.pub"), seam{memory.New(memory.Options{}), dir}
	if name := os.Getenv(agentNode); name != "" {
		o.Node, o.Labels = protocol.NodeID(name), map[string]string{"name": name}
	}
	o.Now = shifted()
	o.LO.MQTT, o.Logger = []string{"tcp://" + os.Getenv(agentLO)}, plainLogger()
	e, err := en.New(o)
	if err != nil {
		return err
	}
	return e.Run(context.Background())
}

// process starts the agent as a process of its own, and returns what kills it.
func process(t *testing.T, dir, address string) (kill func()) {
	t.Helper()
	p := testproc.New(t, "agent", filepath.Join(dir, "log"))
	p.SetEnv(agentDir+"="+dir, agentLO+"="+address)
	p.Start(os.Args[0])
	kill = sync.OnceFunc(p.Kill)
	t.Cleanup(kill)
	return kill
}

// steps returns how often a step was reached.
func steps(t *testing.T, dir, step string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "steps"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(b), step+"\n")
}

// TestKilled kills the agent after it has written down that a command begins and before it does anything, and after it has done what was asked and
// before it has written down the result: the command is not executed again, and no result says that it was done.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"before", "after"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			c := newCO(t)
			s := newSite(t, c)
			dir := t.TempDir()
			root, err := os.ReadFile(c.root)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.WriteFile(filepath.Join(dir, "root.pub"), root, 0o600), os.WriteFile(filepath.Join(dir, "stay"), []byte(step), 0o600)); err != nil {
				t.Fatal(err)
			}
			kill := process(t, dir, s.lo.MQTTAddr())
			c.desire(1, protocol.Container{Name: "web", Image: "r/web", Restart: protocol.Restart{Policy: protocol.RestartAlways}})
			c.installed("n1")
			m := c.command(command.Restart, command.Subject{Deployment: "app"}, "n1")
			envelope := c.envelope(m)
			c.publish(m.ID, envelope)
			testpart.Eventually(t, "the step is reached", func() bool { return steps(t, dir, step) == 1 })
			testpart.Eventually(t, "the CO has that it runs", func() bool { return c.last(m.ID, "n1").State == command.Running })
			kill()
			if err := os.Remove(filepath.Join(dir, "stay")); err != nil {
				t.Fatal(err)
			}
			process(t, dir, s.lo.MQTTAddr())
			r := c.ends(m.ID, "n1", command.Unknown, command.Interrupted)
			if r.ByLO {
				t.Errorf("result %+v, want the node's own", r)
			}
			for range 2 { // it comes once more, to the LO
				c.publish(m.ID, envelope)
			}
			// A command of another id works.
			id := c.send(c.command(command.Restart, command.Subject{Deployment: "app"}, "n1"))
			c.ends(id, "n1", command.Done, "")
			if got := steps(t, dir, "before"); got != 2 {
				t.Errorf("%d restarts, want one of each command", got)
			}
		})
	}
}

// TestWrongClocks has the LO live in 1990 and a node in 2070: a command is executed before its deadline at the CO, and never after that.
func TestWrongClocks(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	shifted := func(year int) func() time.Time {
		by := time.Until(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
		return func() time.Time { return time.Now().Add(by) }
	}
	s := newSite(t, c, func(o *lo.Options) { o.Now = shifted(1990) })
	n := s.join("n1", func(o *en.Options) { o.Now = shifted(2070) })
	c.ends(c.send(c.command(command.Inventory, nil)), "n1", command.Done, "")
	// The node is away; the machine of the LO sleeps, and with it all that counts by package time. Both start again with other clocks.
	n.stop()
	m := c.command(command.Inventory, nil)
	c.receipt(c.send(m))
	s.stop()
	c.advance(2 * time.Hour)
	s.o.Now = shifted(2070)
	s.start()
	s.join("n1", func(o *en.Options) { o.Now = shifted(1990) })
	r := c.ends(m.ID, "n1", command.Expired, "")
	if !strings.Contains(r.Message, "deadline") {
		t.Errorf("%+v", r)
	}
}

// TestUnderCuts sends commands while LO and node lose their power, and links end, at any moment: a command that may not be repeated is executed at
// most once, and each ends.
func TestUnderCuts(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	n := s.join("n1")
	c.desire(1, protocol.Container{Name: "web", Image: "r/web", Restart: protocol.Restart{Policy: protocol.RestartAlways}})
	c.installed("n1")
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the choice of a test
	var ids, restarts []command.ID
	for round := range 12 {
		for range 5 {
			kind, args := command.Inventory, any(nil)
			if random.IntN(2) == 0 {
				kind, args = command.Restart, command.Subject{Deployment: "app"}
			}
			m := c.command(kind, args, "n1")
			envelope := c.envelope(m)
			for range 1 + random.IntN(3) {
				c.publish(m.ID, envelope)
			}
			ids = append(ids, m.ID)
			if kind == command.Restart {
				restarts = append(restarts, m.ID)
			}
		}
		switch round % 3 {
		case 0:
			s.stop()
			s.start()
		case 1:
			n.stop()
			n.disk.Restart(true) // what is not durable is lost
			n = s.join("n1")
		default:
			n.stop()
			n.disk.Restart(true)
			s.stop()
			s.start()
			n = s.join("n1")
		}
	}
	done := 0
	for _, id := range ids {
		testpart.Eventually(t, fmt.Sprintf("command %s ends", id), func() bool {
			r := c.last(id, "n1")
			return r.State != "" && r.State.Ended()
		})
	}
	for _, id := range restarts {
		if c.last(id, "n1").State == command.Done {
			done++
		}
	}
	list, err := n.engine.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if got := int(list[0].Restarts); got < done || got > len(restarts) {
		t.Errorf("%d restarts of the container, %d of %d commands did it", got, done, len(restarts))
	}
}

// TestRandomKills kills the agent with SIGKILL again and again while commands arrive, and now and then restarts the LO with it: each command ends, and no
// restart was done more often than results say.
func TestRandomKills(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	dir := t.TempDir()
	root, err := os.ReadFile(c.root)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "root.pub"), root, 0o600); err != nil {
		t.Fatal(err)
	}
	kill := process(t, dir, s.lo.MQTTAddr())
	c.desire(1, protocol.Container{Name: "web", Image: "r/web", Restart: protocol.Restart{Policy: protocol.RestartAlways}})
	c.installed("n1")
	random := rand.New(rand.NewPCG(7, 8)) //nolint:gosec // the choice of a test
	var all []*command.Command
	ended := func() (n int) {
		for _, m := range all {
			if st := c.last(m.ID, "n1").State; st != "" && st.Ended() {
				n++
			}
		}
		return n
	}
	for round := range 15 {
		for range 8 {
			m := c.command(command.Restart, command.Subject{Deployment: "app"}, "n1")
			if random.IntN(4) == 0 {
				m = c.command(command.Inventory, nil, "n1")
			}
			all = append(all, m)
			c.send(m)
		}
		least := len(all) - 8 + random.IntN(9)
		testpart.Eventually(t, fmt.Sprintf("%d commands have ended", least), func() bool { return ended() >= least })
		kill()
		if round%4 == 3 {
			s.stop()
			s.start()
		}
		kill = process(t, dir, s.lo.MQTTAddr())
	}
	testpart.Eventually(t, "each command has ended", func() bool { return ended() == len(all) })
	count := map[command.State]int{}
	for _, m := range all {
		r := c.last(m.ID, "n1")
		if m.Kind == command.Restart {
			count[r.State]++
		} else if r.State != command.Done {
			t.Errorf("what may be repeated ended as %s %s", r.State, r.Code)
		}
	}
	did := steps(t, dir, "before")
	t.Logf("%d restarts of %d commands: %v", did, len(all), count)
	if most := count[command.Done] + count[command.Unknown] + count[command.Failed]; did < count[command.Done] || did > most {
		t.Errorf("%d restarts were begun, and results say %v", did, count)
	}
	for state := range count {
		if state != command.Done && state != command.Unknown && state != command.Failed {
			t.Errorf("%d restarts ended as %s", count[state], state)
		}
	}
}
