package link

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/mosquittotest"
	"github.com/colonyfleet/colony/sim"
)

var failovers = flag.Int("failovers", 1, "how often TestFailover strikes a CO in each way")

// A cut is the way from a program to PostgreSQL, which listens on a socket. While it is
// closed, nothing passes and no end learns of it, as when a cable is pulled.
type cut struct {
	socket string
	gate   sync.RWMutex // held: nothing passes
	ln     net.Listener
	ends   sync.WaitGroup
}

func newCut(t testing.TB, socket string) *cut {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cut{socket: socket, ln: ln}
	c.ends.Go(c.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		c.ends.Wait()
	})
	return c
}

func (c *cut) accept() {
	for {
		client, err := c.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", c.socket)
		if err != nil {
			_ = client.Close()
			continue
		}
		c.ends.Go(func() { c.pass(server, client) })
		c.ends.Go(func() { c.pass(client, server) })
	}
}

// pass copies until an end is closed, and closes both.
func (c *cut) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		c.gate.RLock()
		_, werr := to.Write(buf[:n])
		c.gate.RUnlock()
		if err != nil || werr != nil {
			return
		}
	}
}

// A replica is a CO of several, with a way of its own to the database.
type replica struct {
	*process
	options co.Options
	way     *cut
}

// TestFailover strikes one of two COs under load, by kill -9, by SIGSTOP and by a cut between it
// and PostgreSQL: the other one goes on with the batches of the site and with the work
// that one replica does at a time, here to record a commit. Nothing is lost or doubled.
// It logs how long both took.
func TestFailover(t *testing.T) {
	r := newRig(t)
	m := mosquittotest.Start(t, mosquittotest.Documented(t, "../../docs/broker.md")...)
	database, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	var replicas [2]*replica
	for i := range replicas {
		name := fmt.Sprintf("co-%d", i+1)
		one := &replica{process: newProcess(t, name, "co", r.program, r.dir), options: r.coOptions, way: newCut(t, filepath.Join(database.Query().Get("host"), ".s.PGSQL.5432"))}
		o := &one.options
		o.StateDir, o.HTTP, o.Git.Interval = filepath.Join(r.dir, name), freeport.Addr(t), time.Second
		o.DatabaseURL = fmt.Sprintf("postgres://%s@%s/postgres?sslmode=disable", database.User.Username(), one.way.ln.Addr())
		o.Broker.URLs, o.Broker.ClientID, o.Broker.Username = []string{"tcp://" + m.Addr}, name, "colony-co"
		t.Cleanup(one.Stop)
		one.start(*o)
		r.serves(one.process, o.HTTP)
		replicas[i] = one
	}
	r.loOptions.CO.MQTT, r.loOptions.CO.KeepAlive = []string{"tcp://" + m.Addr}, chaosKeepAlive
	r.desire("app", "gateway")
	r.startLO()
	l := newLedger()
	f := r.fleet(sim.Options{
		Nodes: chaosNodes, Seed: 1, KeepAlive: 5 * time.Second, MaxBackoff: 200 * time.Millisecond, SelfHeal: true, Acknowledged: l.acknowledged,
	})
	f.Churn(chaosChurn)
	w := &watched{rig: r}
	w.repo = w.open(filepath.Join(r.dir, "clone"))
	w.handedOver(0) // before the first strike: what it takes without one
	for round := range *failovers {
		for i, way := range []struct {
			name           string
			strike, repair func(*replica)
		}{
			{"kill -9", func(c *replica) { c.Kill() }, func(c *replica) { c.start(c.options) }},
			{"SIGSTOP", func(c *replica) { c.signal(syscall.SIGSTOP) }, func(c *replica) { c.signal(syscall.SIGCONT) }},
			{"cut", func(c *replica) { c.way.gate.Lock() }, func(c *replica) { c.way.gate.Unlock() }},
		} {
			struck := replicas[(round*3+i)%2] // the one that took over at the strike before
			way.strike(struck)
			w.report(way.name)
			way.repair(struck)
			r.serves(struck.process, struck.options.HTTP)
		}
	}
	f.Churn(0)
	settled(t, f)
	eventually(t, 2*time.Minute, "the CO says what is true", func() error { return state(r, f) })
	_, _, faults := l.history(r)
	if len(faults) > 0 {
		t.Errorf("%d faults in the CO's history:\n%s", len(faults), strings.Join(faults[:min(10, len(faults))], "\n"))
	}
	whole(t, r)
	w.log()
}

func (c *replica) signal(s syscall.Signal) {
	c.t.Helper()
	if err := syscall.Kill(c.PID(), s); err != nil {
		c.t.Fatal(err)
	}
}

// watched is what others see of the COs: how the site's batches and the commits of the
// deployments repo get into the database.
type watched struct {
	*rig
	repo    *git.Repo
	commits int
	took    map[string]*[2][]time.Duration // of each way: until the site, and until a commit
}

func (w *watched) open(dir string) *git.Repo {
	w.t.Helper()
	repo, err := git.Open(w.t.Context(), git.Options{Dir: dir, Remote: w.coOptions.Git.Remote})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = repo.Close() })
	return repo
}

// report measures what follows a strike.
func (w *watched) report(way string) {
	w.t.Helper()
	pause, commit := w.handedOver(500)
	if w.took == nil {
		w.took = map[string]*[2][]time.Duration{}
	}
	if w.took[way] == nil {
		w.took[way] = &[2][]time.Duration{}
	}
	w.took[way][0], w.took[way][1] = append(w.took[way][0], pause), append(w.took[way][1], commit)
}

// handedOver makes a commit about another site that is to be recorded, and returns the longest time from now on in which
// nothing of the site was committed, and the time until the commit was recorded, when
// both have happened and the site's journal has gone on by more events.
func (w *watched) handedOver(more int64) (pause, commit time.Duration) {
	w.t.Helper()
	began := time.Now()
	w.commits++
	rules := fmt.Sprintf("apiVersion: colony/v1\nkind: Site\nmetadata:\n  id: other\nspec:\n  data:\n    rules:\n      - name: rule-%d\n        direction: up\n        topics: [\"a/#\"]\n", w.commits)
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if _, err := w.repo.Commit(ctx, git.Change{Message: "change a rule", Files: map[string][]byte{"sites/other/site.yaml": []byte(rules)}}); err != nil {
		w.t.Fatal(err)
	}
	type position struct {
		Seq      int64
		Recorded bool
	}
	var first, last int64
	moved := began
	eventually(w.t, 2*time.Minute, "another replica goes on", func() error {
		p := query[position](w.rig, `select journal_seq, exists (select from data_rules where site = 'other' and name = $2) from sites where id = $1`,
			site, fmt.Sprintf("rule-%d", w.commits))
		if len(p) == 0 {
			return errNotYet
		}
		now := time.Now()
		if first == 0 {
			first, last = p[0].Seq, p[0].Seq
		}
		if p[0].Seq != last {
			pause, moved, last = max(pause, now.Sub(moved)), now, p[0].Seq
		}
		if p[0].Recorded && commit == 0 {
			commit = now.Sub(began)
		}
		if commit == 0 || last < first+more {
			return errors.New("the position is " + fmt.Sprint(last))
		}
		return nil
	})
	return pause, commit
}

// log writes a line of a table for each way.
func (w *watched) log() {
	var b strings.Builder
	fmt.Fprint(&b, "\n| strike | strikes | until the site goes on: median, most | until a commit is recorded: median, most |\n|---|---|---|---|\n")
	for _, way := range []string{"kill -9", "SIGSTOP", "cut"} {
		took := w.took[way]
		_, _ = io.WriteString(&b, fmt.Sprintf("| %s | %d | %s | %s |\n", way, len(took[0]), spread(took[0]), spread(took[1])))
	}
	w.t.Log(b.String())
}

// spread is the median and the most of some times, in seconds.
func spread(list []time.Duration) string {
	slices.Sort(list)
	return fmt.Sprintf("%.1f s, %.1f s", list[len(list)/2].Seconds(), list[len(list)-1].Seconds())
}
