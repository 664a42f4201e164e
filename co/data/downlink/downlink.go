package downlink

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/datarule"
	"github.com/colonyfleet/colony/protocol/stream"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A Store is the CO's record.
type Store interface {
	// PutDown queues messages, all or none; on return they are durable.
	PutDown(ctx context.Context, list []fleet.DownMessage) error
	// BeginDown prepares the streams of a site for a new connection; rules that are not
	// among keep are removed ones. sender, this replica, is then the one that sends.
	BeginDown(ctx context.Context, site protocol.SiteID, sender string, keep []string) error
	// DownStreams returns the streams that ever had a message.
	DownStreams(ctx context.Context, site protocol.SiteID) ([]fleet.DownStream, error)
	// DownBatch reads what follows a sequence.
	DownBatch(ctx context.Context, r fleet.DownRead) (fleet.DownBatch, error)
	// AckDown applies a site's Ack, first of its connection or not, and returns where
	// the stream stands then.
	AckDown(ctx context.Context, site protocol.SiteID, rule string, a protocol.Ack, first bool) (fleet.DownStream, error)
	// RenewDown begins a new epoch of a stream in place of one that the site retired.
	RenewDown(ctx context.Context, site protocol.SiteID, rule, retired string) error
}

// Options are what a Downlink works with. Store, Rules and Publish are required.
type Options struct {
	Store Store
	// Rules returns the rules of a site, in their order.
	Rules func(ctx context.Context, site protocol.SiteID) ([]fleet.DataRule, error)
	// Publish sends an encoded protocol.Batch to a site.
	Publish func(ctx context.Context, site protocol.SiteID, payload []byte) error
	// Window is how many batches may be on their way to one site. Default 4.
	Window int
	// AckTimeout is the wait for an Ack before the first repetition; it doubles with
	// each further one, to ten times as much. Default 30 s: as long as the connection
	// lives nothing is lost, so that a repetition is only a slow link's waste.
	AckTimeout time.Duration
	// RulesTTL is how long the rules of a site are used from memory. Default 5 s.
	RulesTTL time.Duration
	// Logger may be nil.
	Logger *slog.Logger
}

// A Downlink accepts messages for the sites and sends them. Its methods may be
// called concurrently.
type Downlink struct {
	opts Options
	name string // of this replica
	log  *slog.Logger
	pack *stream.Encoder

	ctx    context.Context //nolint:containedctx // the life of the Downlink, for what outlives a call
	cancel context.CancelFunc
	wg     sync.WaitGroup // senders

	group group

	mu       sync.Mutex // protects what follows
	closed   bool
	sessions map[protocol.SiteID]*session
	rules    map[protocol.SiteID]*siteRules
	changes  uint64 // calls of RulesChanged
}

// siteRules are the rules of a site as of a moment.
type siteRules struct {
	table *datarule.Table
	err   error // why there is none
	at    time.Time
}

// New returns a Downlink. Close ends it.
func New(o Options) *Downlink {
	if o.Window <= 0 {
		o.Window = 4
	}
	if o.AckTimeout <= 0 {
		o.AckTimeout = 30 * time.Second
	}
	if o.RulesTTL <= 0 {
		o.RulesTTL = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Downlink{
		opts: o, name: rand.Text(), log: o.Logger.With("component", "downlink"), pack: stream.NewEncoder(stream.Least),
		sessions: map[protocol.SiteID]*session{}, rules: map[protocol.SiteID]*siteRules{},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.group = group{put: o.Store.PutDown, turn: make(chan struct{}, 1)}
	return d
}

// Close ends all sending and waits for it. What is queued stays.
func (d *Downlink) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel()
	d.wg.Wait()
}

// Accept queues a message that a client of the CO's broker published for a site: the
// Topic of m is what follows colony/v1/{site}/in/, ExpiryMillis its own expiry. When
// it returns nil the message is durable, or is one of QoS 0 for a site that is not
// connected. The error is of kind NotFound where no rule of the site matches the
// topic, Invalid where the message can never be queued, and Unavailable where
// PostgreSQL is away.
func (d *Downlink) Accept(ctx context.Context, site protocol.SiteID, m protocol.DataMessage) error {
	rule, local, err := d.match(ctx, site, m.Topic)
	if err != nil {
		return err
	}
	out := fleet.DownMessage{Site: site, Rule: *rule, Message: m, Volatile: m.QoS == 0 && !rule.KeepQoS0 && !m.Retain}
	out.Message.V, out.Message.Topic = protocol.Version, local
	out.Message.QoS = min(m.QoS, rule.QoS)
	if ttl := rule.TTLMillis; ttl > 0 && (m.ExpiryMillis == 0 || ttl < m.ExpiryMillis) {
		out.Message.ExpiryMillis = ttl
	}
	if limit := messageLimit(rule); size(out.Message) > limit {
		return protocol.Errorf(protocol.Invalid, "message of %d bytes for site %s: the data rule %s takes up to %d", size(out.Message), site, rule.Name, limit)
	}
	if err := d.group.add(ctx, out); err != nil {
		return err
	}
	d.Notify(site)
	return nil
}

// maxMessage leaves room in a largest packet for the batch around a message.
const maxMessage = protocol.MaxMessage - 64<<10

// messageLimit is the size of the largest message under a rule.
func messageLimit(r *protocol.DataRule) int {
	if r.MaxBytes > 0 && r.MaxBytes < maxMessage {
		return int(r.MaxBytes)
	}
	return maxMessage
}

// size is about what a message needs, without what is fixed.
func size(m protocol.DataMessage) int {
	n := len(m.Topic) + len(m.Payload) + len(m.ContentType) + len(m.ResponseTopic) + len(m.CorrelationData)
	for _, p := range m.Properties {
		n += len(p)
	}
	return n
}

// match finds the rule for a topic. Rules that are not fresh are read again before
// a topic is refused, so that a rule that was just made counts.
func (d *Downlink) match(ctx context.Context, site protocol.SiteID, tail string) (*protocol.DataRule, string, error) {
	for _, age := range []time.Duration{d.opts.RulesTTL, min(d.opts.RulesTTL, time.Second)} {
		table, err := d.table(ctx, site, age)
		if err != nil {
			return nil, "", err
		}
		if rule, local, ok := table.Down(tail); ok {
			return rule, local, nil
		}
	}
	return nil, "", protocol.Errorf(protocol.NotFound,
		"no data rule of site %s matches %s: add one with direction down to sites/%s/site.yaml in the deployments repo",
		site, topic.ForTail(topic.In, site, tail), site)
}

// table returns the rules of a site, not older than age.
func (d *Downlink) table(ctx context.Context, site protocol.SiteID, age time.Duration) (*datarule.Table, error) {
	d.mu.Lock()
	known, changes := d.rules[site], d.changes
	d.mu.Unlock()
	if known != nil && time.Since(known.at) < age {
		return known.table, known.err
	}
	now := time.Now()
	list, err := d.opts.Rules(ctx, site)
	if err != nil {
		return nil, err
	}
	plain := make([]protocol.DataRule, len(list))
	for i := range list {
		plain[i] = list[i].DataRule
	}
	r := &siteRules{at: now}
	r.table, r.err = datarule.New(site, plain)
	d.mu.Lock()
	defer d.mu.Unlock()
	latest := d.rules[site]
	switch {
	case latest != nil && !latest.at.Before(now):
		// Another caller has read them later: a message that was matched with its rules
		// must not be left lying because of older ones.
		return latest.table, latest.err
	case d.changes != changes:
		// They may be of before the change. The next reader reads them again.
	case len(plain) == 0 && d.sessions[site] == nil:
		delete(d.rules, site) // anybody may name sites that do not exist
	default:
		d.rules[site] = r
	}
	return r.table, r.err
}

// RulesChanged makes the next message of a site be matched with its present rules,
// and sends a connected site what follows from rules that were removed.
func (d *Downlink) RulesChanged(site protocol.SiteID) {
	d.mu.Lock()
	delete(d.rules, site)
	d.changes++
	d.mu.Unlock()
	d.Notify(site)
}

// A group puts what several callers bring at the same time into one transaction.
type group struct {
	put  func(ctx context.Context, list []fleet.DownMessage) error
	turn chan struct{} // holds an element while one of the callers commits

	mu      sync.Mutex // protects waiting
	waiting []*request
}

type request struct {
	message fleet.DownMessage
	done    chan struct{}
	err     error // valid after done
}

const (
	groupMessages = 512
	groupBytes    = 4 << 20
	putTimeout    = 30 * time.Second
)

// add returns when the message is durable, or is not. One caller commits for all that wait.
func (g *group) add(ctx context.Context, m fleet.DownMessage) error {
	r := &request{message: m, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, r)
	g.mu.Unlock()
	for {
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return protocol.Errorf(protocol.Unavailable, "queue machine data: %w", context.Cause(ctx))
		case g.turn <- struct{}{}:
		}
		g.commit(ctx)
		<-g.turn
	}
}

func (g *group) commit(ctx context.Context) {
	g.mu.Lock()
	n, bytes := 0, 0
	for n < len(g.waiting) && n < groupMessages && (n == 0 || bytes < groupBytes) {
		bytes += size(g.waiting[n].message.Message)
		n++
	}
	batch := g.waiting[:n:n]
	g.waiting = g.waiting[n:]
	if len(g.waiting) == 0 {
		g.waiting = nil
	}
	g.mu.Unlock()
	if n == 0 {
		return
	}
	// The others must not fail because the caller that commits for them gave up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), putTimeout)
	defer cancel()
	list := make([]fleet.DownMessage, n)
	for i, r := range batch {
		list[i] = r.message
	}
	err := g.put(ctx, list)
	if err != nil && n > 1 && protocol.KindOf(err) != protocol.Unavailable {
		// One of them may be to blame: each for itself.
		for i, r := range batch {
			r.err = g.put(ctx, list[i:i+1])
			close(r.done)
		}
		return
	}
	for _, r := range batch {
		r.err = err
		close(r.done)
	}
}
