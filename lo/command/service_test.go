package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/lo/command/store"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	t0     = int64(1_900_000_000_000) // of the CO
	anID   = wire.ID("000000000000000000000000000000aa")
	others = wire.ID("000000000000000000000000000000bb")
)

// A plant is a site of many nodes with its disk, its broker and its CO.
type plant struct {
	t     *testing.T
	co    *signtest.CO
	disk  *simdisk.Disk
	nodes map[protocol.NodeID]map[string]string
	s     *Service
	stop  func()

	mu        sync.Mutex // guards what follows
	retained  map[string]int
	published int
	results   map[protocol.NodeID][]wire.Result // events of one command
	received  []wire.Received
	asks      []wire.TimeAsk
	full      bool // the journal
	executed  []string
	fault     error // what an execution ends with
}

func newPlant(t *testing.T, count int) *plant {
	t.Helper()
	p := &plant{
		t: t, co: signtest.New(t, 1), disk: simdisk.New(1), nodes: map[protocol.NodeID]map[string]string{}, retained: map[string]int{},
		results: map[protocol.NodeID][]wire.Result{},
	}
	for n := range count {
		p.nodes[node(n)] = map[string]string{"line": "4"}
	}
	p.start()
	return p
}

func node(n int) protocol.NodeID { return protocol.NodeID(fmt.Sprintf("n%05d", n)) }

// start starts the service, with what is on the disk.
func (p *plant) start() {
	p.t.Helper()
	kept, held, _, err := store.Open(p.disk, "/commands")
	if err != nil {
		p.t.Fatal(err)
	}
	began := time.Now()
	p.s, err = New(Options{
		Execute: p.execute, Site: "plant", Root: p.co.Root(), Store: kept, Journal: p.journal, Nodes: func() map[protocol.NodeID]map[string]string { return p.nodes },
		Publish: p.publish, Send: p.send, SinceBoot: func() time.Duration { return time.Since(began) }, Now: time.Now, Logger: slog.New(slog.DiscardHandler), Live: none{},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	Restore(p.s, held)
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.s.Run(ctx)
	}()
	p.s.Connected(true)
	p.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		if err := kept.Close(); err != nil {
			p.t.Error(err)
		}
	})
}

// none carries nothing live.
type none struct{}

func (none) Frame(protocol.NodeID, wire.ID, []byte) error {
	return protocol.Errorf(protocol.Invalid, "a frame")
}
func (none) Credit(wire.ID, []byte) error { return nil }
func (none) Input(wire.ID, []byte) error  { return nil }
func (none) Began(wire.ID)                {}

func (p *plant) journal(_ context.Context, facts []nodes.Fact) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full {
		return 0, errors.New("the journal is full")
	}
	for _, f := range facts {
		switch f.Event.Kind { //nolint:exhaustive // the others are not about commands
		case protocol.CommandReceived:
			var m wire.Received
			if err := wire.Unmarshal(f.Event.Body, &m); err != nil {
				p.t.Error(err)
			}
			p.received = append(p.received, m)
		case protocol.CommandResult:
			var m wire.Result
			if err := wire.Unmarshal(f.Event.Body, &m); err != nil || m.Node != f.Event.Node {
				p.t.Error(m, err)
			}
			p.results[m.Node] = append(p.results[m.Node], m)
		}
	}
	return 1, nil
}

// fail has what is for the LO itself fail with err; nil: it does not.
func (p *plant) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = err
}

// execute carries out what is for the LO itself.
func (p *plant) execute(_ context.Context, c *wire.Command, n protocol.NodeID) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault == nil {
		p.executed = append(p.executed, string(c.Kind)+" "+string(n))
	}
	return "so it is", p.fault
}

// fill has the journal be full, or have room.
func (p *plant) fill(full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = full
}

func (p *plant) publish(_ context.Context, name string, payload []byte, retained bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if retained {
		p.retained[name] = len(payload)
		p.published++
	}
	return nil
}

func (p *plant) send(_ context.Context, _ string, payload []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var m wire.TimeAsk
	err := wire.Unmarshal(payload, &m)
	p.asks = append(p.asks, m)
	return err
}

// answer answers the last question with a time.
func (p *plant) answer(at int64) {
	p.t.Helper()
	p.mu.Lock()
	m := wire.Time{V: 1, Nonce: p.asks[len(p.asks)-1].Nonce, UnixMillis: at}
	p.mu.Unlock()
	if err := p.s.Handle(topic.Topic{Kind: topic.SiteTime}, protocol.Marshal(&m)); err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait()
}

// arrive has a command of the CO arrive.
func (p *plant) arrive(id wire.ID) {
	p.t.Helper()
	statement, err := wire.Sign(p.co.Key, &wire.Command{V: 1, ID: id, Site: "plant", Kind: wire.Inventory, Selector: map[string]string{"line": "4"}, IssuedMillis: t0, DeadlineMillis: t0 + time.Hour.Milliseconds()})
	if err != nil {
		p.t.Fatal(err)
	}
	p.handle(id, protocol.Marshal(&wire.Envelope{V: 1, Statement: statement, KeySet: p.co.KeySet}))
}

func (p *plant) handle(id wire.ID, payload []byte) {
	p.t.Helper()
	if err := p.s.Handle(topic.Topic{Kind: topic.SiteCommand, Tail: string(id)}, payload); err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait()
}

// report has a node report how far a command is.
func (p *plant) report(n protocol.NodeID, state wire.State) error {
	return p.s.Accept(p.t.Context(), topic.Topic{Kind: topic.CommandResult, Node: n}, protocol.Marshal(&wire.Result{V: 1, ID: anID, Node: n, State: state}))
}

// TestTenThousandNodes takes a command for ten thousand nodes, which report at once: each result is in the journal once, and on the disk.
func TestTenThousandNodes(t *testing.T) {
	t.Parallel()
	const count = 10_000
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, count)
		defer func() { p.stop() }()
		p.arrive(anID)
		if len(p.received) != 1 || p.received[0].Nodes != count || p.published != 0 {
			t.Fatalf("received %+v, %d published before the time is known", p.received, p.published)
		}
		p.answer(t0)
		time.Sleep(11 * time.Second) // a thousand a second
		synctest.Wait()
		if p.published != count {
			t.Fatalf("%d published", p.published)
		}
		var reports sync.WaitGroup
		for n := range count {
			reports.Go(func() {
				for range 2 { // its acknowledgement was lost
					if err := p.report(node(n), wire.Done); err != nil {
						t.Error(err)
					}
				}
			})
		}
		reports.Wait()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		for n := range count {
			if len(p.results[node(n)]) != 1 {
				t.Fatalf("%d events of %s", len(p.results[node(n)]), node(n))
			}
		}
		for name, size := range p.retained {
			if size > 0 {
				t.Fatalf("%s is retained after the end", name)
			}
		}
		// The CO publishes it again, as it has lost them: after a restart, with what was durable.
		p.stop()
		p.disk.Restart(true)
		p.start()
		p.arrive(anID)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if len(p.received) != 2 || len(p.results[node(count-1)]) != 2 || p.published != 2*count {
			t.Errorf("%d received, %d events of the last node, %d published", len(p.received), len(p.results[node(count-1)]), p.published)
		}
	})
}

// TestFaults has the journal and the disk refuse what is to be written: nothing is acknowledged that is not durable, and all of it is made up for.
func TestFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 2)
		defer func() { p.stop() }()
		p.fill(true)
		p.arrive(anID)
		if len(p.received) != 0 {
			t.Error("received without a journal")
		}
		p.fill(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(p.received) != 1 {
			t.Fatalf("received %+v after the journal has room", p.received)
		}
		p.answer(t0)
		p.fill(true)
		if err := p.report(node(0), wire.Done); protocol.KindOf(err) != protocol.Unavailable {
			t.Errorf("a result without a journal: %v", err)
		}
		p.fill(false)
		p.disk.Fail(func(op, _ string) error {
			if op == "write" {
				return syscall.ENOSPC
			}
			return nil
		})
		if err := p.report(node(0), wire.Done); protocol.KindOf(err) != protocol.Unavailable {
			t.Errorf("a result without a disk: %v", err)
		}
		p.disk.Fail(nil)
		if err := p.report(node(0), wire.Done); err != nil {
			t.Errorf("a result after all: %v", err)
		}
		if len(p.results[node(0)]) != 1 {
			t.Errorf("%d events", len(p.results[node(0)]))
		}
		// One that was not sent, or is of no member, is left out.
		for _, n := range []protocol.NodeID{"stranger", node(0)} {
			if err := p.report(n, wire.Done); err != nil {
				t.Error(err)
			}
		}
		if len(p.results[node(0)]) != 1 || len(p.results["stranger"]) != 0 {
			t.Error("events of what is not news")
		}
		p.handle(others, nil) // nothing is cancelled
		p.handle(anID, nil)
		if r := p.results[node(1)]; len(r) != 1 || r[0].Code != wire.Cancelled || !r[0].ByLO {
			t.Errorf("cancelled: %+v", r)
		}
		if err := p.report(node(1), wire.Done); err != nil || len(p.results[node(1)]) != 2 {
			t.Errorf("the node had done it: %v, %+v", err, p.results[node(1)])
		}
	})
}

// TestNodeAway fills a node that is away with commands: what comes after that is refused for that node alone, and others get it.
func TestNodeAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 2)
		defer func() { p.stop() }()
		send := func(n int, nodes ...protocol.NodeID) {
			id := wire.ID(fmt.Sprintf("%032x", n))
			statement, err := wire.Sign(p.co.Key, &wire.Command{V: 1, ID: id, Site: "plant", Kind: wire.Inventory, Nodes: nodes, IssuedMillis: t0, DeadlineMillis: t0 + time.Hour.Milliseconds()})
			if err != nil {
				t.Fatal(err)
			}
			p.handle(id, protocol.Marshal(&wire.Envelope{V: 1, Statement: statement, KeySet: p.co.KeySet}))
		}
		send(1, node(0))
		p.answer(t0)
		for n := range wire.MaxPerNode - 1 {
			send(2+n, node(0))
		}
		if len(p.results[node(0)]) != 0 {
			t.Fatalf("results of a node that is away: %+v", p.results[node(0)])
		}
		send(1000, node(0), node(1))
		time.Sleep(time.Second)
		synctest.Wait()
		if r := p.results[node(0)]; len(r) != 1 || r[0].State != wire.Refused || r[0].Code != wire.Busy || !r[0].ByLO {
			t.Errorf("for the node that is away: %+v, want that it is refused", r)
		}
		name := topic.ForNodeCommand(topic.NodeCommand, "plant", node(1), fmt.Sprintf("%032x", 1000))
		if last := p.received[len(p.received)-1]; last.Code != "" || p.retained[name] == 0 {
			t.Errorf("received as %+v, and not published to the other node", last)
		}
	})
}

// TestOwnKinds has the LO carry commands out itself, also for a node that is away; none is published to a node.
func TestOwnKinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 2)
		defer func() { p.stop() }()
		send := func(n int, args any) {
			t.Helper()
			id := wire.ID(fmt.Sprintf("%032x", n))
			c := wire.Command{V: 1, ID: id, Site: "plant", Kind: wire.Hold, Nodes: []protocol.NodeID{node(0), node(1)}, Args: protocol.Marshal(args), IssuedMillis: t0, DeadlineMillis: t0 + time.Hour.Milliseconds()}
			statement, err := wire.Sign(p.co.Key, &c)
			if err != nil {
				t.Fatal(err)
			}
			p.handle(id, protocol.Marshal(&wire.Envelope{V: 1, Statement: statement, KeySet: p.co.KeySet}))
		}
		last := func() wire.Result {
			t.Helper()
			p.mu.Lock()
			defer p.mu.Unlock()
			r := p.results[node(1)]
			if len(r) == 0 {
				t.Fatal("no result")
			}
			return r[len(r)-1]
		}
		send(1, wire.Restriction{Reason: "a batch runs"})
		if len(p.executed) != 0 {
			t.Fatal("carried out before the time of the CO is known")
		}
		p.answer(t0)
		if diff := cmp.Diff([]string{"hold n00000", "hold n00001"}, p.executed); diff != "" {
			t.Errorf("carried out (-want +got):\n%s", diff)
		}
		if r := last(); r.State != wire.Done || r.Output != "so it is" || r.ByLO {
			t.Errorf("result %+v, want done, in the place of the node", r)
		}
		p.fail(errors.New("no room"))
		send(2, wire.Restriction{Reason: "a batch runs"})
		p.fail(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(p.executed) != 4 || last().State != wire.Done {
			t.Errorf("after a fault that is over: carried out %v, %+v", p.executed, last())
		}
		p.fail(protocol.Errorf(protocol.NotFound, "the site has no node"))
		send(3, wire.Restriction{Reason: "a batch runs"})
		if r := last(); r.State != wire.Failed || r.Code != wire.NoNode {
			t.Errorf("for a node that is no more: %+v", r)
		}
		send(4, wire.Restriction{})
		if r := last(); r.State != wire.Refused || r.Code != wire.BadArguments {
			t.Errorf("without a reason: %+v", r)
		}
		p.fail(errors.New("no room"))
		send(5, wire.Restriction{Reason: "a batch runs"})
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if r := last(); r.State != wire.Expired || r.Code != wire.ExecutionFailed {
			t.Errorf("past its deadline without room on the disk: %+v", r)
		}
		if p.published != 0 {
			t.Errorf("%d messages to nodes", p.published)
		}
	})
}

// TestAsked answers nodes that ask for the time: with the latest that it can be, or that it is not known; and then it asks itself.
func TestAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 1)
		defer func() { p.stop() }()
		var answers []wire.Time
		p.s.o.Publish = func(_ context.Context, _ string, payload []byte, _ bool) error {
			var m wire.Time
			err := wire.Unmarshal(payload, &m)
			answers = append(answers, m)
			return err
		}
		ask := func(nonce uint64) {
			if err := p.s.Accept(t.Context(), topic.Topic{Kind: topic.NodeTimeAsk, Node: node(0)}, protocol.Marshal(&wire.TimeAsk{V: 1, Nonce: nonce})); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if len(p.asks) != 0 {
			t.Error("the LO asks though nothing waits")
		}
		ask(7)
		if len(answers) != 1 || answers[0].Nonce != 7 || answers[0].UnixMillis != 0 || len(p.asks) != 1 {
			t.Errorf("answers %+v, %d questions", answers, len(p.asks))
		}
		time.Sleep(time.Second)
		p.answer(t0)
		time.Sleep(10 * time.Second)
		ask(8)
		if got := answers[1].UnixMillis - t0; got < 11_000 || got > 11_020 {
			t.Errorf("answer %d ms after what the CO said, 11 s after the question", got)
		}
		if len(p.asks) != 1 {
			t.Errorf("%d questions", len(p.asks))
		}
	})
}

// TestEveryKindIsAccepted has each message of a node about commands decoded.
func TestEveryKindIsAccepted(t *testing.T) {
	t.Parallel()
	s, err := New(Options{Site: "plant", Live: none{}, SinceBoot: func() time.Duration { return 0 }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []topic.Kind{topic.CommandResult, topic.NodeLive, topic.NodeTimeAsk} {
		if err := s.Accept(t.Context(), topic.Topic{Kind: kind, Node: "n1"}, []byte("no CBOR")); !IsOf(kind) || protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%s: %v, want that it cannot be decoded", kind, err)
		}
	}
	if err := s.Accept(t.Context(), topic.Topic{Kind: topic.Heartbeat}, nil); protocol.KindOf(err) != protocol.Denied {
		t.Errorf("another topic: %v", err)
	}
}

var _ Store = (*store.Store)(nil)
