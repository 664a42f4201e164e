package downlink_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/data/downlink"
	"github.com/colonyfleet/colony/co/db"
	datadb "github.com/colonyfleet/colony/co/db/data"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const patience = 20 * time.Second

// A counted store counts transactions that put messages.
type counted struct {
	*datadb.Store
	sites *fleetdb.Store
	mu    sync.Mutex
	puts  int
	hold  chan struct{} // if not nil, puts wait for it
	fault error         // of the next put
}

func (c *counted) PutDown(ctx context.Context, list []fleet.DownMessage) error {
	c.mu.Lock()
	c.puts++
	hold, fault := c.hold, c.fault
	c.fault = nil
	c.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if fault != nil {
		return fault
	}
	return c.Store.PutDown(ctx, list)
}

// A bench is a CO's downlink on a real database and the LO of the site plant.
type bench struct {
	t  testing.TB
	st *counted
	d  *downlink.Downlink

	others []*downlink.Downlink

	mu      sync.Mutex
	deaf    bool // what is sent is lost
	mute    bool // acks are lost
	batches int
	most    int // batches in flight at a time
	open    int
	bytes   int
	stands  map[string]*stream.Position
	got     []string // payloads in order, per delivery
	expired int
	marks   []string
}

func newBench(t testing.TB, rules ...protocol.DataRule) *bench {
	t.Helper()
	db, err := db.Open(t.Context(), pgtest.New(t), db.Options{MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	b := &bench{t: t, st: &counted{Store: datadb.New(db), sites: fleetdb.New(db)}, stands: map[string]*stream.Position{}}
	b.rules(rules...)
	b.start()
	return b
}

func (b *bench) rules(rules ...protocol.DataRule) {
	b.t.Helper()
	var data fleet.SiteData
	for _, r := range rules {
		data.Rules = append(data.Rules, fleet.DataRule{DataRule: r})
	}
	if _, _, err := b.st.sites.SaveDesired(b.t.Context(), "plant", "c", nil, data); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) start() {
	b.d = downlink.New(downlink.Options{Store: b.st, Rules: b.st.sites.DataRules, Publish: b.receive, AckTimeout: 200 * time.Millisecond, RulesTTL: 50 * time.Millisecond})
	d := b.d
	b.t.Cleanup(func() { d.Close() })
}

// at returns where the LO stands in a stream.
func (b *bench) at(name string) *stream.Position {
	if b.stands[name] == nil {
		b.stands[name] = &stream.Position{}
	}
	return b.stands[name]
}

// receive plays the LO.
func (b *bench) receive(_ context.Context, site protocol.SiteID, payload []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if site != "plant" {
		b.t.Errorf("a batch for %s", site)
	}
	b.batches++
	b.bytes += len(payload)
	if b.deaf {
		return nil
	}
	var m protocol.Batch
	if err := protocol.Unmarshal(payload, &m); err != nil {
		b.t.Error(err)
		return nil
	}
	b.follow(m)
	if b.mute {
		return nil
	}
	ack := b.at(m.Stream).Ack(m)
	b.open++
	b.most = max(b.most, b.open)
	go func() { // the way back, to every replica
		for _, d := range append([]*downlink.Downlink{b.d}, b.others...) {
			if err := d.Ack("plant", protocol.Marshal(&ack)); err != nil {
				b.t.Error(err)
			}
		}
		b.mu.Lock()
		b.open--
		b.mu.Unlock()
	}()
	return nil
}

func (b *bench) follow(m protocol.Batch) {
	events, err := stream.NewDecoder(1).Events(m)
	if err != nil {
		b.t.Fatal(err)
	}
	at := b.at(m.Stream)
	advance := at.Follow(m, len(events))
	for _, e := range stream.Number(events, advance.Fresh, at.Seq) {
		switch e.Kind {
		case protocol.DataEvent:
			var d protocol.DataMessage
			if err := protocol.Unmarshal(e.Body, &d); err != nil {
				b.t.Fatal(err)
			}
			b.got = append(b.got, d.Topic+"="+string(d.Payload))
		case protocol.DataExpired:
			b.expired++
		default:
			b.marks = append(b.marks, string(e.Kind))
		}
	}
}

func (b *bench) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *bench) eventually(what string, holds func() bool) {
	b.t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		b.mu.Lock()
		ok := holds()
		b.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-deadline:
			b.mu.Lock()
			defer b.mu.Unlock()
			b.t.Fatalf("not in time: %s; got %d messages, the last %q, at %v", what, len(b.got), b.got[max(0, len(b.got)-3):], b.stands)
		case <-tick.C:
		}
	}
}

func (b *bench) accept(topic, payload string) {
	b.t.Helper()
	if err := b.d.Accept(b.t.Context(), "plant", protocol.DataMessage{Topic: topic, Payload: []byte(payload), QoS: 1}); err != nil {
		b.t.Fatal(err)
	}
}

func down(name string, topics ...string) protocol.DataRule {
	return protocol.DataRule{Name: name, Down: true, Topics: topics, Local: "plc/", QoS: 1}
}

func TestDelivers(t *testing.T) {
	t.Parallel()
	b := newBench(t, down("set", "set/#"))
	b.d.Online("plant", "one")
	b.accept("set/a", "1")
	b.accept("set/b", "2")
	b.eventually("both", func() bool { return len(b.got) == 2 })
	if diff := cmp.Diff([]string{"plc/set/a=1", "plc/set/b=2"}, b.got); diff != "" {
		t.Error(diff)
	}
	b.eventually("the queue is empty", func() bool {
		streams, err := b.st.DownStreams(t.Context(), "plant")
		return err == nil && streams[0].Queued() == 0 && streams[0].Bytes == 0
	})
	// A connection with nothing new costs one question, for what it never asked.
	before := b.batches
	b.d.Offline("plant", "one")
	b.d.Online("plant", "two")
	b.accept("set/a", "3")
	b.eventually("the third", func() bool { return len(b.got) == 3 })
	if b.batches != before+2 {
		t.Errorf("%d batches for one message on a new connection, want the question and the message", b.batches-before)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	small := down("small", "small")
	small.MaxBytes = 64 << 10
	b := newBench(t, small)
	for topic, want := range map[string]protocol.Kind{"other": protocol.NotFound, "small": protocol.Invalid} {
		err := b.d.Accept(t.Context(), "plant", protocol.DataMessage{Topic: topic, Payload: make([]byte, 70_000), QoS: 1})
		if protocol.KindOf(err) != want || !strings.Contains(err.Error(), "plant") {
			t.Errorf("%s: %v", topic, err)
		}
	}
	if err := b.d.Accept(t.Context(), "nowhere", protocol.DataMessage{Topic: "x"}); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("a site that does not exist: %v", err)
	}
	b.rules(down("new", "other"))
	b.d.RulesChanged("plant")
	b.accept("other", "1")
}

// TestOutage queues while the site is away, over a restart of the CO.
func TestOutage(t *testing.T) {
	t.Parallel()
	b := newBench(t, down("set", "set/#"))
	b.d.Online("plant", "one")
	b.accept("set/x", "0")
	b.eventually("the first", func() bool { return len(b.got) == 1 })
	b.d.Offline("plant", "one")
	const n = 3000
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range n / 8 {
				b.accept(fmt.Sprintf("set/%d", w), fmt.Sprint(i))
			}
		})
	}
	wg.Wait()
	t.Logf("%d messages in %d transactions", n, b.st.puts)
	if b.st.puts >= n {
		t.Errorf("%d transactions for %d messages of 8 clients at once", b.st.puts, n)
	}
	b.d.Close()
	b.start()
	began := time.Now()
	b.d.Online("plant", "two")
	b.eventually("all", func() bool { return len(b.got) == n+1 })
	t.Logf("%d messages down in %s, %d batches, %d bytes", n, time.Since(began), b.batches, b.bytes)
	next := map[string]int{}
	for _, m := range b.got[1:] {
		topic, v, _ := strings.Cut(m, "=")
		if v != fmt.Sprint(next[topic]) {
			t.Fatalf("%s came after %d messages of its topic", m, next[topic])
		}
		next[topic]++
	}
	b.eventually("the window", func() bool { return b.most > 0 && b.most <= 5 })
}

// TestLostOnTheWay loses batches, then acks.
func TestLostOnTheWay(t *testing.T) {
	t.Parallel()
	b := newBench(t, down("set", "#"))
	b.set(func() { b.deaf = true })
	b.d.Online("plant", "one")
	b.accept("a", "1")
	b.eventually("repetitions", func() bool { return b.batches >= 3 })
	b.set(func() { b.deaf = false })
	b.eventually("the message", func() bool { return len(b.got) == 1 })
	b.eventually("the ack", func() bool {
		streams, err := b.st.DownStreams(t.Context(), "plant")
		return err == nil && streams[0].Queued() == 0
	})
	b.set(func() { b.mute = true })
	b.accept("a", "2")
	before := 0
	b.eventually("the second", func() bool { before = b.batches; return len(b.got) == 2 })
	b.eventually("its repetition", func() bool { return b.batches > before })
	b.set(func() { b.mute = false })
	b.accept("a", "3")
	b.eventually("the third", func() bool { return len(b.got) == 3 })
	if diff := cmp.Diff([]string{"plc/a=1", "plc/a=2", "plc/a=3"}, b.got); diff != "" {
		t.Error(diff)
	}
}

// TestRetiredEpoch has the LO stand in another epoch after the CO's, as where the CO
// went on with another database for a while: the stream gets a new epoch.
func TestRetiredEpoch(t *testing.T) {
	t.Parallel()
	b := newBench(t, down("set", "#"))
	b.d.Online("plant", "one")
	b.accept("a", "1")
	b.eventually("the first", func() bool { return len(b.got) == 1 })
	b.eventually("the queue is empty", func() bool {
		streams, err := b.st.DownStreams(t.Context(), "plant")
		return err == nil && streams[0].Queued() == 0
	})
	b.d.Offline("plant", "one")
	var old string
	b.set(func() {
		at := b.at(protocol.DataStream("set"))
		old = at.Epoch
		at.Follow(protocol.Batch{Epoch: "of another database", First: 1}, 1)
	})
	b.d.Online("plant", "two")
	b.accept("a", "2")
	b.eventually("the second", func() bool { return len(b.got) == 2 })
	b.set(func() {
		if at := b.at(protocol.DataStream("set")); at.Epoch == old || at.Epoch == "of another database" {
			t.Errorf("the stream's epoch is %q, want a new one", at.Epoch)
		}
	})
	b.eventually("the queue is empty", func() bool {
		streams, err := b.st.DownStreams(t.Context(), "plant")
		return err == nil && streams[0].Queued() == 0
	})
}

// TestTwoReplicas has both serve the site: everything arrives once, in order.
func TestTwoReplicas(t *testing.T) {
	t.Parallel()
	b := newBench(t, down("set", "#"))
	first := b.d
	b.start()
	second := b.d
	b.others = append(b.others, first)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, d := range []*downlink.Downlink{first, second} { // of what the other one took
		wg.Go(func() { b.st.ListenDown(ctx, d.Notify) })
	}
	for i := range 200 {
		d := []*downlink.Downlink{first, second}[i%2]
		if err := d.Accept(t.Context(), "plant", protocol.DataMessage{Topic: "a", Payload: []byte(fmt.Sprint(i)), QoS: 1}); err != nil {
			t.Fatal(err)
		}
		if i == 50 {
			second.Online("plant", "one")
			first.Online("plant", "one")
		}
	}
	b.eventually("all", func() bool { return len(b.got) >= 200 })
	for i, m := range b.got {
		if m != fmt.Sprintf("plc/a=%d", i) {
			t.Fatalf("message %d is %s", i, m)
		}
	}
}

func TestPriority(t *testing.T) {
	t.Parallel()
	low, high := down("low", "l/#"), down("high", "h")
	low.Priority, high.Priority = protocol.LowPriority, protocol.HighPriority
	b := newBench(t, low, high)
	b.d.Notify("plant") // no site is connected
	for range 200 {
		b.accept("l/x", strings.Repeat("x", 4000))
	}
	b.accept("h", "!")
	b.d.Online("plant", "one")
	b.eventually("all", func() bool { return len(b.got) == 201 })
	if at := slices.Index(b.got, "plc/h=!"); at > 100 {
		t.Errorf("the message of high priority is number %d of %d", at, len(b.got))
	}
}

func TestExpired(t *testing.T) {
	t.Parallel()
	r := down("set", "#")
	r.TTLMillis = 60_000
	b := newBench(t, r)
	if err := b.d.Accept(t.Context(), "plant", protocol.DataMessage{Topic: "a", Payload: []byte("late"), QoS: 1, ExpiryMillis: 1}); err != nil {
		t.Fatal(err)
	}
	b.accept("a", "in time")
	b.eventually("a millisecond has passed", func() bool {
		got, err := b.st.DownBatch(t.Context(), fleet.DownRead{Site: "plant", Rule: "set", MaxBytes: 1 << 20})
		return err == nil && got.Events[0].Kind == protocol.DataExpired
	})
	b.d.Online("plant", "one")
	b.eventually("what holds", func() bool { return len(b.got) == 1 && b.expired == 1 })
	if b.got[0] != "plc/a=in time" {
		t.Errorf("got %v", b.got)
	}
}

// TestGather lets small batches wait for more.
func TestGather(t *testing.T) {
	t.Parallel()
	r := down("set", "#")
	r.BatchMillis = 300
	b := newBench(t, r)
	b.d.Online("plant", "one")
	began := time.Now()
	for i := range 10 {
		b.accept("a", fmt.Sprint(i))
	}
	b.eventually("all", func() bool { return len(b.got) == 10 })
	if took := time.Since(began); took < 250*time.Millisecond || b.batches > 4 {
		t.Errorf("10 messages in %d batches after %s, want them together after 300 ms", b.batches, took)
	}
}

// TestGroup checks that a failing caller does not fail the others.
func TestGroup(t *testing.T) {
	t.Parallel()
	b := newBench(t, down("set", "#"))
	b.st.hold = make(chan struct{})
	b.st.fault = protocol.Errorf(protocol.Internal, "one of them is to blame")
	errs := make(chan error, 5)
	for range 5 {
		go func() {
			errs <- b.d.Accept(t.Context(), "plant", protocol.DataMessage{Topic: "a", Payload: []byte("1"), QoS: 1})
		}()
	}
	close(b.st.hold)
	failed := 0
	for range 5 {
		if err := <-errs; err != nil {
			failed++
		}
	}
	if failed > 1 {
		t.Errorf("%d of 5 failed, want at most the one that was alone", failed)
	}
}

// BenchmarkAccept has 64 clients publish at once, each message after the one before.
func BenchmarkAccept(b *testing.B) {
	w := newBench(b, down("set", "#"))
	b.SetParallelism(32)
	payload := make([]byte, 200)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := w.d.Accept(b.Context(), "plant", protocol.DataMessage{Topic: "a", Payload: payload, QoS: 1}); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	b.ReportMetric(float64(b.N)/float64(w.st.puts), "messages/transaction")
}
