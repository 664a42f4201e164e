// Package ingest is the CO's receiver of the sites' streams: it decodes their batches
// within bounds, has each committed, and answers with the position that the database
// then holds. The broker acknowledges a batch of events after its commit, so that an
// error reaches the site as back-pressure; one of machine data, or behind a shared
// subscription, may be acknowledged before. The contract is that of package stream,
// for each stream of a site by itself.
package ingest

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// commitTimeout bounds the commit of one batch of machine data. turnTimeout is that of
// events with the wait for their turn, which the store bounds no other way: under
// overload the sites wait for late acknowledgements, and do not send everything again.
const (
	commitTimeout = 30 * time.Second
	turnTimeout   = 5 * time.Minute
)

// dataAtOnce bounds how many batches of machine data are with the database at
// once, of all sites, so that events never wait for a connection that data holds.
const dataAtOnce = 8

// defaultPatience is how long Accept waits for the commit of machine data: long enough
// for one that fails at once to be refused, and short enough for the events behind it.
const defaultPatience = 50 * time.Millisecond

// A Store commits batches of events.
type Store interface {
	// CommitBatch commits what is new in events and returns the position.
	CommitBatch(ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event) (protocol.Ack, error)
}

// A DataStore commits batches of machine data.
type DataStore interface {
	// CommitData commits what is new in events and returns the position. It hands what
	// is new to deliver before it commits.
	CommitData(ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event,
		deliver func(context.Context, []fleet.Delivery) error) (protocol.Ack, error)
}

// Options are what an Ingest needs. Store, Data, PublishAck and Deliver are required.
type Options struct {
	Store Store
	Data  DataStore
	// PublishAck sends an encoded protocol.Ack to a site.
	PublishAck func(ctx context.Context, site protocol.SiteID, payload []byte) error
	// Deliver hands messages of a site to the CO's broker, in order. An error means
	// that the site sends them again.
	Deliver func(ctx context.Context, list []fleet.Delivery) error
	// Committed is called with the events of a site after they are committed, those that were
	// committed before included. It must not wait. Nil: nothing is called.
	Committed func(site protocol.SiteID, events []protocol.Event)
	// Shared says that Accept gets the batches of all sites one after the other, and that
	// other programs may receive any of a stream's, as from a shared subscription (MQTT 5,
	// section 4.8.2). Then Accept waits for no commit, and a batch that is ahead of its
	// stream is held for a moment, because another program may be committing what is
	// before it.
	Shared bool
	// Patience is how long Accept waits for the commit of a batch of machine data, which
	// then goes on by itself, so that the events behind it do not wait. Default 50 ms.
	Patience time.Duration
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// An Ingest commits batches of any number of sites and streams at once, those of one
// stream one after the other.
type Ingest struct {
	opts    Options
	log     *slog.Logger
	decoder *stream.Decoder
	queues  queues
	data    chan struct{} // holds a token for each batch of machine data at work

	ctx    context.Context //nolint:containedctx // the life of the Ingest, for what outlives an Accept
	cancel context.CancelFunc

	batches *prometheus.CounterVec
	seconds prometheus.Histogram
	bytes   prometheus.Counter
}

// New returns an Ingest. Close ends it.
func New(o Options) *Ingest {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	f := promauto.With(o.Registerer)
	in := &Ingest{
		opts: o, log: o.Logger.With("component", "ingest"), decoder: stream.NewDecoder(0), queues: queues{streams: map[streamKey]*queue{}},
		data: make(chan struct{}, dataAtOnce),
		batches: f.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_co_batches_total", Help: "Batches of sites' journals by result: ok, or the kind of the error.",
		}, []string{"result"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "colony_co_batch_seconds", Help: "Time from a batch's arrival to its commit.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		bytes: f.NewCounter(prometheus.CounterOpts{
			Name: "colony_co_batch_bytes_total", Help: "Bytes of batches as they came over the wire.",
		}),
	}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	return in
}

// Close gives up what is not committed yet, and waits for it. The sites send it again.
func (in *Ingest) Close() {
	in.cancel()
	in.queues.close()
}

// Accept decodes an encoded protocol.Batch of a site, commits it and publishes the Ack. The error's
// kind is Invalid where the batch cannot be read, which sending it again does not change, and
// Unavailable where the database is away. A failure to send the Ack is no error: the site asks
// again. After nil the commit may still be running, see Options; then only the Ack shows the
// outcome.
func (in *Ingest) Accept(ctx context.Context, site protocol.SiteID, payload []byte) error {
	began := time.Now()
	var b protocol.Batch
	if err := protocol.Unmarshal(payload, &b); err != nil {
		in.batches.WithLabelValues(string(protocol.KindOf(err))).Inc()
		return err
	}
	in.bytes.Add(float64(len(payload)))
	j := &job{stream: streamKey{site, b.Stream}, batch: b, size: len(payload) + jobBytes, began: began, done: make(chan error, 1)}
	j.unwatched = in.opts.Shared
	idle, err := in.queues.add(in, j)
	if err != nil {
		in.batches.WithLabelValues(string(protocol.KindOf(err))).Inc()
		return err
	}
	switch {
	case in.opts.Shared:
		return nil
	case b.Stream == "":
		return in.await(ctx, j, nil)
	case idle:
		timer := time.NewTimer(in.opts.Patience)
		defer timer.Stop()
		return in.await(ctx, j, timer.C)
	default: // one before it is waited for already
		return in.queues.leave(j)
	}
}

// await returns what became of a batch, or nil where that is not known in time.
func (in *Ingest) await(ctx context.Context, j *job, late <-chan time.Time) error {
	select {
	case err := <-j.done:
		return err
	case <-late:
		return in.queues.leave(j)
	case <-ctx.Done():
		_ = in.queues.leave(j) // the site gets the error, and sends the batch again
		return protocol.Errorf(protocol.Unavailable, "commit batch of site %s: it is not committed yet: %w", j.stream.site, context.Cause(ctx))
	}
}

// attempt commits one batch, as far as it follows what is committed.
func (in *Ingest) attempt(j *job) (protocol.Ack, error) {
	events, err := in.decoder.Events(j.batch)
	if err != nil {
		return protocol.Ack{}, err
	}
	timeout := commitTimeout
	if j.batch.Stream == "" {
		timeout = turnTimeout
	}
	ctx, cancel := context.WithTimeout(in.ctx, timeout)
	defer cancel()
	b := j.batch
	b.Events = nil
	return in.commit(ctx, j.stream.site, b, events)
}

// answer publishes an Ack.
func (in *Ingest) answer(site protocol.SiteID, ack protocol.Ack) {
	ctx, cancel := context.WithTimeout(in.ctx, commitTimeout)
	defer cancel()
	if err := in.opts.PublishAck(ctx, site, protocol.Marshal(ack)); err != nil {
		in.log.WarnContext(ctx, "ack not sent, the site will ask", "site_id", site, "stream", ack.Stream, "seq", ack.Seq, "err", err)
	}
}

func (in *Ingest) commit(ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event) (protocol.Ack, error) {
	if b.Stream == "" {
		ack, err := in.opts.Store.CommitBatch(ctx, site, b, events)
		if err == nil && in.opts.Committed != nil {
			in.opts.Committed(site, events)
		}
		return ack, err
	}
	select {
	case in.data <- struct{}{}:
		defer func() { <-in.data }()
	case <-ctx.Done():
		return protocol.Ack{}, protocol.Errorf(protocol.Unavailable, "commit data of site %s: others are not committed yet: %w", site, context.Cause(ctx))
	}
	return in.opts.Data.CommitData(ctx, site, b, events, in.opts.Deliver)
}

// Ask makes a site report the Backlog of every stream that it has, each with a batch
// of Count 0. The Ack names no stream: one with Ask goes to all streams of the site. A
// site that is not connected is not asked, and there is no error.
func (in *Ingest) Ask(ctx context.Context, site protocol.SiteID) error {
	return in.opts.PublishAck(ctx, site, protocol.Marshal(protocol.Ack{V: protocol.Version, Ask: true}))
}
