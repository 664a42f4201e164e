// Package live hands the machine data that this CO delivers to those of its parts
// that watch it, such as a stream of the API. It stores nothing: a slow subscription
// loses messages, and reports how many.
package live

import (
	"sync"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol"
)

// A Hub hands what is delivered to its subscriptions. The zero Hub is ready; its methods
// may be called concurrently and never block for long.
type Hub struct {
	mu   sync.RWMutex
	subs map[protocol.SiteID]map[*Subscription]struct{}
}

// A Subscription gets the deliveries of one site. One goroutine reads it.
type Subscription struct {
	hub   *Hub
	site  protocol.SiteID
	match func(fleet.Delivery) bool
	limit int
	news  notify.Signal

	mu      sync.Mutex
	waiting []fleet.Delivery
	lost    uint64
}

// Subscribe begins to collect the deliveries of a site that want picks, up to limit
// of them; want may be called concurrently and must not block. Close ends it.
func (h *Hub) Subscribe(site protocol.SiteID, limit int, want func(fleet.Delivery) bool) *Subscription {
	s := &Subscription{hub: h, site: site, match: want, limit: limit, news: notify.New()}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = map[protocol.SiteID]map[*Subscription]struct{}{}
	}
	if h.subs[site] == nil {
		h.subs[site] = map[*Subscription]struct{}{}
	}
	h.subs[site][s] = struct{}{}
	return s
}

// Deliver hands out messages, in order. What they hold must not be changed any more.
func (h *Hub) Deliver(list []fleet.Delivery) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, d := range list {
		for s := range h.subs[d.Site] {
			if s.match(d) {
				s.add(d)
			}
		}
	}
}

// Committed wakes the watchers of a site: the database has new messages of it.
func (h *Hub) Committed(site protocol.SiteID) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for s := range h.subs[site] {
		s.news.Notify()
	}
}

func (s *Subscription) add(d fleet.Delivery) {
	s.mu.Lock()
	if len(s.waiting) < s.limit {
		s.waiting = append(s.waiting, d)
	} else {
		s.lost++
	}
	s.mu.Unlock()
	s.news.Notify()
}

// C delivers a value when there may be something to receive, or to read from the
// database.
func (s *Subscription) C() <-chan struct{} { return s.news.C() }

// Next returns what was collected since the last time, and how many messages came
// after them and found no room.
func (s *Subscription) Next() (list []fleet.Delivery, lost uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, lost = s.waiting, s.lost
	s.waiting, s.lost = nil, 0
	return list, lost
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subs[s.site], s)
	if len(s.hub.subs[s.site]) == 0 {
		delete(s.hub.subs, s.site)
	}
}
