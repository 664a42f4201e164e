package routing

import (
	"fmt"
	"maps"
	"strings"
	"sync/atomic"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/answer"
	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/topictree"
	"github.com/colonyfleet/colony/internal/refusals"
	"github.com/mochi-mqtt/server/v2/packets"
)

// subscriptions are those of one subscriber.
type subscriptions struct {
	filters map[string]struct{} // nil until the first
	levels  int                 // of all filters together
	bytes   int                 // the same
}

func (s *subscriptions) add(filter string) {
	if s.filters == nil {
		s.filters = make(map[string]struct{})
	}
	s.filters[filter] = struct{}{}
}

// A Subscriber is the owner of subscriptions. It has one connection at a time, or none; the
// goroutine of that connection calls the methods of the Router that change the subscriptions. The
// exported fields do not change.
type Subscriber struct {
	Client  string
	ID      access.Identity
	Address string            // that its filters and its last will are counted for
	Stored  *sessions.Session // nil: it ends with its connection

	will    atomic.Int64               // bytes that are counted for a last will that waits
	now     atomic.Pointer[Connection] // nil while it is away
	subs    subscriptions
	replays *replays // of retained messages to new subscriptions; nil until the first
}

// NewSubscriber returns the subscriber of a session that is stored, without its subscriptions.
func NewSubscriber(stored *sessions.Session) *Subscriber {
	return &Subscriber{
		Client: stored.Client(), ID: access.DecodeIdentity(stored.Owner().Identity), Address: stored.Owner().Address, Stored: stored,
	}
}

// Connect says that messages for the subscriber go to a connection from now on.
func (s *Subscriber) Connect(c Connection) { s.now.Store(&c) }

// Leave says that the subscriber has no connection any more.
func (s *Subscriber) Leave() { s.now.Store(nil) }

// connection is that of the subscriber, or nil.
func (s *Subscriber) connection() Connection {
	if c := s.now.Load(); c != nil {
		return *c
	}
	return nil
}

// Idle reports whether the subscriber has neither a connection, nor subscriptions, nor a last will that waits.
func (s *Subscriber) Idle() bool {
	return s.now.Load() == nil && len(s.subs.filters) == 0 && s.will.Load() == 0
}

// Subscribed reports whether the subscriber has a subscription to a filter.
func (s *Subscriber) Subscribed(filter string) bool {
	_, known := s.subs.filters[filter]
	return known
}

// Subscribe adds a subscription of a client that has an identity now, or replaces it. It returns
// the reason code of the answer, and whether the subscription is new.
func (r *Router) Subscribe(s *Subscriber, id access.Identity, sub packets.Subscription) (code packets.Code, isNew bool) {
	plain, ok := filter.Plain(sub.Filter)
	if !ok {
		code = packets.ErrTopicFilterInvalid
		code.Reason = "filter " + refusals.Shortened(sub.Filter) + ": not a topic filter"
		return code, false
	}
	known := s.Subscribed(sub.Filter)
	levels := 1 + strings.Count(sub.Filter, "/")
	if code := r.withinQuota(s, sub.Filter, known); code.Code != 0 {
		return code, false
	}
	if !r.o.Access.MaySubscribe(id, plain) {
		code = packets.ErrNotAuthorized
		if a, ok := r.o.Access.(interface {
			Refusal(id access.Identity, filter string) string
		}); ok {
			code.Reason = a.Refusal(id, plain)
		}
		return code, false
	}
	if !known {
		if ok, whose := r.Held.Take(s.Address, heldBy(sub.Filter)); !ok {
			code = packets.ErrQuotaExceeded
			code.Reason = NoRoom("subscription", whose)
			return code, false
		}
	}
	s.subs.add(sub.Filter)
	if s.Stored != nil {
		s.Stored.Subscribe(sub.Filter, sessions.Subscription{
			Identifier: sub.Identifier, QoS: sub.Qos, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished,
		})
	}
	r.tree.Add(s, sub.Filter, topictree.Options{ // [MQTT-3.8.4-3]
		Identifier: sub.Identifier, QoS: sub.Qos, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished,
	})
	if !known {
		s.subs.levels += levels
		s.subs.bytes += len(sub.Filter)
		r.o.Metrics.Subscribed(sub.Filter, 1)
	}
	return packets.Code{Code: sub.Qos}, !known
}

// levelsPerFilter is how many levels the filters of a client may have, on average: what
// a subscription takes is taken by its levels.
const levelsPerFilter = 10

// heldBy is about the memory that a subscription takes, in bytes, and for a filter with more levels than usual ones have, more: each of
// them is what topics are compared with.
func heldBy(filter string) int64 {
	const usual, few, many = 8, 64, 320
	levels := 1 + strings.Count(filter, "/")
	return int64(len(filter)+256) + int64(min(levels, usual))*few + int64(max(levels-usual, 0))*many
}

// withinQuota refuses a filter for which the client has no room, by reason code.
func (r *Router) withinQuota(s *Subscriber, filter string, known bool) (code packets.Code) {
	l, levels := r.o.Limits, 1+strings.Count(filter, "/")
	switch {
	case levels > l.Levels:
		code = packets.ErrTopicFilterInvalid
		code.Reason = fmt.Sprintf("filter with %d levels: the limit is %d; see limits.levels", levels, l.Levels)
	case known:
	case len(s.subs.filters) >= l.Filters:
		code = packets.ErrQuotaExceeded
		code.Reason = fmt.Sprintf("%d subscriptions: that is the limit of a client; see limits.filters", len(s.subs.filters))
	case s.subs.levels+levels > l.Filters*levelsPerFilter:
		code = packets.ErrQuotaExceeded
		code.Reason = fmt.Sprintf("subscriptions with %d levels in all: the limit of a client is %d; see limits.filters", s.subs.levels+levels, l.Filters*levelsPerFilter)
	case s.subs.bytes+len(filter) > l.FilterBytes:
		code = packets.ErrQuotaExceeded
		code.Reason = fmt.Sprintf("subscriptions with filters of %d bytes in all: the limit of a client is %d; see limits.filterBytes", s.subs.bytes+len(filter), l.FilterBytes)
	}
	return code
}

// TopicOf is the topic of a PUBLISH. What the aliases of a client keep counts for its address, also where it may not publish
// there; with an error for want of room its connection ends.
func (r *Router) TopicOf(p *packet.Publication, aliases *answer.Aliases, address string) (string, error) {
	before := aliases.Held()
	topic, err := aliases.Topic(p)
	more := aliases.Held() - before
	switch {
	case more < 0:
		r.Held.Add(address, more)
	case more > 0:
		if ok, whose := r.Held.Take(address, more); !ok {
			r.Held.Add(address, -before)
			*aliases = answer.Aliases{}
			code := packets.ErrQuotaExceeded
			code.Reason = NoRoom("topic alias", whose)
			return "", code
		}
	}
	return topic, err
}

// NoRoom says that there is no room for a filter, a last will or a topic alias.
func NoRoom(what, whose string) string {
	return fmt.Sprintf("no room for a %s: the filters, last wills and topic aliases of %s reach the limit: have fewer, or raise limits.stateBytes and limits.statePerAddress", what, whose)
}

// Forget ends a subscription.
func (r *Router) Forget(s *Subscriber, from string) {
	r.tree.Remove(s, from)
	r.Held.Add(s.Address, -r.forgotten(s, from))
	delete(s.subs.filters, from)
	s.subs.levels -= 1 + strings.Count(from, "/")
	s.subs.bytes -= len(from)
}

// ForgetAll ends all subscriptions of a subscriber.
func (r *Router) ForgetAll(s *Subscriber) {
	r.tree.RemoveAll(s, maps.Keys(s.subs.filters))
	held := int64(0)
	for from := range s.subs.filters {
		held += r.forgotten(s, from)
	}
	r.Held.Add(s.Address, -held)
	s.subs = subscriptions{}
}

// forgotten ends what goes with a subscription, and returns what was held for it.
func (r *Router) forgotten(s *Subscriber, from string) int64 {
	if s.replays != nil {
		s.replays.remove(from)
	}
	r.o.Metrics.Subscribed(from, -1)
	return heldBy(from)
}

// HoldWill counts the bytes of a last will that waits for its delay, and no longer those of an earlier
// one; 0 where none waits any more.
func (r *Router) HoldWill(sub *Subscriber, bytes int64) {
	r.Held.Add(sub.Address, bytes-sub.will.Swap(bytes))
}
