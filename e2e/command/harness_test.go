package command_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/co/command/live"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/keyfile"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
	"github.com/colonyfleet/colony/protocol/stream"
	"github.com/colonyfleet/colony/protocol/topic"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(agentDir); dir != "" {
		if err := agent(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	if dir := os.Getenv(siteDir); dir != "" {
		if err := siteProcess(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

const plant = protocol.SiteID("plant")

func plainLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

var logger = testpart.Logger

// A co is the CO's end: a real broker, and what its database would hold.
type co struct {
	t      *testing.T
	keys   *signtest.CO
	b      *broker.Broker
	addr   string
	stop   func() // ends the broker
	root   string // the file of its public root key
	decode *stream.Decoder
	hub    *live.Hub // of what is read live

	mu       sync.Mutex // protects what follows
	clock    time.Time  // its own
	since    time.Time  // when it had that time
	silent   bool       // it does not answer requests for the time
	asks     int
	position stream.Position
	received map[command.ID][]command.Received
	results  map[command.ID]map[protocol.NodeID][]command.Result
	frames   map[command.ID][]command.Frame
	came     map[command.ID][]time.Time // when each of them did
	states   map[string]lifecycle.State
	moves    map[string][]lifecycle.State // of the deployment on a node, each once
	known    map[protocol.NodeID]bool     // whose inventory came
	versions map[string]string            // of the deployment on a node
	// restricted is what restricts each node, and did what was done about it at the machine of the LO.
	restricted map[protocol.NodeID]restriction.Report
	did        []restriction.Change
	delays     []time.Duration // of the events, from the journal of the LO on
	credited   uint64          // the bytes of a log that credit was given for last
	renewed    time.Time       // and when
}

func newCO(t *testing.T) *co {
	t.Helper()
	c := &co{
		t: t, keys: signtest.New(t, 1), root: filepath.Join(t.TempDir(), "root.pub"), addr: freeport.Addr(t), decode: stream.NewDecoder(1),
		clock: time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC), since: time.Now(), // far from that of the machine
		received: map[command.ID][]command.Received{}, results: map[command.ID]map[protocol.NodeID][]command.Result{}, frames: map[command.ID][]command.Frame{}, states: map[string]lifecycle.State{}, known: map[protocol.NodeID]bool{}, moves: map[string][]lifecycle.State{}, versions: map[string]string{}, restricted: map[protocol.NodeID]restriction.Report{}, came: map[command.ID][]time.Time{},
	}
	encoded, err := keyfile.EncodePublic(c.keys.Root())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.root, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	c.hub = live.New(func(ctx context.Context, site protocol.SiteID, id command.ID, payload []byte) error {
		return c.b.Publish(ctx, broker.Message{Topic: topic.ForCommand(topic.SiteCredit, site, string(id)), Payload: payload})
	}, nil)
	c.stop = c.start()
	return c
}

func (c *co) start() (stop func()) {
	c.t.Helper()
	b, err := broker.New(broker.Options{
		Name: "co", Listeners: []broker.Listener{{Name: "mqtt", Network: broker.TCP, Address: c.addr}}, Access: access.CO{}, Accept: c.accept, Logger: logger(c.t),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.b = b // before a client connects
	stop = testpart.Start(c.t, b)
	c.addr = b.Addr("mqtt")
	return stop
}

// now is the time of the CO.
func (c *co) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clock.Add(time.Since(c.since))
}

// advance moves the clock of the CO.
func (c *co) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock = c.clock.Add(d)
}

func (c *co) accept(ctx context.Context, from access.Identity, m broker.Message) error {
	tp, err := topic.Parse(m.Topic)
	if err != nil {
		return err
	}
	switch tp.Kind { //nolint:exhaustive // an LO sends no other
	case topic.SiteTimeAsk:
		var ask command.TimeAsk
		if err := command.Unmarshal(m.Payload, &ask); err != nil {
			return err
		}
		now := c.now()
		c.mu.Lock()
		c.asks++
		silent := c.silent
		c.mu.Unlock()
		if silent {
			return nil
		}
		return c.b.Publish(ctx, broker.Message{Topic: topic.ForSite(topic.SiteTime, from.Site), Payload: protocol.Marshal(&command.Time{V: 1, Nonce: ask.Nonce, UnixMillis: now.UnixMilli()})})
	case topic.SiteLive:
		var f command.Frame
		if err := command.Unmarshal(m.Payload, &f); err != nil {
			return err
		}
		if err := c.hub.Accept(from.Site, tp.Tail, m.Payload); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.frames[command.ID(tp.Tail)] = append(c.frames[command.ID(tp.Tail)], f)
		c.came[command.ID(tp.Tail)] = append(c.came[command.ID(tp.Tail)], time.Now())
		return nil
	case topic.Up:
		return c.batch(ctx, from.Site, m.Payload)
	}
	return nil
}

func (c *co) batch(ctx context.Context, site protocol.SiteID, payload []byte) error {
	var b protocol.Batch
	if err := protocol.Unmarshal(payload, &b); err != nil {
		return err
	}
	events, err := c.decode.Events(b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.position.Follow(b, len(events))
	for _, e := range stream.Number(events, a.Fresh, c.position.Seq) {
		c.apply(e)
	}
	ack := c.position.Ack(b)
	return c.b.Publish(ctx, broker.Message{Topic: topic.ForSite(topic.Ack, site), Payload: protocol.Marshal(&ack), QoS: 1})
}

func (c *co) apply(e protocol.Event) {
	if e.UnixMillis > 0 { // else it gave way to a later one
		c.delays = append(c.delays, time.Since(time.UnixMilli(e.UnixMillis)))
	}
	switch e.Kind { //nolint:exhaustive // the others are not about commands
	case protocol.CommandReceived:
		var m command.Received
		if err := command.Unmarshal(e.Body, &m); err != nil {
			c.t.Error(err)
		}
		c.received[m.ID] = append(c.received[m.ID], m)
	case protocol.CommandResult:
		var m command.Result
		if err := command.Unmarshal(e.Body, &m); err != nil || m.Node != e.Node {
			c.t.Errorf("result of node %s in an event of node %s: %v", m.Node, e.Node, err)
		}
		if c.results[m.ID] == nil {
			c.results[m.ID] = map[protocol.NodeID][]command.Result{}
		}
		c.results[m.ID][m.Node] = append(c.results[m.ID][m.Node], m)
	case protocol.InventoryChanged:
		c.known[e.Node] = true
	case protocol.NodeRestrictions:
		var m restriction.Report
		if err := restriction.Unmarshal(e.Body, &m); err != nil {
			c.t.Error(err)
		}
		c.restricted[e.Node] = m
		if m.Change != nil && m.Change.Local {
			c.did = append(c.did, *m.Change)
		}
	case protocol.StatusEvent:
		var m protocol.DeploymentStatus
		if protocol.Unmarshal(e.Body, &m) == nil {
			at := string(m.Node) + "/" + string(m.Deployment)
			c.states[at], c.versions[at] = m.State, m.AppVersion
			if seen := c.moves[at]; m.Actor == lifecycle.EN && (len(seen) == 0 || seen[len(seen)-1] != m.State) {
				c.moves[at] = append(seen, m.State)
			}
		}
	}
}

// newID draws the id of a command.
func newID() command.ID {
	var b [16]byte
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return command.ID(hex.EncodeToString(b[:]))
}

// command returns a command for a node of the plant that may begin for an hour.
func (c *co) command(kind command.Kind, args any, nodes ...protocol.NodeID) *command.Command {
	now := c.now()
	m := &command.Command{
		V: protocol.Version, ID: newID(), Site: plant, Kind: kind, Nodes: nodes, All: len(nodes) == 0, Actor: "test",
		IssuedMillis: now.UnixMilli(), DeadlineMillis: now.Add(time.Hour).UnixMilli(),
	}
	if args != nil {
		m.Args = protocol.Marshal(args)
	}
	return m
}

// envelope returns a command signed.
func (c *co) envelope(m *command.Command) []byte {
	c.t.Helper()
	statement, err := command.Sign(c.keys.Key, m)
	if err != nil {
		c.t.Fatal(err)
	}
	return protocol.Marshal(&command.Envelope{V: protocol.Version, Statement: statement, KeySet: c.keys.KeySet})
}

// publish publishes what is on the topic of a command.
func (c *co) publish(id command.ID, payload []byte) {
	c.t.Helper()
	if err := c.b.Publish(c.t.Context(), broker.Message{Topic: topic.ForCommand(topic.SiteCommand, plant, string(id)), Payload: payload, QoS: 1, Retain: true}); err != nil {
		c.t.Fatal(err)
	}
}

// send signs and publishes a command.
func (c *co) send(m *command.Command) command.ID {
	c.t.Helper()
	c.publish(m.ID, c.envelope(m))
	return m.ID
}

// last returns the last result of a node; its zero value: there is none.
func (c *co) last(id command.ID, node protocol.NodeID) command.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.results[id][node]
	if len(list) == 0 {
		return command.Result{}
	}
	return list[len(list)-1]
}

// ends waits until a node has ended a command, and checks how.
func (c *co) ends(id command.ID, node protocol.NodeID, state command.State, code command.Code) command.Result {
	c.t.Helper()
	var r command.Result
	testpart.Eventually(c.t, fmt.Sprintf("command %s ends at node %s", id, node), func() bool {
		r = c.last(id, node)
		return r.State != "" && r.State.Ended()
	})
	if r.State != state || r.Code != code {
		c.t.Errorf("command %s at node %s: %s %s %q, want %s %s", id, node, r.State, r.Code, r.Message, state, code)
	}
	return r
}

// receipt waits until the LO has reported a command.
func (c *co) receipt(id command.ID) command.Received {
	c.t.Helper()
	var m command.Received
	testpart.Eventually(c.t, fmt.Sprintf("command %s is received", id), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		list := c.received[id]
		if len(list) > 0 {
			m = list[len(list)-1]
		}
		return len(list) > 0
	})
	return m
}

// desire publishes what the plant is to run.
func (c *co) desire(generation uint64, containers ...protocol.Container) {
	c.t.Helper()
	spec := protocol.Marshal(&protocol.DeploymentSpec{
		V: protocol.Version, ID: "1", Deployment: "app", App: "app", AppVersion: fmt.Sprint(generation),
		Components: []protocol.Component{{Name: "main", Containers: containers}},
	})
	m := c.keys.Sign(protocol.SiteDesired{
		V: protocol.Version, Site: plant, Position: protocol.Position{Epoch: 1, Generation: generation},
		Deployments: []protocol.SiteEntry{{Deployment: "app", Digest: protocol.DigestOf(spec), Size: uint64(len(spec)), Spec: spec, Position: protocol.Position{Epoch: 1, Generation: generation}}},
	})
	if err := c.b.Publish(c.t.Context(), broker.Message{Topic: topic.ForSite(topic.SiteDesired, plant), Payload: protocol.Marshal(&m), QoS: 1, Retain: true}); err != nil {
		c.t.Fatal(err)
	}
}

// installed waits until a node has the deployment.
func (c *co) installed(node protocol.NodeID) {
	c.t.Helper()
	testpart.Eventually(c.t, "app is installed at "+string(node), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.states[string(node)+"/app"] == lifecycle.Installed
	})
}

// A site is an LO and its nodes.
type site struct {
	t    *testing.T
	co   *co
	o    lo.Options
	lo   *lo.LO
	stop func()
	// nodes are those that run.
	nodes map[protocol.NodeID]*node
}

// A node is an agent with its machine.
type node struct {
	disk   *simdisk.Disk
	engine *memory.Engine
	stop   func()
}

func newDisk() *simdisk.Disk { return simdisk.New(rand.Uint64()) }

func newSite(t *testing.T, c *co, change ...func(*lo.Options)) *site {
	t.Helper()
	o := lo.DefaultOptions()
	o.Site, o.StateDir, o.HTTP, o.MQTT, o.Logger, o.RootKeyFile = plant, t.TempDir(), "", freeport.Addr(t), logger(t), c.root
	o.CO.MQTT, o.CO.MaxBackoff = []string{"tcp://" + c.addr}, 100*time.Millisecond
	for _, f := range change {
		f(&o)
	}
	s := &site{t: t, co: c, o: o, nodes: map[protocol.NodeID]*node{}}
	s.start()
	s.o.MQTT = s.lo.MQTTAddr()
	return s
}

func (s *site) start() {
	s.t.Helper()
	l, err := lo.New(s.o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.lo, s.stop = l, testpart.Start(s.t, l)
}

// options are those of an agent of the site.
func (s *site) options(name protocol.NodeID, n *node) en.Options {
	o := en.DefaultOptions()
	o.Site, o.Node, o.StateDir, o.Disk, o.Runtime, o.Logger, o.RootKeyFile = plant, name, "/state", n.disk, n.engine, logger(s.t), s.co.root
	o.Labels = map[string]string{"name": string(name)}
	o.LO.MQTT = []string{"tcp://" + s.lo.MQTTAddr()}
	return o
}

// join starts an agent, with the disk that it had.
func (s *site) join(name protocol.NodeID, change ...func(*en.Options)) *node {
	s.t.Helper()
	n := s.nodes[name]
	isNew := n == nil
	if isNew {
		n = &node{disk: newDisk(), engine: memory.New(memory.Options{})}
		s.nodes[name] = n
	}
	o := s.options(name, n)
	for _, f := range change {
		f(&o)
	}
	e, err := en.New(o)
	if err != nil {
		s.t.Fatal(err)
	}
	n.stop = testpart.Start(s.t, e)
	testpart.Eventually(s.t, string(name)+" is known", func() bool {
		s.co.mu.Lock()
		defer s.co.mu.Unlock()
		return s.co.known[name]
	})
	if isNew {
		s.waitBorn(name)
	}
	return n
}

// waitBorn waits until an agent that remembers nothing knows since when it remembers: it refuses what was issued until then.
func (s *site) waitBorn(name protocol.NodeID) {
	s.t.Helper()
	testpart.Eventually(s.t, string(name)+" executes a command", func() bool {
		id := s.co.send(s.co.command(command.Inventory, nil, name))
		var r command.Result
		testpart.Eventually(s.t, string(name)+" ends a command", func() bool {
			r = s.co.last(id, name)
			return r.State != "" && r.State.Ended()
		})
		s.co.publish(id, nil) // as a CO does that has the result: else an LO that loses its record would get all of them once more
		return r.State == command.Done
	})
}
