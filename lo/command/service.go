// Package command is the LO's part in commands: it receives those of the CO, writes down which nodes are meant, publishes each to them as
// long as its deadline has not passed, and reports what they answer. docs/adr/0011-commands.md says why.
//
// Package members decides the steps of a command. Each change is durable before it has an effect: the record of a command before its nodes
// get it, the result of a node before the broker acknowledges it.
package command

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/lo/command/members"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/command/cotime"
	"github.com/colonyfleet/colony/protocol/topic"
)

// maxOffers bounds the commands that have arrived and are not looked at yet.
const maxOffers = 1024

// A Store keeps what must survive a crash. What Create and Append write is durable when they return nil.
type Store interface {
	// Create writes down a command. It is durable when it returns nil.
	Create(r *members.Record) error
	// Append writes down results of one command, and returns where they are. They are durable when it returns nil.
	Append(id wire.ID, results []wire.Result) ([]members.Where, error)
	// Read returns the results that are at those positions of one command.
	Read(id wire.ID, at []members.Where) ([]wire.Result, error)
	// Release closes the log of a command that has ended, until it is needed again.
	Release(id wire.ID) error
	// Remove forgets a command durably.
	Remove(id wire.ID) error
}

// A Live carries what commands send live, see package live.
type Live interface {
	// Frame forwards an encoded Frame of a node. If its command is not followed, the frame is
	// dropped.
	Frame(node protocol.NodeID, id wire.ID, payload []byte) error
	// Credit handles an encoded Credit of the CO for a command.
	Credit(id wire.ID, payload []byte) error
	// Input forwards an encoded Segment of the CO. If there is no room for it, the Segment is dropped; the CO sends
	// it again.
	Input(id wire.ID, payload []byte) error
	// Began says that a node has begun a command: it needs the credit that there is.
	Began(id wire.ID)
}

// Options of a Service. All must be given, but for Root, SinceBoot, Now, Random and Registerer.
type Options struct {
	Site protocol.SiteID
	// Root is the root key of the fleet's key sets. Nil: signatures of commands are not checked.
	Root  ed25519.PublicKey
	Store Store
	// Journal writes events for the CO. They are on disk when it returns nil.
	Journal func(ctx context.Context, facts []nodes.Fact) (last uint64, err error)
	// Settle is how long after the start a command waits for a node that it means and that is not known.
	Settle time.Duration
	// Nodes returns the labels of the nodes of the site, by name.
	Nodes func() map[protocol.NodeID]map[string]string
	// Publish has the broker of the site deliver a message, with QoS 1 and retained, or with QoS 0.
	Publish func(ctx context.Context, name string, payload []byte, retained bool) error
	// Execute carries out a command of a kind that is the LO's own (wire.Definition.ByLO) for a node, and returns what to say of it. It may
	// be called once more for one that was carried out. An error of kind NotFound says that there is no such node, another
	// that it is to be tried again.
	Execute func(ctx context.Context, c *wire.Command, node protocol.NodeID) (string, error)
	// Timed reports whether the time of the CO is needed all the time. Nil: it is not.
	Timed func() bool
	// Learnt takes each answer of the CO to what time it is there. Nil: the answers are not reported.
	Learnt func(cotime.Answer)
	// Known is an answer of an earlier run. Boot names the boot of the machine.
	Known cotime.Answer
	Boot  string
	// Live carries what is live.
	Live Live
	// Send sends a message to the CO, with QoS 0.
	Send func(ctx context.Context, name string, payload []byte) error
	// SinceBoot is a clock that cannot be set, see hostclock.SinceBoot.
	SinceBoot func() time.Duration
	// Now is what the LO takes for the time of day; events are stamped with it.
	Now    func() time.Time
	Random *random.Source
	Logger *slog.Logger
	// Registerer takes the metrics; nil: none are kept.
	Registerer prometheus.Registerer
}

// offer is a command as it arrived.
type offer struct {
	id      wire.ID
	payload []byte
}

// A Service is the commands of a site. Its methods may be called concurrently.
type Service struct {
	o       Options
	log     *slog.Logger
	metrics *metrics
	due     notify.Signal // there is something to decide
	began   time.Time

	committing sync.Mutex // orders what is written; held while results are

	mu     sync.Mutex // protects what follows
	site   *members.Site
	reader *wire.Reader
	offers []offer
	queue  []*write
	up     bool
	asks   retry.Backoff
	askAt  time.Duration // not before
	learnt bool          // the CO has answered what time it is, and Learnt has not been called
}

// write is results that wait to be written.
type write struct {
	results []wire.Result
	done    bool
	err     error
}

// New returns a Service with what the store holds. Call Run.
func New(o Options) (*Service, error) {
	reader, err := wire.NewReader(o.Site, o.Root)
	if err != nil {
		return nil, err
	}
	s := &Service{
		o: o, log: o.Logger.With("component", "commands"), due: notify.New(), began: time.Now(), site: members.New(), reader: reader,
		asks: retry.Backoff{Policy: retry.Policy{Min: 2 * time.Second, Max: 30 * time.Second, Jitter: 0.2}, Rand: o.Random.Rand("time-ask")},
	}
	s.site.Clock.Restore(o.Known, o.Boot)
	s.metrics = newMetrics(s.count)
	return s, s.metrics.register(o.Registerer)
}

// Restore adds the commands that the store holds, before Run.
func Restore(s *Service, held []members.Held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range held {
		s.site.Add(h.Record, s.o.SinceBoot())
		for i := range h.Results {
			s.site.Apply(&h.Results[i].Result, h.Results[i].Where)
		}
	}
}

// COTime returns the latest that the time of the CO can be, in milliseconds since 1970; 0: it is not known.
func (s *Service) COTime() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	latest, _ := s.site.Clock.Latest(s.o.SinceBoot())
	return latest
}

// Time returns the best estimate of the time of the CO, in milliseconds since 1970, and how long ago it was asked for; 0: it is not known.
func (s *Service) Time() (millis int64, age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.SinceBoot()
	millis, known := s.site.Clock.Now(now)
	if !known {
		return 0, 0
	}
	age, _ = s.site.Clock.Age(now)
	return millis, age
}

// Look has the service look at what it needs anew, as Timed may have changed.
func (s *Service) Look() { s.due.Notify() }

// count is for the metrics.
func (s *Service) count() (held, open int, age time.Duration, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, open = s.site.Count()
	age, known = s.site.Clock.Age(s.o.SinceBoot())
	return held, open, age, known
}

// Follow has commands checked with a key set of the CO.
func (s *Service) Follow(keySet []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reader.Follow(keySet)
}

// Connected says that the link to the CO went up or down.
func (s *Service) Connected(up bool) {
	s.mu.Lock()
	s.up = up
	s.asks.Reset()
	s.askAt = 0
	s.mu.Unlock()
	s.due.Notify()
}

// Open returns the nodes that have not ended a command, at most so many.
func (s *Service) Open(id wire.ID, most int) []protocol.NodeID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.site.Open(id, most)
}

// Handle handles a message of the CO about commands. It does not wait.
func (s *Service) Handle(t topic.Topic, payload []byte) error {
	switch t.Kind { //nolint:exhaustive // the others follow
	case topic.SiteCredit:
		return s.o.Live.Credit(wire.ID(t.Tail), payload)
	case topic.SiteInput:
		return s.o.Live.Input(wire.ID(t.Tail), payload)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.due.Notify()
	if t.Kind == topic.SiteTime {
		var m wire.Time
		if err := wire.Unmarshal(payload, &m); err != nil {
			return err
		}
		if s.site.Clock.Learn(m) {
			s.asks.Reset()
			s.learnt = true
		}
		return nil
	}
	if len(s.offers) >= maxOffers {
		return protocol.Errorf(protocol.Conflict, "%d commands wait to be looked at: publish it again later", maxOffers)
	}
	s.offers = append(s.offers, offer{wire.ID(t.Tail), payload})
	return nil
}

// IsOf reports whether a topic, on which nodes publish, is about commands.
func IsOf(kind topic.Kind) bool {
	return kind == topic.CommandResult || kind == topic.NodeTimeAsk || kind == topic.NodeLive
}

// Accept takes a message of a node about commands. When it returns nil, what must not be lost is on disk.
func (s *Service) Accept(ctx context.Context, t topic.Topic, payload []byte) error {
	switch t.Kind { //nolint:exhaustive // the others are not about commands
	case topic.CommandResult:
		return s.Result(ctx, t.Node, payload)
	case topic.NodeTimeAsk:
		return s.Asked(ctx, t.Node, payload)
	case topic.NodeLive:
		return s.o.Live.Frame(t.Node, wire.ID(t.Tail), payload)
	default:
		return protocol.Errorf(protocol.Denied, "topic of kind %s is not for nodes to publish on", t.Kind)
	}
}

// Result takes a result of a node: it is on disk, and in the journal, when it returns nil.
func (s *Service) Result(ctx context.Context, node protocol.NodeID, payload []byte) error {
	var r wire.Result
	if err := wire.Unmarshal(payload, &r); err != nil {
		return err
	}
	if r.Node != node || r.ByLO || len(r.Output) > wire.MaxOutput || len(r.Message) > wire.MaxMessage {
		return protocol.Errorf(protocol.Invalid, "result of node %q arrived on the topic of node %q, or is larger than it may be", r.Node, node)
	}
	s.mu.Lock()
	means, news := s.site.Means(r.ID, node), s.site.News(&r)
	s.mu.Unlock()
	if news && r.State == wire.Running {
		s.o.Live.Began(r.ID)
	}
	if !news {
		if !means {
			s.log.InfoContext(ctx, "result of a command that is not known, or does not mean the node, is left out", "node_id", node, "command_id", string(r.ID), "state", string(r.State))
		}
		return nil
	}
	return s.write(ctx, r)
}

// Asked answers a node that asks for the time of the CO: with the latest that it can be.
func (s *Service) Asked(ctx context.Context, node protocol.NodeID, payload []byte) error {
	var m wire.TimeAsk
	if err := wire.Unmarshal(payload, &m); err != nil {
		return err
	}
	s.mu.Lock()
	now := s.o.SinceBoot()
	latest, known := s.site.Clock.Latest(now)
	s.site.NodeAsked(now)
	s.mu.Unlock()
	answer := wire.Time{V: protocol.Version, Nonce: m.Nonce}
	if known {
		answer.UnixMillis = latest
	}
	s.due.Notify()
	if err := s.o.Publish(ctx, topic.ForNode(topic.NodeTime, s.o.Site, node), protocol.Marshal(&answer), false); err != nil {
		s.log.DebugContext(ctx, "time of the co not sent to a node", "node_id", node, "err", err) // it asks again
	}
	return nil
}

// write writes results down, together with others that wait for that: a flush of the disk for all of them.
func (s *Service) write(ctx context.Context, results ...wire.Result) error {
	w := &write{results: results}
	s.mu.Lock()
	s.queue = append(s.queue, w)
	s.mu.Unlock()
	s.committing.Lock()
	defer s.committing.Unlock()
	if w.done {
		return w.err
	}
	s.mu.Lock()
	batch := s.queue
	s.queue = nil
	s.mu.Unlock()
	s.commit(context.WithoutCancel(ctx), batch) // others wait for it
	s.due.Notify()
	return w.err
}

// commit writes a batch down, by command: to the store, then to the journal.
func (s *Service) commit(ctx context.Context, batch []*write) {
	ids, results := s.news(batch)
	failed := map[wire.ID]error{}
	for _, id := range ids {
		failed[id] = s.commitOne(ctx, id, results[id])
	}
	for _, w := range batch {
		w.done = true
		for _, r := range w.results {
			if err := failed[r.ID]; err != nil {
				w.err = protocol.Errorf(protocol.Unavailable, "write down a result of command %s: %w", r.ID, err)
			}
		}
	}
}

// news returns what of a batch is not known yet, by command.
func (s *Service) news(batch []*write) (ids []wire.ID, results map[wire.ID][]wire.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	results = map[wire.ID][]wire.Result{}
	for _, w := range batch {
		for _, r := range w.results {
			if !s.site.News(&r) {
				continue
			}
			if results[r.ID] == nil {
				ids = append(ids, r.ID)
			}
			results[r.ID] = append(results[r.ID], r)
		}
	}
	return ids, results
}

func (s *Service) commitOne(ctx context.Context, id wire.ID, results []wire.Result) error {
	where, err := s.o.Store.Append(id, results)
	if err != nil {
		return err
	}
	if err := s.report(ctx, results); err != nil {
		return err
	}
	s.mu.Lock()
	for i := range results {
		s.site.Apply(&results[i], where[i])
		s.metrics.results.WithLabelValues(results[i].State.Label()).Inc()
	}
	_, ended := s.site.Holds(id)
	s.mu.Unlock()
	if ended {
		return s.o.Store.Release(id)
	}
	return nil
}

// report writes results to the journal, for the CO. Of those of one node and one command that were not sent yet the last one is enough.
func (s *Service) report(ctx context.Context, results []wire.Result) error {
	var facts []nodes.Fact
	for i := range results {
		r := &results[i]
		facts = append(facts, nodes.Fact{Key: "command/" + string(r.ID) + "/" + string(r.Node), Event: protocol.Event{
			UnixMillis: s.o.Now().UnixMilli(), Kind: protocol.CommandResult, Node: r.Node, Body: protocol.Marshal(r),
		}})
	}
	if len(facts) == 0 {
		return nil
	}
	_, err := s.o.Journal(ctx, facts)
	return err
}

// reportReceived reports that the site has a command, or refuses it.
func (s *Service) reportReceived(ctx context.Context, t wire.Received) error {
	_, err := s.o.Journal(ctx, []nodes.Fact{{Key: "command/" + string(t.ID), Event: protocol.Event{
		UnixMillis: s.o.Now().UnixMilli(), Kind: protocol.CommandReceived, Body: protocol.Marshal(&t),
	}}})
	if err != nil {
		return fmt.Errorf("report that command %s was received: %w", t.ID, err)
	}
	return nil
}
