// Package sessions stores the sessions of MQTT clients that outlive their connections, and
// the messages that wait in them, in one log. What it has confirmed survives a crash and a
// power cut. It holds messages of other clients in trust, within declared bounds: what it
// drops it counts, with the reason.
//
// Changes go through one goroutine, the committer (commit.go), that appends all that wait to
// the log, flushes it once, and then lets the messages into the queues of their sessions, in
// the order of the log.
package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/broker/sessions/ranking"
	"github.com/colonyfleet/colony/broker/sessions/sessionlog"
	"github.com/colonyfleet/colony/broker/sessions/state"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// A Store holds all sessions of a broker. Its methods may be called concurrently.
type Store struct {
	o       Options
	log     *slog.Logger
	records *sessionlog.Log
	clock   state.Clock

	totals
	live     *sessionlog.Live
	earliest atomic.Int64 // no session expires and no will is due before

	mu      sync.RWMutex        // protects what follows
	clients map[string]*Session // all, by client id
	counts  map[counted]int     // sessions by owner, and by address
	lastID  state.SessionID

	changes changes
	committer
	work   sync.WaitGroup
	stop   chan struct{}
	closed sync.Once
}

// totals are counted as messages come and go.
type totals struct {
	messages, bytes atomic.Int64 // in all queues; bytes of each message once
	inMemory        atomic.Int64 // bytes of content
	lost            atomic.Int64 // records that were damaged
	tail            atomic.Int64 // bytes of the last segment of the log
}

// committer is what the committer's goroutine uses, the others where they are atomic.
type committer struct {
	failing       atomic.Bool // the last commit failed
	saving        atomic.Bool // a checkpoint is being written
	checkpointDue bool        // whatever the log has: so that damage is not read again
	reserve       int64       // bytes of the disk that are kept until it is full
	reserveDue    atomic.Bool // the reserve may not be whole, since a checkpoint was written
	lending
	roomDue        bool                       // the disk is full, and holds what no session needs
	unmarked       atomic.Bool                // the log lacks what was marked as sent when it was opened, until the next checkpoint
	settled        atomic.Bool                // the log lacks nothing else any more
	unrecorded     bool                       // the log lacks changes: nothing is stored before a checkpoint has them
	begun          bool                       // the segment for that checkpoint is there
	unwritten      trouble                    // that changes cannot be written, or hardly
	unended        trouble                    // that a segment cannot be ended
	unsaved        trouble                    // that a checkpoint cannot be written
	untrimmed      trouble                    // that the log cannot be trimmed while nothing can be written
	rollAbove      int64                      // bytes of the current segment from which on it is tried again to end it
	stamp          state.Time                 // the last one in the log
	lastCheckpoint int64                      // its bytes
	byMessages     *ranking.Ranking[*Session] // of all sessions, where about as many messages are stored as may be; else nil
	byBytes        *ranking.Ranking[*Session] // the same of bytes
}

// lending is what the committer knows of what it has given back of the reserve.
type lending struct {
	lent      bool            // the reserve is given back, for what makes room
	leftSize  int64           // bytes of what was left last, in the log
	unmovable map[uint32]bool // segments of which a message could not be read
}

// A trouble is logged when it begins, and when it is over, not each time that it occurs.
type trouble struct{ on atomic.Bool }

// begins notes it; false if it has begun before.
func (t *trouble) begins() bool { return !t.on.Swap(true) }

// ends notes that it is over; false if there was none.
func (t *trouble) ends() bool { return t.on.Swap(false) }

// Open opens the store in a directory. Damage in it is logged and counted, and never an
// error; an error is that the directory cannot be used now, or was written by a later
// release.
func Open(ctx context.Context, o Options) (*Store, error) {
	o.Limits.Defaults()
	o.segmentBytes = cmp.Or(o.segmentBytes, 16<<20)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Damaged == nil {
		o.Damaged = func(*statefile.Damage) {}
	}
	if o.Dropped == nil {
		o.Dropped = func(int, string) {}
	}
	s := &Store{
		o: o, log: o.Logger, clients: make(map[string]*Session), counts: make(map[counted]int),
		live: sessionlog.NewLive(), stop: make(chan struct{}),
	}
	s.changes.init()
	s.unmovable = make(map[uint32]bool)
	begun, st := o.Now(), state.New()
	var err error
	var found sessionlog.Found
	s.records, found, err = sessionlog.Open(disk.Or(o.Disk), o.Dir, func(b []byte) error {
		loaded, err := state.Load(b)
		if err == nil {
			st = loaded
		}
		return err
	}, func(b []byte, ref state.Ref) error {
		r, err := state.Decode(b)
		if err != nil {
			return err
		}
		st.Apply(r, ref)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open sessions in %s: %w", o.Dir, err)
	}
	for _, d := range found.Damage {
		s.damaged(ctx, d)
	}
	if found.Unsealed != "" { // as a crash leaves it, or a disk that lost the end
		s.log.WarnContext(ctx, "the end of the stored sessions is not known to be whole: what was not there whole is left out", "path", found.Unsealed, "bytes", found.Torn)
	}
	if found.Full != nil {
		s.note(found.Full)
		s.changes.later()
	}
	if err := s.measure(); err != nil {
		return nil, errors.Join(fmt.Errorf("open sessions in %s: %w", o.Dir, err), s.records.Close())
	}
	s.lent = !s.records.Reserve(s.reserve) // as a start on a full disk finds it: what is free next is for that
	s.clock = state.Resume(st.Time, begun)
	s.adopt(ctx, st, &found)
	s.tail.Store(s.records.Size())
	if s.checkpointDue {
		s.changes.arrived.Notify()
	}
	s.work.Go(s.commitAll)
	s.log.InfoContext(ctx, "sessions opened", "sessions", len(s.clients), "messages", s.messages.Load(), "bytes", s.bytes.Load(),
		"unflushed_bytes", found.Torn, "took", o.Now().Sub(begun))
	return s, nil
}

// damaged counts and reports damage that Open has met. The next start is to begin behind it.
func (s *Store) damaged(ctx context.Context, d *statefile.Damage) {
	s.lost.Add(int64(max(1, d.Lost)))
	s.log.ErrorContext(ctx, "sessions are damaged: what could be read is there", "err", d)
	s.o.Damaged(d)
	s.checkpointDue = true
}

// adopt makes the sessions of what the log says.
func (s *Store) adopt(ctx context.Context, st *state.State, found *sessionlog.Found) {
	if found.Incomplete {
		s.log.WarnContext(ctx, "the log of sessions may lack the last that became of them: clients may have connected meanwhile, and get again what waits for them")
		s.checkpointDue = true // it is to have what is marked now
		s.unmarked.Store(true)
	}
	for segment, n := range st.Prune(s.records.Has) {
		if s.records.Trimmed(segment) {
			s.log.InfoContext(ctx, "messages were acknowledged or dropped while the disk took no note of it", "messages", n)
			continue
		}
		if d := s.records.Unreadable(segment, fmt.Errorf("%w, although messages for sessions are in it", fs.ErrNotExist)); d != nil {
			d.Lost = uint64(n)
			s.damaged(ctx, d)
		}
	}
	st.Finish(s.clock.At(s.o.Now()), found.Incomplete)
	if found.Incomplete && found.Noted {
		s.forgetWills(ctx, st)
	}
	s.lastID = st.LastID
	seen := make(map[*state.Message]struct{})
	newest := make(map[string]state.SessionID)
	for id, stored := range st.Sessions {
		newest[stored.Client] = max(newest[stored.Client], id)
	}
	for id, stored := range st.Sessions {
		if newest[stored.Client] != id { // damage has hidden its end
			continue
		}
		one := &Session{store: s, state: *stored}
		one.state.Owner = shared(stored.Owner, stored.Identity)
		s.clients[stored.Client] = one
		s.count(one.Owner(), 1)
		for item := range one.state.Queue.All {
			s.messages.Add(1)
			if _, counted := seen[item.Message]; !counted {
				if item.Message.Shared() {
					seen[item.Message] = struct{}{}
				}
				s.bytes.Add(int64(item.Message.Size))
				s.live.Add(item.Message.Ref(), 1)
			}
		}
	}
}

// Close waits for all changes that were made before, and closes the log.
func (s *Store) Close() error {
	s.closed.Do(func() { close(s.stop) })
	s.work.Wait()
	return s.records.Close()
}

// All returns all sessions, in no order.
func (s *Store) All() []*Session {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]*Session, 0, len(s.clients))
	for _, one := range s.clients {
		out = append(out, one)
	}
	return out
}

// number is how many sessions there are.
func (s *Store) number() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.clients)
}

// Get returns the session of a client id, or nil.
func (s *Store) Get(client string) *Session {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.clients[client]
}

// An Owner is the identity that a session belongs to.
type Owner struct {
	Name     string
	Identity string // all of it, as the broker encodes it
	Address  string // from where the session was made; "": it counts for no address
}

// counted is what sessions are counted by: one of the two is set.
type counted struct{ name, address string }

// count counts a session, or with -1 one less. s.mu is held, or s is not shared yet.
func (s *Store) count(o Owner, n int) {
	for _, p := range []counted{{name: o.Name}, {address: o.Address}} {
		if p == (counted{}) {
			continue
		}
		if s.counts[p] += n; s.counts[p] == 0 {
			delete(s.counts, p)
		}
	}
}

// Create makes a session, unless that is one too many: then the error is of kind Unavailable.
// Its client id has none.
func (s *Store) Create(client string, owner Owner, expiry uint32) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.full(owner); err != nil {
		return nil, err
	}
	s.lastID++
	one := &Session{store: s, state: state.Session{ID: s.lastID, Client: client, Identity: withAddress(owner), Expiry: expiry}}
	one.state.Owner = shared(owner.Name, one.state.Identity)
	s.clients[client] = one
	s.count(owner, 1)
	s.changes.add(change{record: state.Begin{Session: s.lastID, Client: client, Owner: owner.Name, Identity: one.state.Identity, Expiry: expiry}, flush: true})
	return one, nil
}

// full returns why an owner may not have one more session, and which owners' sessions stand in its
// way; nil if it may. s.mu is held.
func (s *Store) full(o Owner) (rival func(Owner) bool, err error) {
	switch l := &s.o.Limits; {
	case s.counts[counted{name: o.Name}] >= l.PerIdentity:
		return func(other Owner) bool { return other.Name == o.Name },
			protocol.Errorf(protocol.Unavailable, "%s has %d sessions: that is the limit of one identity; connect without a session, or raise sessions.perIdentity", o.Name, l.PerIdentity)
	case o.Address != "" && s.counts[counted{address: o.Address}] >= l.PerAddress:
		return func(other Owner) bool { return other.Address == o.Address },
			protocol.Errorf(protocol.Unavailable, "the clients at %s have %d sessions: that is the limit of one address; connect without a session, or raise sessions.perAddress", o.Address, l.PerAddress)
	case len(s.clients) >= l.Sessions:
		return func(Owner) bool { return true },
			protocol.Errorf(protocol.Unavailable, "there are %d sessions: that is the limit; connect without a session, or raise sessions.sessions", len(s.clients))
	}
	return nil, nil
}

// MakeRoom ends the session that is the first to go where Create refuses an owner: of those without a
// connection that hold nothing, neither subscriptions nor messages, the one that is away for longest.
// It returns nil if there is none.
func (s *Store) MakeRoom(o Owner) *Session {
	s.mu.RLock()
	rival, err := s.full(o)
	s.mu.RUnlock()
	if err == nil {
		return nil
	}
	for {
		var oldest *Session
		since := int64(0)
		for _, one := range s.All() {
			if at := one.idleSince(); at > 0 && rival(one.Owner()) && (oldest == nil || at < since) {
				oldest, since = one, at
			}
		}
		if oldest == nil {
			return nil
		}
		if _, ended := oldest.end(func() bool { return oldest.idle() }); ended {
			return oldest
		}
	}
}

// Expiry returns the session expiry that a client gets, in seconds, where it asks for one of
// so many.
func (s *Store) Expiry(asked uint32) uint32 {
	return min(asked, uint32(s.o.Limits.Expiry/time.Second))
}

// Due returns the sessions that have expired, and those whose last will is due, which is
// then forgotten. It costs nothing while there are none.
func (s *Store) Due() (expired []*Session, wills map[*Session]*Will) {
	now := s.clock.At(s.o.Now())
	if now < s.earliest.Load() {
		return nil, nil
	}
	next := int64(1<<63 - 1)
	s.earliest.Store(next) // a session that becomes due earlier meanwhile lowers it
	for _, one := range s.All() {
		at, will := one.due(now)
		switch {
		case at == 0:
		case at <= now:
			expired = append(expired, one)
		default:
			next = min(next, at)
		}
		if will != nil {
			if wills == nil {
				wills = make(map[*Session]*Will)
			}
			wills[one] = will
		}
	}
	s.dueBy(next)
	return expired, wills
}

// dueBy notes that something is due at a time of the clock.
func (s *Store) dueBy(at int64) {
	for {
		was := s.earliest.Load()
		if was <= at || s.earliest.CompareAndSwap(was, at) {
			return
		}
	}
}

// Until returns what expires at a time as the clock of the log shows it.
func (s *Store) Until(t time.Time) int64 { return s.clock.Until(t) }

// Err returns why messages cannot be stored now, or nil. It is of kind Unavailable.
func (s *Store) Err() error {
	if !s.failing.Load() {
		return nil
	}
	return protocol.Errorf(protocol.Unavailable, "the broker cannot write its sessions: see its log, and free space on its disk")
}

// Stats are how much a Store holds.
type Stats struct {
	Sessions, Messages, Bytes int64
	LogBytes                  int64 // on disk, without checkpoints
	Damaged                   int64 // records and files that could not be read
	Refusing                  bool  // the disk takes no messages, or hardly any
}

// Stats returns how much the store holds.
func (s *Store) Stats() Stats {
	out := Stats{Sessions: int64(s.number()), Messages: s.messages.Load(), Bytes: s.bytes.Load(), Damaged: s.lost.Load(), Refusing: s.unwritten.on.Load()}
	out.LogBytes = s.tail.Load()
	for _, size := range s.records.Sizes() {
		out.LogBytes += size
	}
	return out
}
