package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/colonyfleet/colony/protocol"
)

// Log is what the uplink needs of the journal.
type Log interface {
	// Position returns the epoch, the highest sequence that is forgotten, the
	// newest one, and what the newest one was when the journal was opened.
	Position() (epoch string, trimmed, last, opened uint64)
	// Bodies returns encoded events from the first after max(after, trimmed) on.
	// An error of kind Internal says that the journal is damaged there.
	Bodies(after uint64, maxRecords, maxBytes int) (first uint64, bodies [][]byte, err error)
	// AppendState appends an event that supersedes the one of the same key.
	AppendState(ctx context.Context, key string, body []byte) (seq uint64, err error)
	// Wait returns nil when there is an event after a sequence.
	Wait(ctx context.Context, after uint64) error
	Trim(through uint64) error
	// Renew begins a new epoch; have is what the centre holds of the old one.
	Renew(have uint64) error
	// Salvage gives up what is damaged, and counts it.
	Salvage() (lost uint64, err error)
}

// Options of an Uplink. Journal, Site, Publish and Snapshot must be given.
type Options struct {
	Journal Log
	Site    protocol.SiteID

	// Publish sends one message to the CO. It may return when the broker has
	// acknowledged it (QoS 1) or when it is written (QoS 0); it is called
	// concurrently, Window times at most, and must take messages in the order of
	// the calls. It ends with ctx.
	Publish func(ctx context.Context, topic string, payload []byte) error

	// Snapshot returns the whole current state of the site. It must show every
	// event that was in the journal when it was called: so change the state before
	// the Append, or hold over both a lock that Snapshot takes.
	Snapshot func() protocol.Snapshot

	// Window is how many batches may be without an Ack. 0 means 8.
	Window int
	// MaxBatchEvents and MaxBatchBytes (before compression) bound a batch; one
	// event always fits. 0 means 2,048 events and 256 KiB.
	MaxBatchEvents int
	MaxBatchBytes  int
	// MaxInFlightBytes bounds the bytes without an Ack. 0 means 1 MiB. On a slow
	// link the uplink stays far below by itself, see TargetLatency.
	MaxInFlightBytes int
	// TargetLatency is the time from sending a batch to its Ack that the uplink
	// steers at, so that it never fills the buffers of a slow link and the pings
	// of the connection get through. 0 means 2 s.
	TargetLatency time.Duration
	// ResendAfter is how long a batch that the broker has taken may be without an
	// Ack. 0 means 15 s.
	ResendAfter time.Duration
	// Rate limits the bytes per second of payload. 0 means no limit.
	Rate int

	Logger     *slog.Logger          // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Validate returns every fault of the options.
func (o Options) Validate() error {
	var faults []error
	need := func(ok bool, what string) {
		if !ok {
			faults = append(faults, fmt.Errorf("uplink: %s", what))
		}
	}
	need(o.Journal != nil, "Journal is missing")
	need(o.Site != "", "Site is missing")
	need(o.Publish != nil, "Publish is missing")
	need(o.Snapshot != nil, "Snapshot is missing")
	need(o.Rate >= 0, "Rate is negative")
	return errors.Join(faults...)
}

func (o Options) withDefaults() Options {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.Window, 8)
	def(&o.MaxBatchEvents, 2048)
	def(&o.MaxBatchBytes, 256<<10)
	def(&o.MaxInFlightBytes, 1<<20)
	if o.TargetLatency <= 0 {
		o.TargetLatency = 2 * time.Second
	}
	if o.ResendAfter <= 0 {
		o.ResendAfter = 15 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("component", "uplink", "site_id", string(o.Site))
	return o
}

// Status is what the uplink knows of its link.
type Status struct {
	Connected bool
	// Synced says that the centre has told where it stands since the connection.
	Synced        bool
	Acked         uint64 // highest sequence in the centre's database
	Sent          uint64 // highest sequence sent
	InFlightBytes int
	AckLatency    time.Duration // of the last batch; 0 before the first
	Gaps          uint64        // times that the centre had to be given a snapshot
}

// Uplink sends one journal. Connected, Ack and Status may be called concurrently
// with Run, and before it.
type Uplink struct {
	opts    Options
	log     *slog.Logger
	metrics *metrics
	limiter *rate.Limiter // nil: none
	encoder *zstd.Encoder
	grown   chan struct{}

	mu     sync.Mutex
	mail   mail
	posted chan struct{} // holds a token while mail may be unread
	status Status
}

// mail is what arrived since the loop looked last.
type mail struct {
	up, changed bool
	acks        []protocol.Ack
}

// maxMail bounds the Acks that wait; older ones say less than newer ones.
const maxMail = 256

// New returns an Uplink that is down. It panics on options that Validate refuses.
func New(o Options) *Uplink {
	if err := o.Validate(); err != nil {
		panic(err)
	}
	o = o.withDefaults()
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(512<<10), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		panic(err) // the options are constants
	}
	u := &Uplink{
		opts: o, log: o.Logger, encoder: encoder,
		grown: make(chan struct{}, 1), posted: make(chan struct{}, 1),
	}
	u.metrics = newMetrics(o.Registerer, u.backlog)
	if o.Rate > 0 {
		u.limiter = rate.NewLimiter(rate.Limit(o.Rate), max(o.Rate/4, 1024))
	}
	return u
}

func (u *Uplink) backlog() float64 {
	_, trimmed, last, _ := u.opts.Journal.Position()
	return float64(last - trimmed)
}

// Connected says that the link to the CO's broker went up or down. Each true
// begins with a probe, also where no false came before it.
func (u *Uplink) Connected(up bool) {
	u.post(func(m *mail) { m.up, m.changed = up, true })
}

// Ack hands in what came on the site's ack topic.
func (u *Uplink) Ack(a protocol.Ack) {
	u.post(func(m *mail) {
		if len(m.acks) == maxMail {
			m.acks = append(m.acks[:0], m.acks[maxMail/2:]...)
		}
		m.acks = append(m.acks, a)
	})
}

func (u *Uplink) post(put func(*mail)) {
	u.mu.Lock()
	put(&u.mail)
	u.mu.Unlock()
	select {
	case u.posted <- struct{}{}:
	default:
	}
}

// Status returns what the uplink knows now.
func (u *Uplink) Status() Status {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.status
}

// Run sends until ctx ends, and then returns nil. It returns an error where the
// journal is closed before. It may be called once.
func (u *Uplink) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	closed := make(chan error, 1)
	wg.Go(func() { u.watch(ctx, closed) })
	l := newLink(ctx, u, &wg)
	defer l.down()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		l.read(now)
		next := l.step(now)
		u.publishStatus(l)
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return nil
		case err := <-closed:
			return err
		case <-u.posted:
		case <-u.grown:
		case r := <-l.results:
			l.published(r, time.Now())
		case <-timer.C:
		}
	}
}

// watch wakes the loop when the journal grows.
func (u *Uplink) watch(ctx context.Context, closed chan<- error) {
	for {
		_, _, last, _ := u.opts.Journal.Position()
		if err := u.opts.Journal.Wait(ctx, last); err != nil {
			if ctx.Err() == nil {
				closed <- fmt.Errorf("uplink: wait for the journal: %w", err)
			}
			return
		}
		select {
		case u.grown <- struct{}{}:
		default:
		}
	}
}

func (u *Uplink) publishStatus(l *link) {
	u.metrics.connected.Set(float64(btoi(l.phase != idle)))
	u.metrics.inFlight.Set(float64(l.bytes))
	u.mu.Lock()
	defer u.mu.Unlock()
	u.status = Status{
		Connected: l.phase != idle, Synced: l.phase == sending, Acked: l.acked, Sent: l.sent,
		InFlightBytes: l.bytes, AckLatency: l.latency, Gaps: l.gaps,
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
