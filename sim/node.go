package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// retryDelay is the wait after a message that the LO did not acknowledge.
const retryDelay = 500 * time.Millisecond

// version is what a simulated agent says it is.
const version = "sim"

// node is one simulated node: a client of the LO's broker and what it has to say.
type node struct {
	f     *Fleet
	id    protocol.NodeID
	agent string
	news  notify.Signal // there is something to say

	mu      sync.Mutex     // guards what follows
	client  *client.Client // nil while it has left
	session string         // of the connection that is up, or empty
	greeted string         // the session in which it was announced
	whole   string         // the session in which it reported everything
	workloads
}

func newNode(f *Fleet, number int) *node {
	id := protocol.NodeID(fmt.Sprintf("node-%04d", number))
	n := &node{f: f, id: id, agent: fmt.Sprintf("sim-%d-%04d", f.opts.Seed, number), news: notify.New()}
	n.workloads.state = map[protocol.DeploymentName]*workload{}
	for _, d := range f.opts.Deployments {
		n.begin(d)
	}
	return n
}

// join connects the node unless it is connected.
func (n *node) join(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client != nil {
		return nil
	}
	o := n.f.opts
	name := string(n.id) + "." + string(o.Site)
	c, err := client.New(client.Options{
		URLs: []string{o.URL}, ClientID: name, Username: name, KeepAlive: o.KeepAlive, MaxBackoff: o.MaxBackoff,
		Will: func(session string) *client.Message {
			m := n.presence(false, session)
			return &m
		},
		Subscriptions: []client.Subscription{{Filter: topic.ForNode(topic.NodeDesired, o.Site, n.id), QoS: 1}},
		Handle:        n.handle,
		OnUp:          func(_ context.Context, session string) { n.connected(session) },
		OnDown:        func(error) { n.connected("") },
		Logger:        o.Logger,
	})
	if err != nil {
		return fmt.Errorf("make client of %s: %w", n.id, err)
	}
	n.client = c
	return c.Start(ctx)
}

func (n *node) connected(session string) {
	n.mu.Lock()
	n.session = session
	n.mu.Unlock()
	n.news.Notify()
}

// leave says goodbye and disconnects.
func (n *node) leave(ctx context.Context) error {
	n.mu.Lock()
	c := n.client
	n.mu.Unlock()
	if c == nil {
		return nil
	}
	if err := c.Publish(ctx, n.presence(false, "")); err != nil {
		return fmt.Errorf("say goodbye as %s: %w", n.id, err)
	}
	return n.disconnect(ctx)
}

func (n *node) disconnect(ctx context.Context) error {
	n.mu.Lock()
	c := n.client
	n.client, n.session, n.greeted, n.whole = nil, "", "", ""
	n.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.Stop(ctx)
}

// run says what there is to say until ctx ends.
func (n *node) run(ctx context.Context) {
	beat := time.NewTicker(n.f.opts.Heartbeat)
	defer beat.Stop()
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.news.C():
		case <-retry.C:
		case <-beat.C:
			n.heartbeat(ctx)
			continue
		}
		if !n.flush(ctx) {
			retry.Reset(retryDelay)
		}
	}
}

// flush announces the node if its connection is new, and sends its reports in
// order. False means that there is more to say and the connection is up.
func (n *node) flush(ctx context.Context) bool {
	for {
		n.mu.Lock()
		c, session, greeted := n.client, n.session, n.greeted == n.session
		var next *protocol.DeploymentStatus
		if len(n.outbox) > 0 {
			next = &n.outbox[0]
		}
		n.mu.Unlock()
		if c == nil || session == "" {
			return true // the next connection wakes us
		}
		var err error
		switch {
		case !greeted:
			if err = n.greet(ctx, c, session); err == nil {
				n.mu.Lock()
				n.greeted = session
				n.mu.Unlock()
			}
		case next == nil && n.wholeReported(session):
			return true
		case next == nil:
			err = n.reportAll(ctx, c, session)
		default:
			err = n.report(ctx, c, *next)
		}
		if err != nil {
			return ctx.Err() != nil
		}
	}
}

func (n *node) greet(ctx context.Context, c *client.Client, session string) error {
	if err := c.Publish(ctx, n.presence(true, session)); err != nil {
		return err
	}
	m := n.message(topic.ForNode(topic.Inventory, n.f.opts.Site, n.id), &protocol.Inventory{
		V: protocol.Version, Node: n.id, AgentVersion: version, Hostname: string(n.id), OS: "simulated", Architecture: "amd64",
		Cores: 4, MemoryBytes: 8 << 30, Engine: "none", Labels: map[string]string{"sim": "true"},
	})
	m.Retain = true
	return c.Publish(ctx, m)
}

func (n *node) wholeReported(session string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.whole == session
}

// reportAll sends everything that the node holds.
func (n *node) reportAll(ctx context.Context, c *client.Client, session string) error {
	n.mu.Lock()
	m := protocol.NodeReport{V: protocol.Version, Node: n.id, Agent: n.agent, Boot: n.agent, Seq: n.seq, UnixMillis: time.Now().UnixMilli()}
	if !n.desired.Position.IsZero() {
		m.Held = n.desired.Held()
	}
	for _, name := range slices.Sorted(maps.Keys(n.state)) {
		m.Statuses = append(m.Statuses, n.state[name].last)
	}
	n.mu.Unlock()
	if err := c.Publish(ctx, n.message(topic.ForNode(topic.NodeReport, n.f.opts.Site, n.id), &m)); err != nil {
		return err
	}
	n.mu.Lock()
	n.whole = session
	n.mu.Unlock()
	return nil
}

// report sends the first report of the outbox and removes it when it is acknowledged.
func (n *node) report(ctx context.Context, c *client.Client, r protocol.DeploymentStatus) error {
	err := c.Publish(ctx, n.message(topic.ForStatus(n.f.opts.Site, n.id, r.Deployment), &r))
	if err != nil && ctx.Err() != nil {
		return err
	}
	refused := false
	switch protocol.KindOf(err) {
	case protocol.Invalid, protocol.Denied, protocol.NotFound, protocol.Conflict:
		refused = err != nil
	case protocol.Unavailable, protocol.Internal:
	}
	if err != nil && !refused {
		return err
	}
	n.mu.Lock()
	n.outbox = n.outbox[1:]
	n.mu.Unlock()
	if refused {
		n.f.opts.Logger.ErrorContext(ctx, "report refused", "node_id", n.id, "deployment_id", r.Deployment, "to", r.State, "err", err)
		n.f.count(func(s *Stats) { s.Refused++ })
		return nil
	}
	n.f.count(func(s *Stats) { s.Acknowledged++ })
	if n.f.opts.Acknowledged != nil {
		n.f.opts.Acknowledged(r)
	}
	return nil
}

func (n *node) heartbeat(ctx context.Context) {
	n.mu.Lock()
	c, up := n.client, n.session != ""
	n.mu.Unlock()
	if c == nil || !up {
		return
	}
	m := n.message(topic.ForNode(topic.Heartbeat, n.f.opts.Site, n.id), &protocol.Heartbeat{
		V: protocol.Version, Load1: 12, MemAvailable: 6 << 30, DiskFree: 20 << 30, UnixMillis: time.Now().UnixMilli(),
	})
	m.QoS = 0
	if err := c.Publish(ctx, m); err != nil {
		n.f.opts.Logger.DebugContext(ctx, "heartbeat not sent", "node_id", n.id, "err", err)
	}
}

// handle applies the node's assignments.
func (n *node) handle(_ context.Context, m client.Message) error {
	if len(m.Payload) == 0 {
		return nil
	}
	var want protocol.NodeDesired
	if err := protocol.Unmarshal(m.Payload, &want); err != nil {
		return err
	}
	if want.Node != n.id {
		return protocol.Errorf(protocol.Invalid, "a desired state for node %s came to node %s", want.Node, n.id)
	}
	return n.obey(want)
}

func (n *node) presence(online bool, session string) client.Message {
	m := n.message(topic.ForNode(topic.NodeOnline, n.f.opts.Site, n.id), &protocol.Presence{
		V: protocol.Version, Online: online, Agent: n.agent, Boot: n.agent, Version: version, Session: session,
	})
	m.Retain = true
	return m
}

func (n *node) message(name string, body any) client.Message {
	return client.Message{Topic: name, Payload: protocol.Marshal(body), QoS: 1, ContentType: protocol.ContentType}
}

func (n *node) announced() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.session != "" && n.greeted == n.session
}

func (n *node) settled() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.outbox) == 0 && (n.client == nil || n.session != "" && n.greeted == n.session)
}

func (n *node) truth() Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := Node{ID: n.id, Online: n.client != nil && n.session != "", Deployments: map[protocol.DeploymentName]protocol.DeploymentStatus{}}
	for name, w := range n.state {
		t.Deployments[name] = w.last
	}
	return t
}
