package ingest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/co/db"
	datadb "github.com/colonyfleet/colony/co/db/data"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/ingest"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// acks is a place to publish to.
type acks struct {
	mu   sync.Mutex
	list []protocol.Ack
	err  error

	delivered []fleet.Delivery
}

func (a *acks) deliver(_ context.Context, list []fleet.Delivery) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.delivered = append(a.delivered, list...)
	return a.err
}

func (a *acks) publish(_ context.Context, _ protocol.SiteID, payload []byte) error {
	var ack protocol.Ack
	if err := protocol.Unmarshal(payload, &ack); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, ack)
	return a.err
}

func online(node string) protocol.Event {
	return protocol.Event{
		UnixMillis: 1, Kind: protocol.NodeOnlineEvent, Node: protocol.NodeID(node), Body: protocol.Marshal(protocol.Presence{V: 1, Online: true}),
	}
}

func batch(first uint64, encoding string, events ...any) protocol.Batch {
	var raw []byte
	for _, e := range events {
		raw = append(raw, protocol.Marshal(e)...)
	}
	if encoding == "zstd" {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			panic(err)
		}
		raw = w.EncodeAll(raw, nil)
		_ = w.Close()
	}
	return protocol.Batch{V: 1, Epoch: "e", First: first, Count: uint32(len(events)), Events: raw, Encoding: encoding}
}

// stores are the two stores of a database.
type stores struct {
	*fleetdb.Store
	data *datadb.Store
}

func setup(t *testing.T) (*ingest.Ingest, *stores, *acks) {
	t.Helper()
	db, err := db.Open(t.Context(), pgtest.New(t), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	a, s := &acks{}, &stores{fleetdb.New(db), datadb.New(db)}
	in := ingest.New(ingest.Options{Store: s, Data: s.data, PublishAck: a.publish, Deliver: a.deliver, Patience: time.Minute})
	t.Cleanup(in.Close)
	return in, s, a
}

func TestBatchesToThePosition(t *testing.T) {
	t.Parallel()
	in, s, a := setup(t)
	for i, b := range []protocol.Batch{
		{V: 1, Epoch: "e"}, // a probe
		batch(1, "zstd", online("n1"), online("n2")),
		batch(1, "zstd", online("n1"), online("n2")),
		batch(3, "", online("n3"), map[int]int{3: 9}, online("n4")), // the middle one is no event
	} {
		if err := in.Accept(t.Context(), "home", protocol.Marshal(b)); err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
	}
	got := ""
	for _, ack := range a.list {
		got += fmt.Sprintf("%s%d ", ack.Epoch, ack.Seq)
	}
	if got != "0 e2 e2 e5 " {
		t.Errorf("acks: %s", got)
	}
	events, err := s.Events(t.Context(), fleet.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	got = ""
	for _, e := range events {
		got += e.Kind + string(e.Node) + " "
	}
	if got != "node_onlinen1 node_onlinen2 node_onlinen3 anomaly node_onlinen4 " {
		t.Errorf("events: %s", got)
	}
}

func TestManySitesAtOnce(t *testing.T) {
	t.Parallel()
	in, s, a := setup(t)
	const sites, batches = 8, 10
	var g errgroup.Group
	for i := range sites * batches {
		site := protocol.SiteID(fmt.Sprintf("s%d", i%sites))
		// All batches of a site at once, in any order, until all are in.
		g.Go(func() error {
			for {
				site, err := s.Site(t.Context(), site)
				if err == nil && site.JournalSeq >= uint64(i/sites+1) {
					return nil
				}
				if err := in.Accept(t.Context(), protocol.SiteID(fmt.Sprintf("s%d", i%sites)), protocol.Marshal(batch(uint64(i/sites+1), "", online("n1")))); err != nil {
					return err
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(t.Context(), fleet.EventFilter{Limit: 1000})
	if err != nil || len(events) != sites*batches {
		t.Errorf("%d events, want %d: %v", len(events), sites*batches, err)
	}
	if len(a.list) < sites*batches {
		t.Errorf("%d acks", len(a.list))
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	good := batch(1, "", online("n1"))
	short, long, bomb := good, good, good
	short.Count, long.Count = 2, 1<<30
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb.Events, bomb.Encoding = w.EncodeAll(make([]byte, 64<<20), nil), "zstd"
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	other, torn, later := good, batch(1, "zstd", online("n1")), good
	other.Encoding, later.V = "lzma", 2
	torn.Events = torn.Events[:len(torn.Events)-3]
	extra := batch(1, "", online("n1"), online("n2"))
	extra.Count = 1
	for name, tc := range map[string]struct {
		payload []byte
		want    string
	}{
		"no CBOR":            {[]byte("hello"), "decode"},
		"fewer than said":    {protocol.Marshal(short), "decode"},
		"more than said":     {protocol.Marshal(extra), "decode"},
		"absurd count":       {protocol.Marshal(long), "batch says"},
		"bomb":               {protocol.Marshal(bomb), "decompress"},
		"torn":               {protocol.Marshal(torn), "decompress"},
		"unknown encoding":   {protocol.Marshal(other), "lzma"},
		"of a later program": {protocol.Marshal(later), "upgrade"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &acks{}
			in := ingest.New(ingest.Options{Store: refuse{}, Data: refuse{}, PublishAck: a.publish})
			t.Cleanup(in.Close)
			defer in.Close()
			err := in.Accept(t.Context(), "home", tc.payload)
			if protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), tc.want) || len(a.list) != 0 {
				t.Errorf("got %v, %d acks; want Invalid and %q", err, len(a.list), tc.want)
			}
		})
	}
}

// refuse is a store that is away.
type refuse struct{}

func (refuse) CommitBatch(context.Context, protocol.SiteID, protocol.Batch, []protocol.Event) (protocol.Ack, error) {
	return protocol.Ack{}, protocol.Errorf(protocol.Unavailable, "away")
}

func (r refuse) CommitData(
	ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event, _ func(context.Context, []fleet.Delivery) error,
) (protocol.Ack, error) {
	return r.CommitBatch(ctx, site, b, events)
}

func TestNoAckWithoutACommit(t *testing.T) {
	t.Parallel()
	a := &acks{}
	in := ingest.New(ingest.Options{Store: refuse{}, Data: refuse{}, PublishAck: a.publish})
	t.Cleanup(in.Close)
	err := in.Accept(t.Context(), "home", protocol.Marshal(batch(1, "", online("n1"))))
	if protocol.KindOf(err) != protocol.Unavailable || len(a.list) != 0 {
		t.Errorf("got %v, %d acks", err, len(a.list))
	}
}

// hang is a store that holds the first call until it is let go.
type hang struct{ entered, release chan struct{} }

func (h hang) CommitBatch(context.Context, protocol.SiteID, protocol.Batch, []protocol.Event) (protocol.Ack, error) {
	h.entered <- struct{}{}
	<-h.release
	return protocol.Ack{}, nil
}

func (h hang) CommitData(
	ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event, _ func(context.Context, []fleet.Delivery) error,
) (protocol.Ack, error) {
	return h.CommitBatch(ctx, site, b, events)
}

func TestOneSiteOneAfterTheOther(t *testing.T) {
	t.Parallel()
	h := hang{make(chan struct{}, 3), make(chan struct{})}
	a := &acks{err: errors.New("link down")} // a commit without its Ack is a success
	in := ingest.New(ingest.Options{Store: h, Data: h, PublishAck: a.publish})
	t.Cleanup(in.Close)
	payload := protocol.Marshal(batch(1, "", online("n1")))
	var g errgroup.Group
	g.Go(func() error { return in.Accept(t.Context(), "home", payload) })
	<-h.entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := in.Accept(ctx, "home", payload); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("a second batch of the site was let in: %v", err)
	}
	g.Go(func() error { return in.Accept(t.Context(), "away", payload) })
	<-h.entered // another site does not wait
	close(h.release)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if err := in.Accept(t.Context(), "home", payload); err != nil {
		t.Errorf("the turn was not given back: %v", err)
	}
}

func data(stream string, first uint64, payloads ...string) protocol.Batch {
	var events []any
	for _, p := range payloads {
		events = append(events, protocol.Event{UnixMillis: 1, Kind: protocol.DataEvent, Body: protocol.Marshal(protocol.DataMessage{
			V: 1, Topic: "t", Payload: []byte(p), QoS: 1,
		})})
	}
	b := batch(first, "zstd", events...)
	b.Stream, b.Backlog = stream, protocol.Backlog{Last: 9}
	return b
}

// TestEachStreamByItself sends events and data of one site; each stream has a position
// and Acks of its own.
func TestEachStreamByItself(t *testing.T) {
	t.Parallel()
	in, s, a := setup(t)
	for i, b := range []protocol.Batch{
		batch(1, "", online("n1"), online("n2")),
		data("data/temps", 1, "a"),
		data("data/doors", 1, "b", "c"),
		data("data/temps", 2, "d"),
		data("data/temps", 1, "a", "d"),
		batch(3, "", online("n3")),
	} {
		if err := in.Accept(t.Context(), "home", protocol.Marshal(b)); err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
	}
	got := ""
	for _, ack := range a.list {
		got += fmt.Sprintf("%s%d ", ack.Stream, ack.Seq)
	}
	if got != "2 data/temps1 data/doors2 data/temps2 data/temps2 3 " {
		t.Errorf("acks: %s", got)
	}
	got = ""
	for _, d := range a.delivered {
		got += string(d.Message.Payload)
	}
	if got != "abcd" {
		t.Errorf("delivered: %s", got)
	}
	streams, err := s.data.Streams(t.Context(), "home")
	if err != nil || len(streams) != 3 {
		t.Fatalf("%d streams, error %v, want 3 and none: %+v", len(streams), err, streams)
	}
	if got := streams[2].Name; got != "data/temps" {
		t.Errorf("the third stream is %s, want data/temps", got)
	}
	if got := streams[2].Queued(); got != 7 {
		t.Errorf("%d messages are queued, want 7", got)
	}
	if err := in.Accept(t.Context(), "home", protocol.Marshal(data("nonsense", 1, "a"))); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("a stream that cannot be: %v", err)
	}
	a.err = protocol.Errorf(protocol.Unavailable, "the broker is away")
	if err := in.Accept(t.Context(), "home", protocol.Marshal(data("data/temps", 3, "e"))); protocol.KindOf(err) != protocol.Unavailable || len(a.list) != 6 {
		t.Errorf("acknowledged though it was not delivered: %v, %d acks", err, len(a.list))
	}
}

// TestDataDoesNotHoldUpEvents hangs more batches of data in the database than are
// let in, from one site and from many.
func TestDataDoesNotHoldUpEvents(t *testing.T) {
	t.Parallel()
	h := slow{hang{make(chan struct{}, 100), make(chan struct{})}}
	in := ingest.New(ingest.Options{Store: h, Data: h, PublishAck: (&acks{}).publish, Patience: time.Minute})
	t.Cleanup(in.Close)
	var g errgroup.Group
	for i := range 20 {
		site := protocol.SiteID(fmt.Sprintf("s%d", i%3))
		g.Go(func() error {
			return in.Accept(t.Context(), site, protocol.Marshal(data(fmt.Sprintf("data/r%d", i), 1, "a")))
		})
	}
	for range 8 {
		<-h.entered
	}
	if err := in.Accept(t.Context(), "s0", protocol.Marshal(batch(1, "", online("n1")))); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := in.Accept(ctx, "s9", protocol.Marshal(data("data/x", 1, "a"))); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("more data at once than there may be: %v", err)
	}
	close(h.release)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// slow is a store in which only data hangs.
type slow struct{ hang }

func (slow) CommitBatch(context.Context, protocol.SiteID, protocol.Batch, []protocol.Event) (protocol.Ack, error) {
	return protocol.Ack{}, nil
}

func TestAsk(t *testing.T) {
	t.Parallel()
	a := &acks{}
	in := ingest.New(ingest.Options{Store: refuse{}, Data: refuse{}, PublishAck: a.publish})
	t.Cleanup(in.Close)
	if err := in.Ask(t.Context(), "home"); err != nil || len(a.list) != 1 || a.list[0] != (protocol.Ack{V: protocol.Version, Ask: true}) {
		t.Errorf("asked with %+v: %v", a.list, err)
	}
}

func FuzzAccept(f *testing.F) {
	f.Add(protocol.Marshal(batch(1, "", online("n1"))))
	f.Add(protocol.Marshal(batch(1, "zstd", online("n1"), 7)))
	f.Add(protocol.Marshal(data("data/temps", 1, "a")))
	f.Add(bytes.Repeat([]byte{0x9f}, 40))
	in := ingest.New(ingest.Options{Store: refuse{}, Data: refuse{}, PublishAck: (&acks{}).publish, Patience: time.Minute})
	f.Cleanup(in.Close)
	f.Fuzz(func(t *testing.T, payload []byte) {
		if err := in.Accept(t.Context(), "home", payload); err == nil {
			t.Error("no error from a store that is away")
		}
	})
}
