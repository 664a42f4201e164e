// Package ingest takes the batches of the sites' journals: it decodes them within
// bounds, has each committed, and answers with the position that the database
// then holds. It runs before the broker acknowledges the batch, so that an error
// reaches the site as back-pressure. The contract is that of the uplink.
package ingest

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/colonyfleet/colony/protocol"
)

// commitTimeout bounds one batch, the wait for the batch before it included.
const commitTimeout = 30 * time.Second

// A Store commits batches.
type Store interface {
	// CommitBatch commits what is new in events and returns the position.
	CommitBatch(ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event) (protocol.Ack, error)
}

// Options are what an Ingest needs. Store and PublishAck are required.
type Options struct {
	Store Store
	// PublishAck sends an encoded protocol.Ack to a site.
	PublishAck func(ctx context.Context, site protocol.SiteID, payload []byte) error
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// An Ingest takes batches of any number of sites at once, those of one site one
// after the other.
type Ingest struct {
	opts    Options
	log     *slog.Logger
	zstd    *zstd.Decoder
	turns   turns
	batches *prometheus.CounterVec
	seconds prometheus.Histogram
	bytes   prometheus.Counter
}

// New returns an Ingest.
func New(o Options) *Ingest {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	// With no reader and one goroutine each, these options cannot fail.
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxEvents), zstd.WithDecoderConcurrency(0))
	if err != nil {
		panic(err)
	}
	f := promauto.With(o.Registerer)
	return &Ingest{
		opts: o, log: o.Logger.With("component", "ingest"), zstd: decoder, turns: turns{sites: map[protocol.SiteID]*turn{}},
		batches: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "colony", Subsystem: "co", Name: "batches_total", Help: "Batches of sites' journals by result: ok, or the kind of the error.",
		}, []string{"result"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "colony", Subsystem: "co", Name: "batch_seconds", Help: "Time from a batch's arrival to its commit.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		bytes: f.NewCounter(prometheus.CounterOpts{
			Namespace: "colony", Subsystem: "co", Name: "batch_bytes_total", Help: "Bytes of batches as they came over the wire.",
		}),
	}
}

// Take decodes an encoded protocol.Batch of a site, commits it and publishes the
// Ack. The error's kind is Invalid where the batch cannot be read, which sending
// it again does not change, and Unavailable where the database is away. Where
// only the Ack could not be sent there is none: the site asks.
func (in *Ingest) Take(ctx context.Context, site protocol.SiteID, payload []byte) error {
	began := time.Now()
	err := in.take(ctx, site, payload)
	if err != nil {
		in.batches.WithLabelValues(string(protocol.KindOf(err))).Inc()
		return err
	}
	in.batches.WithLabelValues("ok").Inc()
	in.seconds.Observe(time.Since(began).Seconds())
	in.bytes.Add(float64(len(payload)))
	return nil
}

func (in *Ingest) take(ctx context.Context, site protocol.SiteID, payload []byte) error {
	b, events, err := in.decode(payload)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if err := in.turns.enter(ctx, site); err != nil {
		return err
	}
	defer in.turns.leave(site) // after the Ack, so that Acks stay in order
	ack, err := in.opts.Store.CommitBatch(ctx, site, b, events)
	if err != nil {
		return err
	}
	if err := in.opts.PublishAck(ctx, site, protocol.Marshal(ack)); err != nil {
		in.log.WarnContext(ctx, "ack not sent, the site will ask", "site_id", site, "seq", ack.Seq, "err", err)
	}
	return nil
}

// turns lets the batches of one site follow one another, so that they wait here
// and not on a connection to the database each.
type turns struct {
	mu    sync.Mutex
	sites map[protocol.SiteID]*turn
}

type turn struct {
	token chan struct{} // holds one token while nobody has the turn
	users int           // who has it or waits for it
}

func (t *turns) enter(ctx context.Context, site protocol.SiteID) error {
	t.mu.Lock()
	s := t.sites[site]
	if s == nil {
		s = &turn{token: make(chan struct{}, 1)}
		s.token <- struct{}{}
		t.sites[site] = s
	}
	s.users++
	t.mu.Unlock()
	select {
	case <-s.token:
		return nil
	case <-ctx.Done():
		t.drop(site)
		return protocol.Errorf(protocol.Unavailable, "take batch of site %s: the one before it is not committed yet: %w", site, context.Cause(ctx))
	}
}

func (t *turns) leave(site protocol.SiteID) {
	t.mu.Lock()
	t.sites[site].token <- struct{}{}
	t.mu.Unlock()
	t.drop(site)
}

func (t *turns) drop(site protocol.SiteID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.sites[site]; s.users > 1 {
		s.users--
	} else {
		delete(t.sites, site)
	}
}
