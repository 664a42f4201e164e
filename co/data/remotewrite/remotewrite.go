// Package remotewrite sends numbers of the sites' machine data to Prometheus, or to
// any other server of its remote write protocol, version 1.0. It follows the stored
// messages with a position of its own in the database: what was not accepted is sent again,
// after a restart too, so that each sample arrives at least once.
package remotewrite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// reader is the name under which the database holds how far this package has come.
const reader = "remote-write"

const (
	// pageMessages is how many messages of a rule are read at a time.
	pageMessages = 1000
	// batchSamples is from how many samples on a request is sent.
	batchSamples = 2000
	// atOnce is how many requests are under way at a time. Each has samples of other rules, so that those of a series are sent in
	// their sequence.
	atOnce = 4
	// maxRetryAfter bounds how long a server may make us wait.
	maxRetryAfter = 5 * time.Minute
)

// A Store is the CO's record. Errors of kind Unavailable are tried again.
type Store interface {
	// MetricRules lists the rules with a metric that have messages which the reader has
	// not read, with the position that SaveRead recorded.
	MetricRules(ctx context.Context, reader string) ([]fleet.MetricRule, error)
	// Messages returns a page of stored messages that f selects.
	Messages(ctx context.Context, f fleet.MessageFilter) (fleet.MessagePage, error)
	SaveRead(ctx context.Context, reader string, site protocol.SiteID, at fleet.Positions) error
}

// Options are what a Writer works with. Store and URL are needed.
type Options struct {
	Store Store
	// URL is where samples are posted, such as http://prometheus:9090/api/v1/write.
	URL string
	// Headers go with each request.
	Headers map[string]string
	// CredentialFile holds the value of the header Authorization, such as "Bearer x". It
	// is read for each request, so that it may be replaced. Empty: no such header.
	CredentialFile string
	// Timeout bounds one request. Default 30 s.
	Timeout time.Duration
	// Interval is how often the record is asked for new messages. Default 1 s.
	Interval time.Duration
	// MinRetry and MaxRetry bound the wait after a failure. Default 500 ms, 30 s.
	MinRetry, MaxRetry time.Duration
	// Lock waits until this is the only active Writer. The context that it returns ends
	// when the lock is lost; release gives it back. Nil: there is no other.
	Lock       func(ctx context.Context) (held context.Context, release func(), err error)
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// A Writer sends samples. Create it with New, then call Run.
type Writer struct {
	opts    Options
	log     *slog.Logger
	client  *http.Client
	metrics metrics
	// hopeless is set while the server refuses all samples.
	hopeless atomic.Bool
}

type metrics struct {
	sent, skipped, retries prometheus.Counter
	refused                *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	f := promauto.With(r)
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: name, Help: help}
	}
	return metrics{
		sent:    f.NewCounter(opts("colony_co_remote_write_samples_total", "Samples that the remote write server accepted.")),
		skipped: f.NewCounter(opts("colony_co_remote_write_not_numbers_total", "Payloads and fields that hold no number and were not sent.")),
		retries: f.NewCounter(opts("colony_co_remote_write_retries_total", "Requests to the remote write server that failed and were tried again.")),
		refused: f.NewCounterVec(opts("colony_co_remote_write_refused_total", "Samples that the remote write server refused and that are not sent again."), []string{"status"}),
	}
}

// New returns a Writer. The error lists every fault of o.
func New(o Options) (*Writer, error) {
	var errs []error
	if o.Store == nil {
		errs = append(errs, errors.New("no store"))
	}
	if u, err := url.Parse(o.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		errs = append(errs, fmt.Errorf("url %q: want one such as http://prometheus:9090/api/v1/write", o.URL))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("remote write: %w", errors.Join(errs...))
	}
	for _, d := range []struct {
		field    *time.Duration
		standard time.Duration
	}{{&o.Timeout, 30 * time.Second}, {&o.Interval, time.Second}, {&o.MinRetry, 500 * time.Millisecond}, {&o.MaxRetry, 30 * time.Second}} {
		if *d.field <= 0 {
			*d.field = d.standard
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Lock == nil {
		o.Lock = func(ctx context.Context) (context.Context, func(), error) { return ctx, func() {}, nil }
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	return &Writer{
		opts: o, log: o.Logger.With("component", "remotewrite"), metrics: newMetrics(o.Registerer),
		// A redirection is not followed: net/http would mostly turn the POST into a GET,
		// whose answer says nothing about the samples.
		client: &http.Client{Timeout: o.Timeout, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// Run works until ctx ends, and then returns nil. It waits for the lock, and
// whenever that is lost it begins again from the record.
func (w *Writer) Run(ctx context.Context) error {
	defer w.client.CloseIdleConnections()
	tries := w.tries()
	for ctx.Err() == nil {
		held, release, err := w.opts.Lock(ctx)
		if err == nil {
			tries.Reset()
			w.session(held)
			release()
			continue
		}
		if ctx.Err() == nil {
			w.log.WarnContext(ctx, "remote write waits for its lock", "err", err)
			_ = tries.Wait(ctx) // its end ends the loop, too
		}
	}
	return nil
}

// session works while ctx lasts.
func (w *Writer) session(ctx context.Context) {
	tries := w.tries()
	for ctx.Err() == nil {
		more, err := w.sendAll(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			w.log.WarnContext(ctx, "samples not sent, trying again", "err", err)
			_ = tries.Wait(ctx) // its end ends the loop, too
		case more:
			tries.Reset()
		default:
			tries.Reset()
			_ = retry.Sleep(ctx, w.opts.Interval)
		}
	}
}

// sendAll sends one page of each rule that has something new, and reports whether any
// has more.
func (w *Writer) sendAll(ctx context.Context) (more bool, err error) {
	rules, err := w.opts.Store.MetricRules(ctx, reader)
	if err != nil {
		return false, err
	}
	work, within := errgroup.WithContext(ctx)
	work.SetLimit(atOnce)
	b := newBatch()
	for _, r := range rules {
		page, err := w.opts.Store.Messages(within, fleet.MessageFilter{Site: r.Site, Rule: r.Rule, After: r.After, Limit: pageMessages})
		if err != nil {
			if failed := work.Wait(); failed != nil {
				err = failed // why the others have ended
			}
			return false, err
		}
		more = more || page.More
		w.metrics.skipped.Add(float64(b.add(r, page)))
		if len(b.samples) >= batchSamples {
			full := b
			work.Go(func() error { return w.flush(within, full) }) // waits while there are as many as may be
			b = newBatch()
		}
	}
	work.Go(func() error { return w.flush(within, b) })
	return more, work.Wait()
}

// flush sends a batch, and records that its messages were read.
func (w *Writer) flush(ctx context.Context, b *batch) error {
	if err := w.deliver(ctx, b.ordered()); err != nil {
		return err
	}
	for _, site := range b.sites() {
		if err := w.opts.Store.SaveRead(ctx, reader, site, b.read[site]); err != nil {
			return err
		}
	}
	return nil
}

// A batch is what goes into one request, with how far it reaches.
type batch struct {
	samples []sample
	read    map[protocol.SiteID]fleet.Positions
}

func newBatch() *batch { return &batch{read: map[protocol.SiteID]fleet.Positions{}} }

// add adds a page of a rule and returns how many of its values are no numbers.
func (b *batch) add(r fleet.MetricRule, page fleet.MessagePage) (skipped int) {
	for _, m := range page.Messages {
		n, bad := samplesOf(r, m)
		b.samples = append(b.samples, n...)
		skipped += bad
	}
	if at, ok := page.Read[r.Rule]; ok {
		if b.read[r.Site] == nil {
			b.read[r.Site] = fleet.Positions{}
		}
		b.read[r.Site][r.Rule] = at
	}
	return skipped
}

func (b *batch) sites() []protocol.SiteID {
	out := make([]protocol.SiteID, 0, len(b.read))
	for site := range maps.Keys(b.read) {
		out = append(out, site)
	}
	return out
}
