package lo

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

// patience is how long a test waits for what must happen, also on a busy machine.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var logger = testpart.Logger

// eventually waits for a condition.
var eventually = testpart.Eventually

// A fakeCO is the CO's side: a real broker, and the position that a database
// would hold.
type fakeCO struct {
	t    *testing.T
	addr string
	b    *broker.Broker

	mu       sync.Mutex
	hold     bool // accept no events
	epoch    string
	seq      uint64
	presence protocol.Presence
	desired  protocol.SiteDesired
	streams  map[string]*streamEnd // of machine data
}

func newFakeCO(t *testing.T) *fakeCO {
	t.Helper()
	c := &fakeCO{t: t, addr: "127.0.0.1:0", hold: true}
	c.start()
	t.Cleanup(c.stop)
	return c
}

func (c *fakeCO) start() {
	c.t.Helper()
	b, err := broker.New(broker.Options{
		Name: "co", Listeners: []broker.Listener{{Name: "mqtt", Network: broker.TCP, Address: c.addr}},
		Access: access.CO{}, Accept: c.accept, Logger: logger(c.t),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := b.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.b, c.addr = b, b.Addr("mqtt")
	if c.desired.V != 0 {
		c.want(c.desired)
	}
}

func (c *fakeCO) stop() {
	if c.b == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.b.Stop(ctx); err != nil {
		c.t.Errorf("stop the fake CO: %v", err)
	}
	c.b = nil
}

// accept does what the uplink's contract asks of a CO.
func (c *fakeCO) accept(ctx context.Context, from access.Identity, m broker.Message) error {
	tp, err := topic.Parse(m.Topic)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if tp.Kind == topic.SiteOnline {
		var p protocol.Presence
		if err := protocol.Unmarshal(m.Payload, &p); err != nil {
			return err
		}
		if p.Online || p.Session == c.presence.Session { // else it is of a connection that was replaced
			c.presence = p
		}
		return nil
	}
	var b protocol.Batch
	if err := protocol.Unmarshal(m.Payload, &b); err != nil {
		return err
	}
	if b.Stream != "" {
		return c.acceptData(ctx, from.Site, b)
	}
	if b.Count > 0 && !c.hold {
		if c.epoch != b.Epoch && b.First == b.Trimmed+1 {
			c.epoch, c.seq = b.Epoch, b.Trimmed
		}
		if c.epoch == b.Epoch && b.First <= c.seq+1 {
			c.seq = max(c.seq, b.First+uint64(b.Count)-1)
		}
	}
	ack := protocol.Ack{V: protocol.Version, Epoch: c.epoch, Seq: c.seq}
	return c.b.Publish(ctx, broker.Message{Topic: topic.ForSite(topic.Ack, from.Site), Payload: protocol.Marshal(&ack), QoS: 1})
}

func (c *fakeCO) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = false
}

// want publishes a desired state.
func (c *fakeCO) want(m protocol.SiteDesired) {
	c.t.Helper()
	c.desired = m
	err := c.b.Publish(c.t.Context(), broker.Message{Topic: topic.ForSite(topic.SiteDesired, m.Site), Payload: protocol.Marshal(&m), QoS: 1, Retain: true})
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *fakeCO) online() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.presence.Online
}

// spec returns a version of a deployment and its digest.
func spec(name protocol.DeploymentName, version string) ([]byte, protocol.Digest) {
	b := protocol.Marshal(&protocol.DeploymentSpec{
		V: protocol.Version, ID: "id-" + string(name), Deployment: name, App: "hello", AppVersion: version,
		Components: []protocol.Component{{Name: "c", Containers: []protocol.Container{{Name: "c", Image: "r/i@sha256:0"}}}},
	})
	return b, protocol.DigestOf(b)
}

// site1 is a desired state of one deployment on every node.
func site1(generation uint64, version string, policy protocol.Policy) protocol.SiteDesired {
	b, d := spec("web", version)
	return protocol.SiteDesired{V: protocol.Version, Site: "s1", Position: protocol.Position{Epoch: 1, Generation: generation}, Commit: "c" + version, Deployments: []protocol.SiteEntry{
		{Deployment: "web", Digest: d, Size: uint64(len(b)), Spec: b, Policy: policy},
	}}
}

// localOptions are the options of an LO of this machine.
func localOptions(t *testing.T, c *fakeCO, dir, mqtt string) Options {
	o := DefaultOptions()
	o.Site, o.StateDir, o.MQTT, o.HTTP, o.Logger = "s1", dir, mqtt, "127.0.0.1:0", logger(t)
	o.CO.MQTT, o.CO.KeepAlive = []string{"tcp://" + c.addr}, 5*time.Second
	return o
}

// startLO runs an LO until the test ends or stopLO.
func startLO(t *testing.T, o Options) *LO {
	t.Helper()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopLO(t, l) })
	return l
}

func stopLO(t *testing.T, l *LO) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := l.Stop(ctx); err != nil {
		t.Errorf("stop LO: %v", err)
	}
}

// An agent plays an EN over real MQTT.
type agent struct {
	t       *testing.T
	node    protocol.NodeID
	machine protocol.Gateway
	c       *client.Client
	desired chan protocol.NodeDesired
	up      chan string // sessions that were announced
	seq     uint64

	mu       sync.Mutex // protects what follows
	held     protocol.Held
	statuses map[protocol.DeploymentName]protocol.DeploymentStatus // the last of each
}

func startAgent(t *testing.T, node protocol.NodeID, addr string) *agent {
	t.Helper()
	return startGateway(t, node, protocol.Gateway{Agent: "agent-1", Boot: "b1"}, addr)
}

// startGateway plays an agent with an id.
func startGateway(t *testing.T, node protocol.NodeID, machine protocol.Gateway, addr string) *agent {
	t.Helper()
	a := &agent{t: t, node: node, machine: machine, desired: make(chan protocol.NodeDesired, 64), up: make(chan string, 16), statuses: map[protocol.DeploymentName]protocol.DeploymentStatus{}}
	var err error
	a.c, err = client.New(client.Options{
		URLs: []string{"tcp://" + addr}, ClientID: string(node) + ".s1", Username: string(node) + ".s1", MaxBackoff: 50 * time.Millisecond,
		Will: func(session string) *client.Message {
			m := a.presence(false, session)
			return &m
		},
		Subscriptions: []client.Subscription{{Filter: topic.ForNode(topic.NodeDesired, "s1", node), QoS: 1}},
		Handle: func(_ context.Context, m client.Message) error {
			var d protocol.NodeDesired
			if err := protocol.Unmarshal(m.Payload, &d); err != nil {
				return err
			}
			a.mu.Lock()
			a.held = d.Held()
			a.mu.Unlock()
			a.desired <- d
			return nil
		},
		OnUp: func(ctx context.Context, session string) {
			inv := protocol.Inventory{V: protocol.Version, Node: node, Architecture: "amd64", Cores: 4, Labels: map[string]string{"role": "gateway"}}
			for _, m := range []client.Message{
				a.presence(true, session),
				{Topic: topic.ForNode(topic.Inventory, "s1", node), QoS: 1, Retain: true, Payload: protocol.Marshal(&inv)},
				a.whole(),
			} {
				if err := a.c.Publish(ctx, m); err != nil && ctx.Err() == nil {
					t.Errorf("announce node: %v", err)
				}
			}
			a.up <- session
		},
		Logger: logger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.stop)
	return a
}

func (a *agent) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := a.c.Stop(ctx); err != nil {
		a.t.Errorf("stop agent: %v", err)
	}
}

func (a *agent) presence(online bool, session string) client.Message {
	return client.Message{
		Topic: topic.ForNode(topic.NodeOnline, "s1", a.node), QoS: 1, Retain: true,
		Payload: protocol.Marshal(&protocol.Presence{V: protocol.Version, Online: online, Agent: a.machine.Agent, Boot: a.machine.Boot, Version: "v1", Session: session}),
	}
}

// whole is the report of everything that the agent holds.
func (a *agent) whole() client.Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := protocol.NodeReport{V: protocol.Version, Node: a.node, Agent: a.machine.Agent, Boot: a.machine.Boot, Held: a.held}
	for _, name := range slices.Sorted(maps.Keys(a.statuses)) {
		s := a.statuses[name]
		m.Seq = max(m.Seq, s.Seq)
		m.Statuses = append(m.Statuses, s)
	}
	return client.Message{Topic: topic.ForNode(topic.NodeReport, "s1", a.node), QoS: 1, Payload: protocol.Marshal(&m)}
}

// next returns the next NodeDesired that the predicate accepts.
func (a *agent) next(what string, accept func(protocol.NodeDesired) bool) protocol.NodeDesired {
	a.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		select {
		case d := <-a.desired:
			if accept(d) {
				return d
			}
		case <-deadline.C:
			a.t.Fatalf("no such NodeDesired: %s", what)
		}
	}
}

// report publishes what the agent does with the first assignment of d.
func (a *agent) report(d protocol.NodeDesired, state lifecycle.State, code protocol.Code) protocol.DeploymentStatus {
	a.t.Helper()
	a.seq++
	m := protocol.DeploymentStatus{
		V: protocol.Version, Node: a.node, Deployment: "web", Agent: a.machine.Agent, Boot: a.machine.Boot, Seq: a.seq, Position: d.Position,
		State: state, Actor: lifecycle.EN, Code: code, UnixMillis: time.Now().UnixMilli(),
	}
	if len(d.Assignments) > 0 {
		m.Digest, m.Attempt = d.Assignments[0].Digest, d.Assignments[0].Attempt
	}
	a.send(m)
	return m
}

func (a *agent) send(m protocol.DeploymentStatus) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	if err := a.c.Publish(ctx, client.Message{Topic: topic.ForStatus("s1", a.node, m.Deployment), QoS: 1, Payload: protocol.Marshal(&m)}); err != nil {
		a.t.Fatalf("report %s: %v", m.State, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.statuses[m.Deployment] = m
}

// history returns the statuses in the LO's journal, checked against the lifecycle.
func history(t *testing.T, l *LO) []protocol.DeploymentStatus {
	t.Helper()
	records, err := l.journal.Read(0, 10_000, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	var out []protocol.DeploymentStatus
	at := map[protocol.NodeID]lifecycle.State{}
	for _, r := range records {
		var e protocol.Event
		if err := protocol.Unmarshal(r.Body, &e); err != nil {
			t.Fatal(err)
		}
		if e.Kind == protocol.AnomalyEvent {
			t.Errorf("anomaly in the journal: %x", e.Body)
		}
		if e.Kind != protocol.StatusEvent {
			continue
		}
		var m protocol.DeploymentStatus
		if err := protocol.Unmarshal(e.Body, &m); err != nil {
			t.Fatal(err)
		}
		if m.From != at[m.Node] {
			t.Errorf("journal has a transition from %q, the state was %q", m.From, at[m.Node])
		}
		if err := lifecycle.Check(m.From, m.State, m.Actor); err != nil {
			t.Error(err)
		}
		at[m.Node] = m.State
		out = append(out, m)
	}
	return out
}

// kinds counts the events in the journal by kind.
func kinds(t *testing.T, l *LO) map[protocol.EventKind]int {
	t.Helper()
	out := map[protocol.EventKind]int{}
	for _, e := range events(t, l) {
		out[e.Kind]++
	}
	return out
}

// events returns the events in the journal.
func events(t *testing.T, l *LO) (out []protocol.Event) {
	t.Helper()
	records, err := l.journal.Read(0, 10_000, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		var e protocol.Event
		if err := protocol.Unmarshal(r.Body, &e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// get fetches from the LO's HTTP listener.
func get(t *testing.T, l *LO, path string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.HTTPAddr()+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}
