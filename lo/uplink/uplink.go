package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/lo/uplink/pace"
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
	// Wait returns nil when there is an event after a sequence.
	Wait(ctx context.Context, after uint64) error
	// Trim removes the records up to and including through.
	Trim(through uint64) error
	// Renew begins a new epoch; have is what the CO holds of the old one.
	Renew(have uint64) error
	// Salvage gives up what is damaged, and counts it.
	Salvage() (lost uint64, err error)
	// Backlog returns Last, Bytes, OldestMillis and Dropped, and the clock that
	// stamps the records: it never goes backwards while there are any.
	Backlog() (b protocol.Backlog, now time.Time)
}

// Missed says what the CO has missed where it is brought up to date.
type Missed struct {
	// Events is how many events it will never see, as far as that is known.
	Events uint64
	// Cause says, for people, why this process began the journal's epoch; empty: it did
	// not, or the CO has it.
	Cause string
}

// Options of an Uplink. Journal, Site, Publish and Resync must be given.
type Options struct {
	Journal Log
	Site    protocol.SiteID
	// Previous returns the epoch with whose numbers that of Journal goes on, as journal.Journal.Previous. Nil: it is not known.
	Previous func() protocol.PreviousEpoch

	// Stream is empty for the events of the site, and protocol.DataStream for machine
	// data: there, a message that has expired is sent as an empty event.
	Stream string
	// Priority orders the streams of one Gate: 0 goes first and is for the events;
	// machine data is 1 (high), 2 (normal) or 3 (low).
	Priority int
	// Gate is shared by the streams of one link. Nil: the stream has the link alone.
	Gate *pace.Gate

	// Publish hands one message for the CO to the network. One call ends before the next
	// begins, and messages must arrive in that order. The outcome that it returns waits
	// until the broker has acknowledged the message (QoS 1), or returns at once (QoS 0);
	// those of up to Window messages are waited for at once. Both end with ctx.
	Publish func(ctx context.Context, topic string, payload []byte) (outcome func(context.Context) error, err error)

	// Resync appends to the journal what brings a CO up to date that has missed
	// something, and returns the sequence of its last record. With an error of
	// kind Conflict it is appended, but other events came in between: Resync is
	// called again once the stream is calm. With one of kind Invalid nothing can be
	// appended, and nothing is. See Snapshots.
	Resync func(ctx context.Context, m Missed) (last uint64, err error)

	// MaxAge is how long an event of a data stream is valid. 0 means no end. The
	// expiry of a message itself counts where it is shorter.
	MaxAge time.Duration

	// Window is how many batches may be without an Ack. 0 means 32.
	Window int
	// MaxBatchEvents and MaxBatchBytes (before compression) bound a batch; one
	// event always fits. 0 means 8,192 events and 256 KiB. On a slow link batches
	// are smaller, so that what is urgent does not wait for one.
	MaxBatchEvents int
	MaxBatchBytes  int
	// Linger is how long an event may wait for others, to fill a batch. 0: no wait.
	Linger time.Duration
	// Uncompressed sends batches as they are.
	Uncompressed bool
	// MaxInFlightBytes bounds the bytes without an Ack. 0 means 1 MiB. On a slow
	// link the uplink stays far below by itself, see TargetLatency.
	MaxInFlightBytes int
	// TargetLatency is the time from sending a batch to its Ack that the uplink
	// steers at, so that it never fills the buffers of a slow link and the pings
	// of the connection get through. 0 means 2 s.
	TargetLatency time.Duration
	// ResendAfter is how long a batch that the broker has acknowledged may be without an
	// Ack. 0 means 15 s.
	ResendAfter time.Duration
	// Rate limits the bytes per second of payload where Gate is nil. 0 means no limit.
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
	need(o.Resync != nil, "Resync is missing")
	need(o.Rate >= 0, "Rate is negative")
	need(o.Rate == 0 || o.Gate == nil, "Rate is given beside Gate: give it to the Gate")
	need(o.Priority >= 0 && o.Priority < pace.BulkPriority, "Priority is not within 0 to 3")
	need((o.Stream == "") == (o.Priority == 0), "Priority 0 is for the stream of the events and for no other")
	return errors.Join(faults...)
}

func (o Options) withDefaults() Options {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.Window, 32)
	def(&o.MaxBatchEvents, 8192)
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
	o.Logger = o.Logger.With("component", "uplink", "site_id", string(o.Site), "stream", o.Stream)
	return o
}

// Status is what the uplink knows of its link.
type Status struct {
	Connected bool `json:"connected"` // whether the LO is connected to the CO
	// Synced says that the CO has said where it stands since the connection.
	Synced        bool          `json:"synced"`
	Acked         uint64        `json:"acked"`           // highest sequence in the CO's database
	Sent          uint64        `json:"sent"`            // highest sequence sent
	InFlightBytes int           `json:"inFlightBytes"`   // sent and not acknowledged
	AckLatency    time.Duration `json:"ackLatencyNanos"` // of the last batch; 0 before the first
	Gaps          uint64        `json:"gaps"`            // times that the CO had missed something, and was brought up to date
	// Backlog is what the stream would report to the CO now.
	Backlog protocol.Backlog `json:"backlog"`
}

// Uplink sends one journal. Connected, Ack and Status may be called concurrently
// with Run, and before it.
type Uplink struct {
	opts    Options
	log     *slog.Logger
	metrics *metrics
	gate    *pace.Gate
	grown   notify.Signal // the journal may have grown
	turn    notify.Signal // it may be the stream's turn
	expired atomic.Uint64 // events sent as expired that the CO has

	mu     sync.Mutex
	mail   mail
	posted notify.Signal // mail may be unread
	status Status
}

// mail is what arrived since the loop looked last.
type mail struct {
	up, changed bool
	acks        []protocol.Ack
	asked       bool // to report the backlog
}

// maxMail bounds the Acks that wait; older ones say less than newer ones.
const maxMail = 256

// New returns an Uplink that is down. It panics on options that Validate refuses.
func New(o Options) *Uplink {
	if err := o.Validate(); err != nil {
		panic(err)
	}
	o = o.withDefaults()
	if o.Gate == nil {
		o.Gate = pace.New(pace.Options{Rate: o.Rate})
	}
	u := &Uplink{
		opts: o, log: o.Logger, gate: o.Gate,
		grown: notify.New(), turn: notify.New(), posted: notify.New(),
	}
	u.metrics = newMetrics(o.Registerer, o.Stream, u.backlog)
	if err := u.metrics.register(); err != nil {
		u.log.Warn("metrics of the stream are not shown", "err", err)
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

// Ack hands in what came on the site's ack topic for this stream.
func (u *Uplink) Ack(a protocol.Ack) {
	if a.Ask {
		u.post(func(m *mail) { m.asked = true })
		return
	}
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
	u.posted.Notify()
}

// Status returns what the uplink knows now.
func (u *Uplink) Status() Status {
	u.mu.Lock()
	s := u.status
	u.mu.Unlock()
	s.Backlog, _ = u.backlogReport(s.AckLatency)
	return s
}

// backlogReport returns what a batch says of the backlog, and the clock of the journal.
func (u *Uplink) backlogReport(latency time.Duration) (protocol.Backlog, time.Time) {
	b, now := u.opts.Journal.Backlog()
	b.Expired = u.expired.Load()
	b.RTTMicros = uint64(latency.Microseconds())
	b.BytesPerSecond = u.gate.BytesPerSecond(time.Now())
	return b, now
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
	defer func() {
		l.down(time.Now())
		l.ticket.Leave(time.Now())
	}()
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
		case <-u.posted.C():
		case <-u.grown.C():
		case <-u.turn.C():
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
		u.grown.Notify()
	}
}

func (u *Uplink) publishStatus(l *link) {
	u.metrics.connected.Set(float64(btoi(l.phase != idle)))
	u.metrics.inFlight.Set(float64(l.flights.Bytes()))
	u.mu.Lock()
	defer u.mu.Unlock()
	u.status = Status{
		Connected: l.phase != idle, Synced: l.phase == sending, Acked: l.acked, Sent: l.sent,
		InFlightBytes: l.flights.Bytes(), AckLatency: l.latency, Gaps: l.sync.gaps,
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Close removes the metrics from the registry, when the stream ends. Call it
// after Run has returned, or instead of Run.
func (u *Uplink) Close() { u.metrics.unregister() }
