package downlink

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A Retained is the site's record of what it holds retained, which its broker
// forgets when it ends. Its methods are called by one goroutine.
type Retained interface {
	// Put notes messages, in their order, as retained under a stream; one without
	// a payload deletes. It is durable on return.
	Put(ctx context.Context, stream string, list []Delivery) error
	// Sweep deletes what a stream holds on topics that keep does not name, also from the
	// site's broker.
	Sweep(ctx context.Context, stream string, keep map[string]bool) error
	// Streams returns the streams that hold something.
	Streams() []string
}

// A Delivery is one message for the site's broker.
type Delivery struct {
	protocol.DataMessage
	Stream string
	Epoch  string
	Seq    uint64
	// AcceptedMillis is when the message arrived at the CO, by the CO's clock.
	AcceptedMillis int64
	// Expiry is how long it is valid from now on; 0: for ever.
	Expiry time.Duration
}

// Options are what a Downlink works with. All but Logger are required.
type Options struct {
	// Dir holds the positions.
	Dir string
	// Disk is where the state is; nil: the file system of the machine.
	Disk disk.FS
	Site protocol.SiteID
	// Publish delivers a message at the site's broker.
	Publish func(ctx context.Context, m Delivery) error
	// Ack sends an encoded protocol.Ack to the CO.
	Ack      func(ctx context.Context, payload []byte) error
	Retained Retained
	Logger   *slog.Logger
}

// maxWaiting is how many batches may wait for Run: more than a CO sends without an
// Ack. What is over it is left out; the CO sends it
// again.
const maxWaiting = 32

// A Downlink receives batches. Offer and SetRules may be called by any goroutine,
// Run once.
type Downlink struct {
	opts    Options
	log     *slog.Logger
	decoder *stream.Decoder
	batches chan []byte
	changed notify.Signal // rules are others

	mu    sync.Mutex
	rules map[string]bool // names of the site's rules for the way down; nil: not known

	// What follows belongs to Run.

	positions *positions
	marks     map[string]map[string]bool // by stream: topics since RetainedBegin
}

// Open reads the positions that an earlier run stored. Close it after Run has returned.
func Open(o Options) (*Downlink, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p, err := openPositions(disk.Or(o.Disk), o.Dir)
	if err != nil {
		return nil, err
	}
	if p.damage != nil {
		o.Logger.Error("positions of machine data are damaged; the CO sends again what should be retained", "err", p.damage)
	}
	return &Downlink{
		opts: o, log: o.Logger.With("component", "downlink"), decoder: stream.NewDecoder(1), positions: p,
		batches: make(chan []byte, maxWaiting), changed: notify.New(), marks: map[string]map[string]bool{},
	}, nil
}

// Damage returns what Open found damaged; nil for nothing.
func (d *Downlink) Damage() *statefile.Damage { return d.positions.damage }

// Close closes the file of positions.
func (d *Downlink) Close() error {
	return d.positions.close()
}

// Offer hands in an encoded protocol.Batch of the CO. It never waits.
func (d *Downlink) Offer(payload []byte) {
	select {
	case d.batches <- payload:
	default:
		d.log.Warn("batch of machine data left out, the site's broker is slow; the CO sends it again")
	}
}

// SetRules says which rules the site has: what streams of others retain is deleted.
func (d *Downlink) SetRules(rules []protocol.DataRule) {
	names := map[string]bool{}
	for _, r := range rules {
		if r.Down {
			names[protocol.DataStream(r.Name)] = true
		}
	}
	d.mu.Lock()
	d.rules = names
	d.mu.Unlock()
	d.changed.Notify()
}

// retryDelay is the wait after the disk or the site's broker refused something.
const retryDelay = time.Second

// Run receives batches until ctx ends, and then returns nil.
func (d *Downlink) Run(ctx context.Context) error {
	retry := time.NewTimer(retryDelay)
	retry.Stop()
	defer retry.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case b := <-d.batches:
			if err := d.accept(ctx, b); err != nil && ctx.Err() == nil {
				// It is not acknowledged, so the CO sends it again.
				d.log.ErrorContext(ctx, "machine data for the site not received; the CO sends it again", "err", err)
			}
		case <-d.changed.C():
			err = d.forget(ctx)
		case <-retry.C:
			err = d.forget(ctx)
		}
		if err != nil && ctx.Err() == nil {
			d.log.ErrorContext(ctx, "machine data of a removed rule not deleted yet", "err", err)
			retry.Reset(retryDelay)
		}
	}
}

// forget deletes what streams of removed rules have retained, and their positions.
func (d *Downlink) forget(ctx context.Context) error {
	d.mu.Lock()
	rules := d.rules
	d.mu.Unlock()
	// Also those whose position is lost.
	names := slices.Collect(maps.Keys(d.positions.all))
	names = append(names, d.opts.Retained.Streams()...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if rules == nil || rules[name] {
			continue
		}
		if err := d.opts.Retained.Sweep(ctx, name, nil); err != nil {
			return err
		}
		if err := d.positions.save(position{Stream: name, Removed: true}); err != nil {
			return err
		}
		delete(d.marks, name)
	}
	return nil
}

// accept receives one batch, and answers with the position in its stream.
func (d *Downlink) accept(ctx context.Context, payload []byte) error {
	b, events, err := d.decode(payload)
	if err != nil {
		return err
	}
	at := d.positions.all[b.Stream]
	at.Stream = b.Stream
	if len(events) > 0 {
		if at, err = d.follow(ctx, at, b, events); err != nil {
			return err
		}
	}
	ack := at.Ack(b)
	if err := d.opts.Ack(ctx, protocol.Marshal(&ack)); err != nil && protocol.KindOf(err) != protocol.Unavailable {
		return fmt.Errorf("acknowledge machine data: %w", err)
	}
	return nil // without a link the CO asks again when there is one
}

// follow delivers what is new in a batch and returns the position after it.
func (d *Downlink) follow(ctx context.Context, at position, b protocol.Batch, events []protocol.Event) (position, error) {
	before := at
	advance := at.Follow(b, len(events))
	if advance.Fresh == 0 && at.Epoch == before.Epoch {
		return before, nil
	}
	if at.Epoch != before.Epoch || advance.Gap != nil {
		delete(d.marks, b.Stream) // what they should name may be among what is lost
	}
	if g := advance.Gap; g != nil {
		d.log.WarnContext(ctx, "machine data for the site was dropped before it arrived",
			"stream", b.Stream, "messages", g.Lost, "new_epoch", g.NewEpoch)
	}
	if err := d.deliver(ctx, b, stream.Number(events, advance.Fresh, at.Seq)); err != nil {
		return before, err
	}
	_, at.Marking = d.marks[b.Stream]
	return at, d.positions.save(at)
}

// deliver hands messages to the record of what is retained, and then to the
// broker. RetainedBegin and RetainedEnd take effect in the order of the stream.
func (d *Downlink) deliver(ctx context.Context, b protocol.Batch, events []protocol.Event) error {
	var list []Delivery
	flush := func() error {
		err := d.hand(ctx, b.Stream, list)
		list = nil
		return err
	}
	for _, e := range events {
		switch e.Kind { //nolint:exhaustive // no others belong to this stream
		case protocol.DataEvent:
			if m, ok := d.delivery(ctx, b, e); ok {
				list = append(list, m)
			}
		case protocol.RetainedBegin:
			d.marks[b.Stream] = map[string]bool{}
		case protocol.RetainedEnd:
			keep, ok := d.marks[b.Stream]
			if !ok {
				continue // its begin was lost
			}
			if err := flush(); err != nil {
				return err
			}
			if err := d.opts.Retained.Sweep(ctx, b.Stream, keep); err != nil {
				return err
			}
			delete(d.marks, b.Stream)
		case protocol.DataExpired, protocol.Superseded, protocol.DataLost:
		default:
			d.log.ErrorContext(ctx, "event for the site left out: its kind is not known here", "stream", b.Stream, "seq", e.Seq, "kind", string(e.Kind))
		}
	}
	return flush()
}

func (d *Downlink) hand(ctx context.Context, stream string, list []Delivery) error {
	var retained []Delivery
	for _, m := range list {
		if m.Retain {
			retained = append(retained, m)
		}
	}
	if len(retained) > 0 {
		err := d.opts.Retained.Put(ctx, stream, retained)
		if err != nil && protocol.KindOf(err) == protocol.Invalid {
			list, err = d.each(ctx, stream, list)
		}
		if err != nil {
			return err
		}
	}
	for _, m := range list {
		if err := d.opts.Publish(ctx, m); err != nil {
			return fmt.Errorf("publish %s at the site: %w", m.Topic, err)
		}
	}
	return nil
}

// each notes retained messages one by one, and returns those of list that are to be
// published: one that can never be noted must not hold up its stream for ever.
func (d *Downlink) each(ctx context.Context, stream string, list []Delivery) ([]Delivery, error) {
	var out []Delivery
	for _, m := range list {
		if m.Retain {
			err := d.opts.Retained.Put(ctx, stream, []Delivery{m})
			if err != nil && protocol.KindOf(err) == protocol.Invalid {
				d.log.ErrorContext(ctx, "message for the site refused", "stream", stream, "seq", m.Seq, "err", err)
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// delivery reads one message. ok is false where it is not delivered: its time is
// up, or it cannot be read, which no repetition changes.
func (d *Downlink) delivery(ctx context.Context, b protocol.Batch, e protocol.Event) (m Delivery, ok bool) {
	m = Delivery{Stream: b.Stream, Epoch: b.Epoch, Seq: e.Seq, AcceptedMillis: e.UnixMillis}
	err := protocol.Unmarshal(e.Body, &m.DataMessage)
	if err == nil {
		err = d.check(m.DataMessage)
	}
	if err != nil {
		d.log.ErrorContext(ctx, "message for the site refused", "stream", b.Stream, "seq", e.Seq, "err", err)
		return m, false
	}
	if m.ExpiryMillis > 0 {
		left := int64(min(m.ExpiryMillis, 1<<52)) - max(0, b.SentMillis-e.UnixMillis)
		if left <= 0 && !m.Retain {
			return m, false
		}
		if m.Expiry = time.Duration(left) * time.Millisecond; left <= 0 {
			m.Expiry, m.Payload = 0, nil // the message that it replaced is not valid again
		}
	}
	if marks, marking := d.marks[b.Stream]; marking && m.Retain {
		if len(m.Payload) > 0 {
			marks[m.Topic] = true
		} else {
			delete(marks, m.Topic)
		}
	}
	return m, true
}

// check keeps what comes as data from posing as the protocol: of Colony's topics
// only machine data is delivered.
func (d *Downlink) check(m protocol.DataMessage) error {
	switch {
	case m.Topic == "" || len(m.Topic) > 1<<16-1 || strings.ContainsAny(m.Topic, "+#\x00") || m.Topic[0] == '$':
		return protocol.Errorf(protocol.Invalid, "%q is no topic to publish on", m.Topic)
	case topic.Reserved(m.Topic) && !topic.HasTail(topic.Data, d.opts.Site, m.Topic):
		return protocol.Errorf(protocol.Invalid, "topic %s is not for machine data", m.Topic)
	case m.QoS > 2 || len(m.Properties)%2 != 0:
		return protocol.Errorf(protocol.Invalid, "message on %s with QoS %d and %d parts of properties", m.Topic, m.QoS, len(m.Properties))
	}
	return nil
}
