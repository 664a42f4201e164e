package en_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/internal/metricstest"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A site is the LO's end: a real broker whose taken messages are kept.
type site struct {
	broker   *broker.Broker
	mu       sync.Mutex
	received []broker.Message
	news     notify.Signal
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{news: notify.New()}
	b, err := broker.New(broker.Options{
		Name: "lo", Listeners: []broker.Listener{{Name: "mqtt", Network: broker.TCP, Address: "127.0.0.1:0"}},
		Access: access.Site("plant"), Logger: slog.New(slog.DiscardHandler),
		Accept: func(_ context.Context, _ access.Identity, m broker.Message) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.received = append(s.received, m)
			s.news.Notify()
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, b)
	s.broker = b
	return s
}

// wait returns the first message of a kind that fits.
func wait[T any](t *testing.T, s *site, kind topic.Kind, fits func(T) bool) T {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		s.mu.Lock()
		for _, m := range s.received {
			var body T
			if at, err := topic.Parse(m.Topic); err != nil || at.Kind != kind || at.Site != "plant" || at.Node != "n1" {
				continue
			}
			if err := protocol.Unmarshal(m.Payload, &body); err != nil {
				t.Errorf("%s: %v", m.Topic, err)
			} else if fits(body) {
				s.mu.Unlock()
				return body
			}
		}
		s.mu.Unlock()
		select {
		case <-s.news.C():
		case <-deadline:
			t.Fatalf("no message of kind %s came that fits", kind)
		}
	}
}

func (s *site) want(t *testing.T, generation uint64, assignments ...protocol.Assignment) {
	t.Helper()
	d := protocol.NodeDesired{V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: generation}, Assignments: assignments}
	m := broker.Message{Topic: topic.ForNode(topic.NodeDesired, "plant", "n1"), Payload: protocol.Marshal(d), QoS: 1, Retain: true}
	if err := s.broker.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// remove has the LO remove the deployment.
func (s *site) remove(t *testing.T, generation uint64) {
	t.Helper()
	d := protocol.NodeDesired{
		V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: generation},
		Removals: []protocol.NodeRemoval{{Deployment: "app", Site: protocol.Position{Epoch: 1, Generation: generation}}},
	}
	m := broker.Message{Topic: topic.ForNode(topic.NodeDesired, "plant", "n1"), Payload: protocol.Marshal(d), QoS: 1, Retain: true}
	if err := s.broker.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

func (s *site) options(t *testing.T, dir string, run en.Runtime) en.Options {
	t.Helper()
	o := en.DefaultOptions()
	o.Site, o.Node, o.StateDir, o.Runtime, o.HTTP = "plant", "n1", dir, run, "127.0.0.1:0"
	o.Labels = map[string]string{"line": "4"}
	o.LO.MQTT = []string{"tcp://" + s.broker.Addr("mqtt")}
	o.Heartbeat = 50 * time.Millisecond
	o.Logger = slog.New(slog.DiscardHandler)
	return o
}

func start(t *testing.T, o en.Options) *en.EN {
	t.Helper()
	e, err := en.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

func stop(t *testing.T, e *en.EN) {
	t.Helper()
	if err := e.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

func assignment() protocol.Assignment {
	spec := protocol.Marshal(protocol.DeploymentSpec{
		V: 1, Deployment: "app", App: "com.example.app", AppVersion: "1",
		Components: []protocol.Component{{Name: "main", Containers: []protocol.Container{{
			Name: "web", Image: "r/web@" + string(protocol.DigestOf([]byte("web"))),
		}}}},
	})
	return protocol.Assignment{Deployment: "app", Digest: protocol.DigestOf(spec), Spec: spec, Attempt: 1}
}

// An engine that went away and came back is in the inventory within a heartbeat.
func TestEngineThatIsAwayIsReported(t *testing.T) {
	t.Parallel()
	s, machine := newSite(t), memory.New(memory.Options{})
	e := start(t, s.options(t, t.TempDir(), machine))
	defer stop(t, e)
	wait(t, s, topic.Inventory, func(i protocol.Inventory) bool { return i.Engine == "memory" && i.EngineFault == "" })
	machine.Lose()
	wait(t, s, topic.Inventory, func(i protocol.Inventory) bool { return i.EngineFault != "" })
	s.mu.Lock()
	s.received = nil
	s.mu.Unlock()
	machine.Return()
	wait(t, s, topic.Inventory, func(i protocol.Inventory) bool { return i.Engine == "memory" && i.EngineFault == "" })
}

func TestNodeReportsAndFollowsDesiredState(t *testing.T) {
	t.Parallel()
	s, machine := newSite(t), memory.New(memory.Options{})
	dir := t.TempDir()
	s.want(t, 1, assignment()) // retained before the node is there
	e := start(t, s.options(t, dir, machine))
	p := wait(t, s, topic.NodeOnline, func(p protocol.Presence) bool { return p.Online })
	if p.Agent == "" || p.Session == "" || p.Version != "dev" {
		t.Errorf("presence %+v", p)
	}
	wait(t, s, topic.Inventory, func(i protocol.Inventory) bool {
		return i.Node == "n1" && i.Labels["line"] == "4" && i.Cores > 0 && i.Engine == "memory"
	})
	m := wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Installed })
	if m.Agent != p.Agent || m.Boot != p.Boot || m.Node != "n1" {
		t.Errorf("report %+v", m)
	}
	wait(t, s, topic.Heartbeat, func(h protocol.Heartbeat) bool { return h.StatusDigest != 0 && h.MemAvailable > 0 })

	resp, err := http.Get("http://" + e.HTTPAddr() + "/metrics") //nolint:noctx // one call of a test
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(body), `colony_en_deployments{state="INSTALLED"} 1`) || !strings.Contains(string(body), "colony_en_link_up 1") {
		t.Errorf("metrics %s, %v", body, err)
	}
	metricstest.Check(t, body, "colony_en_")
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()

	stop(t, e)
	wait(t, s, topic.NodeOnline, func(p protocol.Presence) bool { return !p.Online })
	list, err := machine.List(t.Context())
	if err != nil || len(list) != 1 || list[0].State != "running" {
		t.Fatalf("after the stop: %+v, %v; the container goes on", list, err)
	}

	again := start(t, s.options(t, dir, machine))
	defer stop(t, again)
	next := wait(t, s, topic.NodeOnline, func(q protocol.Presence) bool { return q.Online && q.Session != p.Session })
	if next.Agent != p.Agent {
		t.Errorf("agent %q after a restart, was %q", next.Agent, p.Agent)
	}
	s.remove(t, 2)
	wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Deleted })
}

func TestNonsenseIsRefusedAndTheLinkGoesOn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	e := start(t, s.options(t, t.TempDir(), memory.New(memory.Options{})))
	defer stop(t, e)
	wait(t, s, topic.NodeOnline, func(p protocol.Presence) bool { return p.Online })
	// Nonsense on the node's own topic is refused, and the link goes on.
	m := broker.Message{Topic: topic.ForNode(topic.NodeDesired, "plant", "n1"), Payload: []byte("nonsense"), QoS: 1, Retain: true}
	if err := s.broker.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	s.want(t, 1, assignment())
	wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Installed })
}

func TestTwoAgentsOnOneDirectory(t *testing.T) {
	t.Parallel()
	s, dir := newSite(t), t.TempDir()
	e := start(t, s.options(t, dir, memory.New(memory.Options{})))
	defer stop(t, e)
	second, err := en.New(s.options(t, dir, memory.New(memory.Options{})))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Start(t.Context()); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("second agent: %v, want a conflict", err)
	}
}

// TestFullDisk starts an agent on a full disk, also where the number of its reports was
// damaged: its containers go on, it says that the disk is full, and it follows the LO and
// reports when there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, damaged := range []string{"", "/state/report-counter", "/state/agent-id", "/state/desired.cbor", "/state/deployments/app.cbor"} {
		t.Run(damaged, func(t *testing.T) {
			t.Parallel()
			s, machine, d := newSite(t), memory.New(memory.Options{}), simdisk.New(1)
			o := s.options(t, "/state", machine)
			o.Disk = d
			s.want(t, 1, assignment())
			e := start(t, o)
			wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Installed })
			stop(t, e)
			if damaged != "" {
				if err := d.Edit(damaged, func(b []byte) []byte { b[len(b)/2] ^= 4; return b }); err != nil {
					t.Fatal(err)
				}
			}
			d.Fail(func(op, _ string) error {
				if op == "create" || op == "write" {
					return syscall.ENOSPC
				}
				return nil
			})
			d.Space(1000)
			again := start(t, o)
			defer stop(t, again)
			inv := wait(t, s, topic.Inventory, func(i protocol.Inventory) bool { return i.Problem != "" })
			if !strings.Contains(inv.Problem, "the disk of /state is full") {
				t.Errorf("the inventory says %q, want that the disk is full", inv.Problem)
			}
			if list, err := machine.List(t.Context()); err != nil || len(list) != 1 || list[0].State != "running" {
				t.Errorf("on a full disk: %+v, %v; the container goes on", list, err)
			}
			s.mu.Lock()
			s.received = nil
			s.mu.Unlock()
			d.Fail(nil)
			d.Space(-1)
			wait(t, s, topic.NodeReport, func(protocol.NodeReport) bool { return true })
			wait(t, s, topic.Inventory, func(i protocol.Inventory) bool { return i.Problem == "" })
			s.remove(t, 2)
			wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Deleted })
		})
	}
}
