package agent

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/en/state"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An lo is the far end of the uplink: it records what it acknowledged.
type lo struct {
	mu      sync.Mutex
	refuse  error
	asked   int // calls
	durable []protocol.DeploymentStatus
	shown   []protocol.DeploymentStatus
	whole   []protocol.NodeReport
}

func (l *lo) ReportAll(_ context.Context, m protocol.NodeReport) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse != nil {
		return l.refuse
	}
	l.whole = append(l.whole, m)
	return nil
}

// reports returns the reports of everything.
func (l *lo) reports() []protocol.NodeReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.whole)
}

func (l *lo) Report(_ context.Context, m protocol.DeploymentStatus, durable bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if l.refuse != nil {
		return l.refuse
	}
	if durable {
		l.durable = append(l.durable, m)
	} else {
		l.shown = append(l.shown, m)
	}
	return nil
}

func (l *lo) setRefuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = err
}

// transitions returns what was reported, without doubles, as "from>to code".
func (l *lo) transitions() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	seen := map[uint64]bool{}
	for _, m := range l.durable {
		if !seen[m.Seq] {
			seen[m.Seq] = true
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s>%s %s", m.From, m.State, m.Code)))
		}
	}
	return out
}

func (l *lo) last(t *testing.T) protocol.DeploymentStatus {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.durable) == 0 {
		t.Fatal("nothing was reported")
	}
	return l.durable[len(l.durable)-1]
}

// A node is one gateway: its disk and its engine outlive the runners on it.
type node struct {
	t      *testing.T
	dir    string
	engine *memory.Engine
	lo     *lo
	probe  func(t plan.Target) bool
	log    bytes.Buffer
	gen    uint64
	root   ed25519.PublicKey                        // of the fleet; nil: nothing is checked
	loKey  func([][]byte) (crypto.PublicKey, error) // of the LO, by its certificates; nil: the node has none

	runner *Runner
	store  *state.Store
}

func newNode(t *testing.T, opts memory.Options) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), engine: memory.New(opts), lo: &lo{}, probe: func(plan.Target) bool { return true }}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(n.log.String())
		}
	})
	return n
}

// options opens the state directory for a new runner.
func (n *node) options() Options {
	n.t.Helper()
	log := slog.New(slog.NewTextHandler(&n.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	store, c, err := state.Open(disk.OS, n.dir, nil, log)
	if err != nil {
		n.t.Fatal(err)
	}
	n.store = store
	check, err := trust.New(trust.Node{Site: "s1", Node: "n1", LO: n.loKey}, n.root, c.Trust)
	if err != nil {
		n.t.Fatal(err)
	}
	return Options{
		Node: "n1", Boot: "boot", Check: check, Engine: n.engine, Host: n.engine, Store: store, Uplink: n.lo, Logger: log,
		Probe: func(_ context.Context, t plan.Target) (bool, string, error) {
			return n.probe(t), "says no", nil
		},
		Agent: c.Agent, Desired: c.Desired, Records: c.Records, Counter: c.Counter, Volumes: c.Volumes,
		Incomplete: len(c.Damaged) > 0 || c.Renewed,
	}
}

func (n *node) start() { n.startWith(n.options()) }

func (n *node) startWith(o Options) {
	n.t.Helper()
	r, err := New(o)
	if err != nil {
		n.t.Fatal(err)
	}
	n.runner = r
	r.Connected(true)
	r.Start(n.t.Context())
}

func (n *node) stop() {
	n.t.Helper()
	if err := n.runner.Stop(context.Background()); err != nil {
		n.t.Error(err)
	}
	if err := n.store.Close(); err != nil {
		n.t.Error(err)
	}
}

// want sends a desired state with the given assignments.
func (n *node) want(assignments ...protocol.Assignment) {
	n.t.Helper()
	n.gen++
	d := protocol.NodeDesired{V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: n.gen}, Assignments: assignments}
	if err := n.runner.Accept(n.t.Context(), protocol.Marshal(d)); err != nil {
		n.t.Fatal(err)
	}
}

// remove sends a desired state that removes the deployment.
func (n *node) remove(r protocol.NodeRemoval) {
	n.t.Helper()
	n.gen++
	r.Deployment = "app"
	d := protocol.NodeDesired{V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: n.gen}, Removals: []protocol.NodeRemoval{r}}
	if err := n.runner.Accept(n.t.Context(), protocol.Marshal(d)); err != nil {
		n.t.Fatal(err)
	}
}

// removed waits until the deployment is removed, and says that the LO knows it.
func (n *node) removed() {
	n.t.Helper()
	n.eventually("app", lifecycle.Deleted)
	n.want()
	n.eventually("app", "")
}

// eventually waits until the deployment stands as said and all is reported.
func (n *node) eventually(name protocol.DeploymentName, want lifecycle.State) plan.Record {
	n.t.Helper()
	var rec plan.Record
	for range 20_000 {
		synctest.Wait()
		rec = plan.Record{}
		for _, r := range n.runner.Records() {
			if r.Deployment == name {
				rec = r
			}
		}
		if rec.State == want && len(rec.Reports) == 0 {
			return rec
		}
		<-time.After(50 * time.Millisecond)
	}
	n.t.Fatalf("%s is %q (%s %s), want %q", name, rec.State, rec.Code, rec.Message, want)
	return rec
}

// containers returns what there is, as "component/name state identity".
func (n *node) containers() []string {
	n.t.Helper()
	list, err := n.engine.List(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for _, s := range list {
		out = append(out, fmt.Sprintf("%s %s %s", s.ID, s.State, s.Digest.Short()))
	}
	return out
}

func (n *node) wantContainers(want ...string) {
	n.t.Helper()
	if got := n.containers(); !slices.Equal(got, want) {
		n.t.Errorf("containers %q, want %q", got, want)
	}
}

func image(name string) string {
	return "registry/" + name + "@" + string(protocol.DigestOf([]byte(name)))
}

// version makes an assignment of deployment "app" with one component.
func version(v string, attempt uint32, containers ...protocol.Container) protocol.Assignment {
	spec := protocol.DeploymentSpec{
		V: 1, Deployment: "app", App: "com.example.app", AppVersion: v,
		Components: []protocol.Component{{Name: "main", TimeoutMillis: 60_000, Containers: containers}},
	}
	for i := range spec.Components[0].Containers {
		c := &spec.Components[0].Containers[i]
		if c.Image == "" {
			c.Image = image(v)
		}
	}
	b := protocol.Marshal(spec)
	return protocol.Assignment{Deployment: "app", Digest: protocol.DigestOf(b), Spec: b, Attempt: attempt}
}

func web() protocol.Container {
	return protocol.Container{Name: "web", Restart: protocol.Restart{Policy: protocol.RestartAlways}}
}

func running(name string, a protocol.Assignment) string {
	return "app/main/" + name + " running " + identity(name, a).Short()
}

// identity returns the identity that a version gives to a container of main.
func identity(name string, a protocol.Assignment) protocol.Digest {
	spec, err := plan.Decode(a.Spec)
	if err != nil {
		return ""
	}
	for i, c := range spec.Components[0].Containers {
		if c.Name == name {
			return plan.Identities(spec)[0][i]
		}
	}
	return ""
}

var webID = engine.ID{Deployment: "app", Component: "main", Name: "web"}
