// Package lasting joins the sessions that outlive their connection to the routing of messages: as long as one is
// stored it has a subscriber, with or without a connection.
package lasting

import (
	"context"
	"log/slog"
	"sync"

	"github.com/colonyfleet/colony/broker/metrics"
	"github.com/colonyfleet/colony/broker/routing"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// Storage says where sessions are stored.
type Storage struct {
	Dir    string  // "": they are not stored, as with Limits.Off
	Disk   disk.FS // where Dir is; nil: the file system of the machine
	Limits sessions.Limits
	// Damaged, unless nil, is sessions.Options.Damaged.
	Damaged func(*statefile.Damage)
}

// Off reports whether no session is stored.
func (s Storage) Off() bool { return s.Dir == "" || s.Limits.Off }

// Options configure Sessions.
type Options struct {
	Storage Storage
	Logger  *slog.Logger
	Routes  *routing.Router
	Metrics *metrics.Metrics
	// Will sends a last will whose delay is over, or whose session has ended.
	Will func(*sessions.Session, *sessions.Will)
}

// Sessions are all that outlive their connection, in their store. The methods may be called concurrently.
type Sessions struct {
	*sessions.Store
	o   Options
	log *slog.Logger

	mu sync.RWMutex // protects what follows
	// subscribers has those of all sessions but such as Rest has taken out of it.
	subscribers map[*sessions.Session]*routing.Subscriber
}

// Open opens what is stored, and subscribes for it. It is called once for o.Routes, before any message.
func Open(ctx context.Context, o Options) (*Sessions, error) {
	store, err := sessions.Open(ctx, sessions.Options{
		Dir: o.Storage.Dir, Disk: o.Storage.Disk, Limits: o.Storage.Limits, Damaged: o.Storage.Damaged, Logger: o.Logger, Dropped: o.Metrics.DroppedStored,
	})
	if err != nil {
		return nil, err
	}
	return &Sessions{Store: store, o: o, log: o.Logger, subscribers: o.Routes.Open(store)}, nil
}

// Create makes a session, for which one that holds nothing ends where there are too many.
func (s *Sessions) Create(client string, owner sessions.Owner, expiry uint32) (*sessions.Session, error) {
	stored, err := s.create(client, owner, expiry)
	if err == nil {
		return stored, nil
	}
	idle := s.MakeRoom(owner)
	if idle == nil {
		return nil, err
	}
	s.discard(idle, nil)
	s.o.Metrics.EvictedSessions.Inc()
	s.log.Info("session ended that held nothing: another client needs its place", "client", idle.Client(), "for", client, "limit", err)
	return s.create(client, owner, expiry)
}

func (s *Sessions) create(client string, owner sessions.Owner, expiry uint32) (*sessions.Session, error) {
	s.mu.Lock() // so that the goroutine that ends the session finds its subscriber
	defer s.mu.Unlock()
	stored, err := s.Store.Create(client, owner, expiry)
	if err == nil {
		s.subscribers[stored] = routing.NewSubscriber(stored)
	}
	return stored, err
}

// Subscriber is that of a session; nil if the session has ended.
func (s *Sessions) Subscriber(stored *sessions.Session) *routing.Subscriber {
	s.mu.Lock() // so that the goroutine that ends the session finds a new one
	defer s.mu.Unlock()
	sub := s.subscribers[stored]
	if sub == nil && s.Get(stored.Client()) == stored {
		sub = routing.NewSubscriber(stored)
		s.subscribers[stored] = sub
	}
	return sub
}

// Rest forgets the subscriber of a session whose connection has ended, if it has no subscriptions and no last will:
// it takes as much memory as the session. The next connection gets another one.
func (s *Sessions) Rest(sub *routing.Subscriber) {
	if !sub.Idle() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscribers[sub.Stored] == sub {
		delete(s.subscribers, sub.Stored)
	}
}

// End ends a session, and sends the last will that waited for it.
func (s *Sessions) End(stored *sessions.Session) { s.discard(stored, stored.End()) }

// EndIfAway is End for a session that has no connection; false if it has one.
func (s *Sessions) EndIfAway(stored *sessions.Session) bool {
	will, ended := stored.EndIfAway()
	if ended {
		s.discard(stored, will)
	}
	return ended
}

// Expire ends sessions whose time is up, and sends last wills whose delay is over. It costs nothing while there are none.
func (s *Sessions) Expire() {
	expired, wills := s.Due()
	for stored, w := range wills {
		s.mu.RLock()
		sub := s.subscribers[stored]
		s.mu.RUnlock()
		if sub != nil {
			s.o.Routes.HoldWill(sub, 0)
		}
		s.o.Will(stored, w)
	}
	for _, stored := range expired {
		if will, ok := stored.EndIfExpired(); ok {
			s.discard(stored, will)
			s.o.Metrics.ExpiredSessions.Inc()
			s.log.Info("session expired", "client", stored.Client())
		}
	}
}

// discard forgets the subscriptions of a session that has ended.
func (s *Sessions) discard(stored *sessions.Session, will *sessions.Will) {
	s.mu.Lock()
	sub := s.subscribers[stored]
	delete(s.subscribers, stored)
	s.mu.Unlock()
	if sub != nil {
		s.o.Routes.HoldWill(sub, 0)
		s.o.Routes.ForgetAll(sub)
	}
	if will != nil {
		s.o.Will(stored, will)
	}
}
