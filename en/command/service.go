// Package command executes the commands that a node receives: each at most once, within its deadline, and reports how it ended until the LO
// has that. docs/adr/0011-commands.md says why.
//
// Package once decides how a command ends. The start of a command is on disk before it begins; its result is on disk before it is sent.
package command

import (
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"log/slog"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/command/once"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	// maxOffers bounds the messages that have arrived and are not looked at yet.
	maxOffers = 1024
	// retryDelay is the wait after a result that the LO did not accept, or a disk that failed.
	retryDelay = 2 * time.Second
	// perTurn is how many results are sent one after the other.
	perTurn = 32
)

// A Store keeps what must survive a crash. What Save and Replace write is durable when they return nil.
type Store interface {
	// Save writes entries, durably, and meta where it is not nil.
	Save(meta *once.Meta, entries ...once.Entry) error
	// Note writes an entry that may be lost in a crash: its result is sent once more then.
	Note(e once.Entry) error
	// Large reports whether the log is to be replaced by one without history.
	Large() bool
	// Replace replaces the log by one that has these alone.
	Replace(meta once.Meta, entries []once.Entry) error
}

// An Uplink is the link to the LO.
type Uplink interface {
	// Commands reports whether the link is up, to an LO that knows commands.
	Commands() bool
	// Result carries a result; nil: the LO has it.
	Result(ctx context.Context, r wire.Result) error
	// AskTime and Frame send a message that may get lost.
	AskTime(ctx context.Context, m wire.TimeAsk) error
	Frame(ctx context.Context, id wire.ID, m wire.Frame) error
}

// Options of a Service. All must be given, but for Root, Labels, KeySet and Random.
type Options struct {
	Site   protocol.SiteID
	Node   protocol.NodeID
	Labels map[string]string
	// Agent is the id of the agent, see protocol.Presence.
	Agent string
	// Root is the root key of the fleet's key sets. Nil: signatures of commands are not checked.
	Root ed25519.PublicKey
	// KeySet is the latest that desired states have brought.
	KeySet []byte
	Kinds  []Kind
	Store  Store
	Uplink Uplink
	// Meta and Entries are what the Store held.
	Meta    once.Meta
	Entries []once.Entry
	// SinceBoot is a clock that cannot be set, see hostclock.SinceBoot.
	SinceBoot func() time.Duration
	Random    *random.Source
	Logger    *slog.Logger
}

// offer is a command as it arrived.
type offer struct {
	id      wire.ID
	payload []byte
}

// A Service executes commands. Its methods may be called concurrently.
type Service struct {
	o      Options
	log    *slog.Logger
	kinds  map[wire.Kind]Kind
	due    notify.Signal // there is something to decide
	unsent notify.Signal // there may be something to send

	saving sync.Mutex // orders the calls of the store; taken before mu

	mu       sync.Mutex // protects what follows
	ledger   *once.Ledger
	reader   *wire.Reader
	offers   []offer
	unsaved  []once.Entry  // that could not be saved yet
	rejected []wire.Result // of what the CO did not sign: they are sent once
	live     map[wire.ID]*Live
	asks     retry.Backoff
	askAt    time.Duration // not before
	totals   Totals
}

// Totals are what was counted since the start.
type Totals struct {
	// Results are how commands ended, by state.
	Results map[wire.State]uint64
	// Refused are commands that the CO did not sign for this node, by reason.
	Refused map[sign.Reason]uint64
	// Waiting, Running and Held are how many commands there are.
	Waiting, Running, Held int
}

// New returns a Service. Call Run.
func New(o Options) (*Service, error) {
	reader, err := wire.NewReader(o.Site, o.Root)
	if err != nil {
		return nil, err
	}
	reader.Follow(o.KeySet)
	reader.Follow(o.Meta.KeySet)
	s := &Service{
		o: o, log: o.Logger.With("component", "commands"), kinds: map[wire.Kind]Kind{}, due: notify.New(), unsent: notify.New(), reader: reader,
		live: map[wire.ID]*Live{}, totals: Totals{Results: map[wire.State]uint64{}, Refused: map[sign.Reason]uint64{}},
		asks: retry.Backoff{Policy: retry.Policy{Min: 2 * time.Second, Max: 15 * time.Second, Jitter: 0.2}, Rand: o.Random.Rand("time-ask")},
	}
	var names []wire.Kind
	for _, k := range o.Kinds {
		s.kinds[k.Kind] = k
		names = append(names, k.Kind)
	}
	s.ledger, s.unsaved = once.New(once.Node{Name: o.Node, Labels: o.Labels, Agent: o.Agent}, names, o.Meta, o.Entries, o.SinceBoot())
	s.due.Notify()
	return s, nil
}

// Follow has commands checked with a key set of the CO.
func (s *Service) Follow(keySet []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reader.Follow(keySet)
}

// Connected says that the link to the LO went up or down.
func (s *Service) Connected(bool) {
	s.mu.Lock()
	s.asks.Reset()
	s.askAt = 0
	s.mu.Unlock()
	s.due.Notify()
	s.unsent.Notify()
}

// Totals returns what was counted.
func (s *Service) Totals() Totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := Totals{Results: map[wire.State]uint64{}, Refused: map[sign.Reason]uint64{}}
	for k, n := range s.totals.Results {
		t.Results[k] = n
	}
	for k, n := range s.totals.Refused {
		t.Refused[k] = n
	}
	t.Waiting, t.Running, t.Held = s.ledger.Count()
	return t
}

// Handle handles a message of the LO about commands. It does not wait.
func (s *Service) Handle(t topic.Topic, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch t.Kind { //nolint:exhaustive // the others are not about commands
	case topic.NodeTime:
		var m wire.Time
		if err := wire.Unmarshal(payload, &m); err != nil {
			return err
		}
		if s.ledger.Clock.Learn(m) {
			s.asks.Reset()
			s.askAt = 0
			s.due.Notify()
		}
		return nil
	case topic.NodeCredit:
		var m wire.Credit
		if err := wire.Unmarshal(payload, &m); err != nil {
			return err
		}
		if l := s.live[wire.ID(t.Tail)]; l != nil {
			l.renew(m)
		}
		return nil
	case topic.NodeInput:
		var m wire.Segment
		if err := wire.Unmarshal(payload, &m); err != nil {
			return err
		}
		if l := s.live[wire.ID(t.Tail)]; l != nil {
			l.inputs.add(m)
		}
		return nil
	}
	if len(s.offers) >= maxOffers {
		return protocol.Errorf(protocol.Conflict, "%d commands wait to be looked at: publish it again later", maxOffers)
	}
	s.offers = append(s.offers, offer{wire.ID(t.Tail), payload})
	s.due.Notify()
	return nil
}

// Run executes commands until ctx ends, and returns when all executions have ended.
func (s *Service) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { s.sendLoop(ctx) })
	executing, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(errStopping)
	for ctx.Err() == nil {
		next := s.turn(executing, &work)
		_, _ = retry.SleepOr(ctx, next, s.due.C()) // its end ends the loop, too
	}
}

// turn does what is due now, and returns when something may be due next.
func (s *Service) turn(ctx context.Context, work *sync.WaitGroup) time.Duration {
	if err := s.settle(); err != nil {
		s.log.WarnContext(ctx, "record of commands not written, trying again", "err", err)
		return retryDelay
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	save := s.look(ctx)
	d := s.ledger.Decide(s.o.SinceBoot())
	save = append(save, d.End...)
	var meta *once.Meta
	if d.Meta {
		meta = new(s.ledger.Meta())
	}
	var ask *wire.TimeAsk
	wait := d.Next
	if d.Ask {
		ask, wait = s.ask()
	}
	s.mu.Unlock()
	if ask != nil {
		if err := s.o.Uplink.AskTime(ctx, *ask); err != nil {
			s.log.DebugContext(ctx, "time of the co not asked for", "err", err)
		}
	}
	if meta != nil || len(save) > 0 {
		if err := s.o.Store.Save(meta, save...); err != nil {
			s.log.WarnContext(ctx, "results of commands not saved yet", "err", err)
			s.mu.Lock()
			s.unsaved = append(s.unsaved, save...)
			s.mu.Unlock()
		}
		s.unsent.Notify()
	}
	for _, b := range d.Begin {
		if !s.begin(ctx, b, work) {
			wait = retryDelay
		}
	}
	if wait <= 0 {
		return time.Hour
	}
	return wait
}

// settle saves what could not be saved before, and makes the log short.
func (s *Service) settle() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	unsaved := s.unsaved
	meta, entries := s.ledger.Meta(), s.ledger.Entries()
	s.mu.Unlock()
	switch {
	case s.o.Store.Large():
		if err := s.o.Store.Replace(meta, entries); err != nil {
			return err
		}
	case len(unsaved) > 0:
		if err := s.o.Store.Save(&meta, unsaved...); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.unsaved = s.unsaved[len(unsaved):]
	s.mu.Unlock()
	s.unsent.Notify()
	return nil
}

// look takes what has arrived, and returns the entries to be saved. The caller holds s.mu.
func (s *Service) look(ctx context.Context) (save []once.Entry) {
	for _, o := range s.offers {
		if len(o.payload) == 0 {
			if e := s.ledger.Cancelled(o.id); e != nil {
				save = append(save, *e)
			}
			continue
		}
		c, newer, err := s.reader.Read(o.payload)
		if newer {
			s.ledger.SetKeySet(s.reader.KeySet())
		}
		if err == nil && c.ID != o.id {
			err = sign.Refuse(sign.Mismatch, "command %s arrived on the topic of %s", c.ID, o.id)
		}
		if err != nil {
			s.totals.Refused[sign.ReasonOf(err)]++
			s.reject(o.id, err)
			s.log.WarnContext(ctx, "command refused", "command_id", string(o.id), "err", err)
			continue
		}
		if e := s.ledger.Received(c, s.o.SinceBoot()); e != nil {
			s.totals.Results[e.Result.State]++
			s.log.InfoContext(ctx, "command not executed", "command_id", string(c.ID), "kind", string(c.Kind), "state", string(e.Result.State), "code", string(e.Result.Code), "actor", c.Actor)
			save = append(save, *e)
		}
	}
	s.offers = nil
	return save
}

// reject has it reported that a message on the topic of a command does not count. Nothing of it is believed: it ends no command that is known, and
// is not written down. The caller holds s.mu.
func (s *Service) reject(id wire.ID, err error) {
	if s.ledger.Knows(id) || len(s.rejected) >= perTurn {
		return
	}
	r := wire.Result{V: protocol.Version, ID: id, Node: s.o.Node, State: wire.Refused, Code: wire.BadSignature}
	r.Message, _ = clip(err.Error(), wire.MaxMessage)
	s.rejected = append(s.rejected, r)
	s.unsent.Notify()
}

// ask returns the question for the time of the CO where it may be sent now, and when to ask again. The caller holds s.mu.
func (s *Service) ask() (ask *wire.TimeAsk, wait time.Duration) {
	now := s.o.SinceBoot()
	switch {
	case !s.o.Uplink.Commands():
		return nil, 2 * time.Second
	case now < s.askAt:
		return nil, s.askAt - now
	}
	var b [8]byte
	s.o.Random.Fill("time-ask", b[:])
	wait = s.asks.Next()
	s.askAt = now + wait
	return new(s.ledger.Clock.Ask(binary.LittleEndian.Uint64(b[:]), now)), wait
}
