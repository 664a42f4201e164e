package command_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/impair"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

var (
	campaignCommands = flag.Int("campaign-commands", 60, "how many commands TestCampaign sends")
	campaignKills    = flag.Int("campaign-kills", 18, "how many processes it kills, or links it cuts")
	campaignSeed     = flag.Uint64("campaign-seed", 1, "what it draws all of it from")
)

// The test runs itself as an LO, to be killed, where siteDir is set: to its directory. The others say where its CO is, where it listens, and by how
// much its clock, or that of an agent, is wrong.
const (
	siteDir     = "COLONY_TEST_SITE"
	siteCO      = "COLONY_TEST_CO"
	siteListens = "COLONY_TEST_LISTENS"
	clockShift  = "COLONY_TEST_SHIFT"
)

// shifted is a clock that is wrong by as much as the environment says.
func shifted() func() time.Time {
	by, err := time.ParseDuration(os.Getenv(clockShift))
	if err != nil {
		return nil
	}
	return func() time.Time { return time.Now().Add(by) }
}

// siteProcess runs as an LO until it is killed.
func siteProcess(dir string) error {
	o := lo.DefaultOptions()
	o.Site, o.StateDir, o.HTTP, o.MQTT, o.Logger, o.RootKeyFile = plant, filepath.Join(dir, "state"), "", os.Getenv(siteListens), plainLogger(), filepath.Join(dir, "root.pub")
	o.CO.MQTT, o.CO.MaxBackoff, o.Now = []string{"tcp://" + os.Getenv(siteCO)}, 100*time.Millisecond, shifted()
	l, err := lo.New(o)
	if err != nil {
		return err
	}
	if err := l.Start(context.Background()); err != nil {
		return err
	}
	select {} // until it is killed
}

// An order is a command that was sent.
type order struct {
	*command.Command
	nodes []protocol.NodeID
	// dead says that its deadline had passed before it could reach its nodes.
	dead bool
}

// A campaign is a site whose tiers are all killed, and what was asked of it.
type campaign struct {
	t        *testing.T
	c        *co
	stopCO   func()
	random   *rand.Rand
	wan, lan *impair.Proxy
	listens  string // the LO
	target   string // of network checks
	site     *testproc.Process
	siteDir  string
	agents   map[protocol.NodeID]*testproc.Process
	dirs     map[protocol.NodeID]string
	orders   []order
	kills    map[string]int
	credited time.Time
}

// shift draws by how much a clock is wrong: not at all, or by up to 30 years.
func (w *campaign) shift() string {
	return []string{"0s", "-262800h", "262800h", "-1h", "90m"}[w.random.IntN(5)]
}

// dir returns a directory with the public root key of the CO.
func (w *campaign) dir() string {
	w.t.Helper()
	dir := w.t.TempDir()
	root, err := os.ReadFile(w.c.root)
	if err := errors.Join(err, os.WriteFile(filepath.Join(dir, "root.pub"), root, 0o600)); err != nil {
		w.t.Fatal(err)
	}
	return dir
}

func newCampaign(t *testing.T) *campaign {
	t.Helper()
	w := &campaign{
		t: t, c: newCO(t), random: rand.New(rand.NewPCG(*campaignSeed, 16)), //nolint:gosec // the choice of a test
		agents: map[protocol.NodeID]*testproc.Process{}, dirs: map[protocol.NodeID]string{}, kills: map[string]int{},
	}
	w.stopCO = w.c.stop
	var proxies []*impair.Proxy
	for _, to := range []string{w.c.addr, freeport.Addr(t)} {
		p, err := impair.Listen(to, impair.Profile{Delay: 5 * time.Millisecond}, *campaignSeed)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		proxies = append(proxies, p)
		w.listens = to
	}
	w.wan, w.lan = proxies[0], proxies[1]
	target, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { target.Close() })
	w.target = target.Addr().String()
	w.siteDir = w.dir()
	w.site = testproc.New(t, "LO", filepath.Join(w.siteDir, "log"))
	t.Cleanup(w.site.Kill)
	w.startSite()
	for _, n := range []protocol.NodeID{"n1", "n2"} {
		w.dirs[n] = w.dir()
		w.agents[n] = testproc.New(t, "agent "+string(n), filepath.Join(w.dirs[n], "log"))
		t.Cleanup(w.agents[n].Kill)
		w.startAgent(n)
	}
	t.Cleanup(w.explain)
	w.c.desire(1,
		protocol.Container{Name: "web", Image: "r/web", Restart: protocol.Restart{Policy: protocol.RestartAlways}},
		protocol.Container{Name: "db", Image: "r/db", Restart: protocol.Restart{Policy: protocol.RestartAlways}})
	w.c.installed("n1")
	w.c.installed("n2")
	return w
}

// explain shows which commands are open where the test has failed.
func (w *campaign) explain() {
	if !w.t.Failed() {
		return
	}
	for _, o := range w.open() {
		for _, n := range o.nodes {
			w.t.Logf("command %s %s at %s: %+v", o.ID, o.Kind, n, w.c.last(o.ID, n))
		}
	}
}

func (w *campaign) startSite() {
	w.site.SetEnv(siteDir+"="+w.siteDir, siteCO+"="+w.wan.Addr(), siteListens+"="+w.listens, clockShift+"="+w.shift())
	w.site.Start(os.Args[0])
}

func (w *campaign) startAgent(n protocol.NodeID) {
	w.agents[n].SetEnv(agentDir+"="+w.dirs[n], agentLO+"="+w.lan.Addr(), agentNode+"="+string(n), clockShift+"="+w.shift())
	w.agents[n].Start(os.Args[0])
}

// draw returns a command of any kind for any nodes.
func (w *campaign) draw() order {
	subject := command.Subject{Deployment: "app", Container: []string{"web", "db", ""}[w.random.IntN(3)]}
	kinds := []struct {
		kind command.Kind
		args any
	}{
		{command.Restart, subject},
		{command.Restart, subject},
		{command.Probe, subject},
		{command.Pull, subject},
		{command.Inventory, nil},
		{command.Check, command.NetworkCheck{Method: command.Connect, Target: w.target}},
		{command.Logs, command.LogRequest{Subject: command.Subject{Deployment: "app"}, Tail: 10}},
	}
	k := kinds[w.random.IntN(len(kinds))]
	o := order{nodes: []protocol.NodeID{"n1", "n2"}}
	switch n := protocol.NodeID(fmt.Sprintf("n%d", 1+w.random.IntN(2))); w.random.IntN(3) {
	case 0:
		o.Command = w.c.command(k.kind, k.args)
	case 1:
		o.Command, o.nodes = w.c.command(k.kind, k.args, n), []protocol.NodeID{n}
	default:
		o.Command, o.nodes = w.c.command(k.kind, k.args), []protocol.NodeID{n}
		o.All, o.Selector = false, map[string]string{"name": string(n)}
	}
	if w.random.IntN(12) == 0 { // it has been on its way for too long
		o.dead = true
		o.IssuedMillis -= 3 * time.Hour.Milliseconds()
		o.DeadlineMillis -= 3 * time.Hour.Milliseconds()
	}
	return o
}

// give publishes a command, now and then more than once.
func (w *campaign) give(o order) {
	w.t.Helper()
	w.orders = append(w.orders, o)
	envelope := w.c.envelope(o.Command)
	for range 1 + w.random.IntN(2) {
		w.c.publish(o.ID, envelope)
	}
}

// open returns the commands that have not ended, and lets logs be sent.
func (w *campaign) open() (open []order) {
	renew := time.Since(w.credited) > 300*time.Millisecond
	for _, o := range w.orders {
		if !slices.ContainsFunc(o.nodes, func(n protocol.NodeID) bool { return !w.ended(o, n) }) {
			continue
		}
		open = append(open, o)
		if renew && o.Kind == command.Logs {
			w.c.credit(o.ID, command.Credit{Bytes: 1 << 20})
		}
	}
	if renew {
		w.credited = time.Now()
	}
	return open
}

func (w *campaign) ended(o order, n protocol.NodeID) bool {
	state := w.c.last(o.ID, n).State
	return state != "" && state.Ended()
}

// late kills an agent, and gives it a command whose deadline passes before it is back.
func (w *campaign) late(n protocol.NodeID) {
	w.agents[n].Kill()
	w.t.Helper()
	m := w.c.command(command.Restart, command.Subject{Deployment: "app"}, n)
	m.DeadlineMillis = m.IssuedMillis + 500
	w.give(order{Command: m, nodes: []protocol.NodeID{n}, dead: true})
	testpart.Eventually(w.t, "the deadline passes", func() bool { return w.c.now().UnixMilli() > m.DeadlineMillis })
	w.startAgent(n)
}

// strike kills a process and starts it again, or cuts a link.
func (w *campaign) strike() {
	w.t.Helper()
	n := protocol.NodeID(fmt.Sprintf("n%d", 1+w.random.IntN(2)))
	what := []string{"agent", "agent", "LO", "LO and agent", "CO", "WAN", "LAN", "late"}[w.random.IntN(8)]
	w.kills[what]++
	switch what {
	case "agent":
		w.agents[n].Kill()
		w.startAgent(n)
	case "LO":
		w.site.Kill()
		w.startSite()
	case "LO and agent":
		w.site.Kill()
		w.agents[n].Kill()
		w.startAgent(n)
		w.startSite()
	case "CO": // its broker; what is in PostgreSQL is durable, and published again
		w.stopCO()
		w.stopCO = w.c.start()
		for _, o := range w.open() {
			w.c.publish(o.ID, w.c.envelope(o.Command))
		}
	case "WAN":
		w.wan.Reset()
	case "LAN":
		w.lan.Reset()
	case "late":
		w.late(n)
	}
}

// begins returns how often a node began each command, by its log over all its lives.
func (w *campaign) begins(n protocol.NodeID) map[command.ID]int {
	w.t.Helper()
	f, err := os.Open(filepath.Join(w.dirs[n], "log"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	begun := map[command.ID]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if _, rest, found := strings.Cut(lines.Text(), `msg="command begins"`); found {
			_, rest, _ = strings.Cut(rest, "command_id=")
			id, _, _ := strings.Cut(rest, " ")
			begun[command.ID(id)]++
		}
	}
	if err := lines.Err(); err != nil {
		w.t.Fatal(err)
	}
	return begun
}

// TestCampaign sends commands of every kind while agents, LO and CO are killed, links are cut and clocks are wrong, all of it drawn from a seed: each
// command ends for each node, as what is known of it; one that may not be repeated begins at most once, and one past its deadline never does.
func TestCampaign(t *testing.T) {
	t.Parallel()
	w := newCampaign(t)
	left := *campaignCommands
	for kill := range *campaignKills {
		batch := left / (*campaignKills - kill)
		left -= batch
		for range batch {
			w.give(w.draw())
		}
		most := len(w.open())
		if wait := w.random.IntN(3); wait > 0 { // else at once
			most = w.random.IntN(most + 1)
		}
		testpart.Eventually(t, fmt.Sprintf("at most %d commands are open before kill %d", most, kill), func() bool { return len(w.open()) <= most })
		w.strike()
	}
	testpart.Eventually(t, "each command has ended", func() bool { return len(w.open()) == 0 })
	w.check()
}

// check holds what became of the commands against what the nodes did.
func (w *campaign) check() {
	w.t.Helper()
	count := map[string]int{}
	for n := range maps.Keys(w.dirs) {
		begun, restarted, done := w.begins(n), 0, 0
		for _, o := range w.orders {
			if !slices.Contains(o.nodes, n) {
				continue
			}
			r, times := w.c.last(o.ID, n), begun[o.ID]
			count[fmt.Sprintf("%s %s %s", o.Kind, r.State, r.Code)]++
			definition, err := command.Lookup(o.Kind)
			if err != nil {
				w.t.Fatal(err)
			}
			once := !definition.Repeatable || definition.Live
			switch {
			case o.dead && times > 0:
				w.t.Errorf("%s at %s began %d times after its deadline", o, n, times)
			case once && times > 1:
				w.t.Errorf("%s at %s began %d times", o, n, times)
			case r.State == command.Done && times == 0:
				w.t.Errorf("%s at %s is done and never began", o, n)
			case r.State == command.Running:
				w.t.Errorf("%s at %s has not ended", o, n)
			case r.State == command.Unknown && times == 0:
				w.t.Errorf("%s at %s is unknown and never began: %s", o, n, r.Message)
			case o.dead && r.State != command.Expired && r.State != command.Refused:
				w.t.Errorf("%s at %s, past its deadline, ended as %s %s", o, n, r.State, r.Code)
			}
			if o.Kind == command.Restart {
				restarted += times
				if r.State == command.Done {
					done++
				}
			}
		}
		// A restart of both containers stops twice.
		if stops := steps(w.t, w.dirs[n], "before"); stops < done || stops > 2*restarted {
			w.t.Errorf("%s stopped containers %d times in %d restarts, of which %d are done", n, stops, restarted, done)
		}
	}
	w.t.Logf("%d commands, kills and cuts %v", len(w.orders), w.kills)
	for _, what := range slices.Sorted(maps.Keys(count)) {
		w.t.Logf("%5d %s", count[what], what)
	}
}
