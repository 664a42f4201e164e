package sim_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/lo/desired"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startLO runs an LO whose CO is away.
func startLO(t *testing.T, prepare func(stateDir string)) *lo.LO {
	t.Helper()
	o := lo.DefaultOptions()
	o.Site, o.StateDir, o.MQTT, o.HTTP = "plant", filepath.Join(t.TempDir(), "lo"), "127.0.0.1:0", ""
	o.CO.MQTT = []string{"tcp://127.0.0.1:1"}
	o.Logger = slog.New(slog.DiscardHandler)
	if prepare != nil {
		prepare(o.StateDir)
	}
	l, err := lo.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, l.Stop) })
	return l
}

func stop(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := f(ctx); err != nil {
		t.Error(err)
	}
}

func start(t *testing.T, o sim.Options) *sim.Fleet {
	t.Helper()
	o.Site, o.Logger = "plant", slog.New(slog.DiscardHandler)
	f, err := sim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, f.Stop) })
	return f
}

// TestThousandNodes connects a site's nodes to a real LO and sees that each report
// is acknowledged once, in the order of its node, and is a legal move.
func TestThousandNodes(t *testing.T) {
	const nodes = 1000
	l := startLO(t, nil)
	var mu sync.Mutex
	seen := map[protocol.NodeID]protocol.DeploymentStatus{}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	f := start(t, sim.Options{
		URL: "tcp://" + l.MQTTAddr(), Nodes: nodes, Seed: 1, Deployments: []protocol.DeploymentName{"app"},
		Acknowledged: func(m protocol.DeploymentStatus) {
			mu.Lock()
			defer mu.Unlock()
			last := seen[m.Node]
			if m.Seq != last.Seq+1 || m.From != last.State {
				t.Errorf("node %s: report %d, %s to %s, after report %d, %s", m.Node, m.Seq, m.From, m.State, last.Seq, last.State)
			}
			if _, ok := lifecycle.Bridge(m.From, m.State); !ok {
				t.Errorf("node %s: %s to %s is no move", m.Node, m.From, m.State)
			}
			seen[m.Node] = m
		},
	})
	testpart.Eventually(t, "all nodes are connected and heard", func() bool { return f.Stats().Up == nodes && f.Settled() })
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d nodes and their LO: up in %s, %d kB of heap and stack each", nodes, time.Since(began).Round(time.Millisecond),
		(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/nodes>>10)
	f.Churn(2000)
	testpart.Eventually(t, "churn", func() bool { return f.Stats().Made > 5*nodes })
	f.Churn(0)
	testpart.Eventually(t, "all reports are taken", f.Settled)
	s := f.Stats()
	if s.Refused > 0 || s.Made != s.Acknowledged {
		t.Errorf("%+v", s)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, n := range f.Truth() {
		if got, want := seen[n.ID].Seq, n.Deployments["app"].Seq; got != want || !n.Online {
			t.Errorf("node %s: report %d is the last that was acknowledged, want %d", n.ID, got, want)
		}
	}
}

// TestObeys gives the nodes a desired state and sees them carry it out.
func TestObeys(t *testing.T) {
	t.Parallel()
	spec := protocol.Marshal(&protocol.DeploymentSpec{V: protocol.Version, ID: "1", Deployment: "web", App: "web", AppVersion: "2.0.0", Components: []protocol.Component{
		{Name: "main", Containers: []protocol.Container{{Name: "main", Image: "registry.example/web@" + string(protocol.DigestOf(nil))}}},
	}})
	l := startLO(t, func(stateDir string) {
		d, err := desired.Open(desired.Options{Disk: disk.OS, Dir: filepath.Join(stateDir, "desired"), Site: "plant", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		adopted, err := d.Offer(t.Context(), protocol.Marshal(&protocol.SiteDesired{V: protocol.Version, Site: "plant", Position: protocol.Position{Epoch: 1, Generation: 1}, Deployments: []protocol.SiteEntry{
			{Deployment: "web", Digest: protocol.DigestOf(spec), Size: uint64(len(spec)), Spec: spec},
		}, Removals: []protocol.Removal{{Deployment: "old", Position: protocol.Position{Epoch: 1, Generation: 1}}}}))
		if err != nil || !adopted {
			t.Fatalf("offer: %t, %v", adopted, err)
		}
	})
	f := start(t, sim.Options{URL: "tcp://" + l.MQTTAddr(), Nodes: 3, Seed: 1, Deployments: []protocol.DeploymentName{"old"}})
	testpart.Eventually(t, "web is INSTALLED and old is removed, on all nodes", func() bool {
		for _, n := range f.Truth() {
			if n.Deployments["web"].State != lifecycle.Installed || n.Deployments["old"].State != lifecycle.Deleted {
				return false
			}
		}
		return f.Settled()
	})
	if err := f.Leave(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if f.Truth()[1].Online {
		t.Error("a node that left is online")
	}
	if err := f.Join(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	testpart.Eventually(t, "the node is back", func() bool { return f.Stats().Up == 3 })
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []sim.Options{{}, {Site: "plant"}, {Site: "Plant", URL: "tcp://x", Nodes: 1, Logger: slog.Default()}} {
		if _, err := sim.New(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
