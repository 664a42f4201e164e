package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/co/db"
	datadb "github.com/colonyfleet/colony/co/db/data"
	"github.com/colonyfleet/colony/co/db/dbtest"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/ingest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/stream"
)

// A commitCase is one line of the table: sites that each send a batch of some events
// as soon as the one before is committed.
type commitCase struct {
	sites, events int
	watchers      int
	flush         time.Duration // how much longer than this machine's disk a flush takes
	replicas      int
}

// String names a case for the option -cases.
func (c commitCase) String() string {
	name := fmt.Sprintf("%dx%d", c.sites, c.events)
	if c.watchers > 0 {
		name += fmt.Sprintf(" watchers=%d", c.watchers)
	}
	if c.flush > 0 {
		name += fmt.Sprintf(" flush=%s", c.flush)
	}
	if c.replicas > 1 {
		name += fmt.Sprintf(" replicas=%d", c.replicas)
	}
	return name
}

func commitCases(l load) []commitCase {
	var list []commitCase
	many := l.sites[max(0, len(l.sites)-2)]
	for _, flush := range []time.Duration{0, 5 * time.Millisecond} {
		for _, events := range []int{1, 200} {
			for _, sites := range l.sites {
				list = append(list, commitCase{sites, events, 0, flush, 1})
			}
		}
	}
	for _, events := range []int{1, 200} {
		list = append(list, commitCase{many, events, l.watch, 0, 1})
	}
	for _, events := range []int{1, 200} {
		list = append(list, commitCase{many, events, 0, 5 * time.Millisecond, 2})
	}
	return list
}

// senders are the sites of a fleet that was seeded.
type senders struct {
	fleet   dbtest.Size
	acked   []atomic.Uint64 // of each site: the last sequence that is committed
	encoder *stream.Encoder
}

func measureIngest(ctx context.Context, s *server, l load, out io.Writer) error {
	all := &senders{fleet: l.fleet, acked: make([]atomic.Uint64, l.fleet.Sites), encoder: stream.NewEncoder(stream.Least)}
	fmt.Fprint(out, "\n### Events\n\nOf ten events four are transitions, four repeat a state, and two are of a node that goes and comes.\n\n",
		"| sites | events a batch | watchers | flush longer by ms | replicas | events/s | mean ms | p99 ms | errors | µs of sites | µs of CO | µs of PostgreSQL |\n",
		"|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range commitCases(l) {
		if l.cases != nil && !l.cases.MatchString(c.String()) {
			continue
		}
		if c.sites > l.fleet.Sites || c.flush > 0 && s.delay == "" {
			fmt.Fprintf(out, "| %d | %d | %d | %s | %d | left out | | | | | | |\n", c.sites, c.events, c.watchers, millis(c.flush), c.replicas)
			continue
		}
		if err := all.measure(ctx, s, c, l.ingest, out); err != nil {
			return err
		}
	}
	return nil
}

// A replica is the part of a CO that commits events.
type replica struct {
	db *db.DB
	in *ingest.Ingest
}

func (a *senders) start(ctx context.Context, s *server) (*replica, *fleetdb.Store, error) {
	d, err := db.Open(ctx, s.url(), db.Options{})
	if err != nil {
		return nil, nil, err
	}
	store := fleetdb.New(d)
	return &replica{d, ingest.New(ingest.Options{
		Store: store, Data: datadb.New(d), Deliver: func(context.Context, []fleet.Delivery) error { return nil },
		PublishAck: func(_ context.Context, site protocol.SiteID, payload []byte) error {
			var ack protocol.Ack
			var i int
			if _, err := fmt.Sscanf(string(site), "site-%05d", &i); err != nil {
				return err
			}
			err := protocol.Unmarshal(payload, &ack)
			a.acked[i].Store(ack.Seq)
			return err
		},
	})}, store, nil
}

func (a *senders) measure(ctx context.Context, s *server, c commitCase, length time.Duration, out io.Writer) error {
	var parts []*replica
	background, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for range c.replicas {
		r, store, err := a.start(ctx, s)
		if err != nil {
			return err
		}
		defer r.db.Close()
		defer r.in.Close()
		parts = append(parts, r)
		a.watch(background, &running, r.db, store, c.watchers/c.replicas)
	}
	if s.delay != "" {
		if err := s.slow(c.flush); err != nil {
			return err
		}
		defer func() { _ = s.slow(0) }() // the next case sets it anew
	}
	a.send(ctx, parts, c, length/4) // warms caches and statements up
	own, postgres := ownCPU(), s.cpu()
	t := a.send(ctx, parts, c, length)
	own, postgres = ownCPU()-own, s.cpu()-postgres
	sorted(t.latencies)
	var sum time.Duration
	for _, d := range t.latencies {
		sum += d
	}
	n, sites := max(1, t.events), a.cost(c)
	fmt.Fprintf(out, "| %d | %d | %d | %s | %d | %.0f | %s | %s | %d | %.1f | %.1f | %.1f |\n", c.sites, c.events, c.watchers, millis(c.flush), c.replicas,
		float64(t.events)/t.took.Seconds(), millis(sum/time.Duration(max(1, len(t.latencies)))), millis(percentile(t.latencies, 0.99)), t.errors,
		sites, max(0, float64(own.Microseconds())/float64(n)-sites), float64(postgres.Microseconds())/float64(n))
	fmt.Fprintf(os.Stderr, "%s: %.0f events/s\n", c, float64(t.events)/t.took.Seconds())
	return ctx.Err()
}

// cost is the microseconds of processor time in which the sites of a case make one event
// and their part of its batch.
func (a *senders) cost(c commitCase) float64 {
	const events = 100_000
	rounds := max(1, events/c.events)
	began := ownCPU()
	for i := range rounds {
		a.batch(i%c.sites, c.events)
	}
	return float64((ownCPU() - began).Microseconds()) / float64(rounds*c.events)
}

// watch opens streams of server-sent events that want a kind which does not come, and
// gives ids to the events.
func (a *senders) watch(ctx context.Context, running *sync.WaitGroup, d *db.DB, store *fleetdb.Store, n int) {
	server := newAPI(d)
	running.Go(func() { server.Run(ctx, store.Listen(ctx)) })
	for range n {
		running.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/events?kind=anomaly", nil)
			if err != nil {
				return
			}
			r.Header.Set("Accept", "text/event-stream")
			server.ServeHTTP(&discard{http.Header{}}, r)
		})
	}
}

// discard is a client that reads everything.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Flush()                      {}

// totals are what the sites of a case sent.
type totals struct {
	mu        sync.Mutex // protects what follows
	events    int
	errors    int
	latencies []time.Duration
	took      time.Duration
}

func (t *totals) add(events int, took time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.errors++
		return
	}
	t.events += events
	t.latencies = append(t.latencies, took)
}

// send has each site send for a time. What is under way at its end is waited for and counted.
func (a *senders) send(ctx context.Context, parts []*replica, c commitCase, length time.Duration) *totals {
	t := &totals{}
	var sites sync.WaitGroup
	began := time.Now()
	for i := range c.sites {
		to := parts[i%len(parts)].in
		sites.Go(func() {
			for turn := 0; time.Since(began) < length && ctx.Err() == nil; turn++ {
				payload := a.batch(i, c.events)
				sent := time.Now()
				err := to.Accept(ctx, protocol.SiteID(dbtest.Site(i)), payload)
				t.add(c.events, time.Since(sent), err)
			}
		})
	}
	sites.Wait()
	t.took = time.Since(began)
	return t
}

// batch is the next batch of a site.
func (a *senders) batch(site, size int) []byte {
	seq := a.acked[site].Load()
	events := make([]protocol.Event, size)
	for i := range events {
		events[i] = a.event(site, seq+uint64(i))
	}
	b := protocol.Batch{
		V: protocol.Version, Epoch: "e", First: seq + 1, Count: uint32(size), SentMillis: time.Now().UnixMilli(),
		Backlog: protocol.Backlog{Last: seq + uint64(size), Bytes: 100},
	}
	a.encoder.Pack(&b, stream.Sequence(events))
	return protocol.Marshal(b)
}

// event is the n-th event of a site. Each ten of them are of one node.
func (a *senders) event(site int, n uint64) protocol.Event {
	now := time.Now().UnixMilli()
	turn, step := int(n/10), n%10
	node := turn % a.fleet.Nodes
	id := protocol.NodeID(dbtest.Node(node))
	if step >= 8 {
		kind := protocol.NodeOfflineEvent
		if step == 9 {
			kind = protocol.NodeOnlineEvent
		}
		return protocol.Event{UnixMillis: now, Kind: kind, Node: id, Body: protocol.Marshal(protocol.Presence{V: protocol.Version, Online: step == 9, Version: "1.4.0"})}
	}
	state := [8]lifecycle.State{
		lifecycle.Failed, lifecycle.Installed, lifecycle.Installed, lifecycle.Failed, lifecycle.Failed, lifecycle.Installed, lifecycle.Installed, lifecycle.Installed,
	}[step]
	deployment := node / (a.fleet.Nodes / a.fleet.Deployments)
	return protocol.Event{UnixMillis: now, Kind: protocol.StatusEvent, Node: id, Body: protocol.Marshal(protocol.DeploymentStatus{
		V: protocol.Version, Node: id, Deployment: protocol.DeploymentName(dbtest.Deployment(deployment)), State: state, Actor: lifecycle.EN,
		Digest: dbtest.Digest(site, deployment), AppVersion: dbtest.Version(site, deployment), Attempt: 1, UnixMillis: now, Message: "healthy",
	})}
}
