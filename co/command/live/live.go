// Package live hands the output of live commands, such as the lines of a log, to its readers, and lets the nodes send as
// fast as these read. It stores nothing: output for which a slow reader has no room is dropped and counted.
package live

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/items"
)

const (
	// MaxReaders bounds the readers of a CO.
	MaxReaders = 256
	// room bounds what waits for a reader, in bytes of data, and with it the memory of MaxReaders.
	room = 4 << 20
	// frames bounds the same in frames: a node may send small ones.
	frames = 4096
	// renewal is how often credit is sent: several times within the lease of a node (command.LeaseMillis).
	renewal = 4 * time.Second
	// early is the same before the first message of each node: the CO does not know when a node begins.
	early = time.Second
	// pace is the least time between two messages of credit.
	pace = 100 * time.Millisecond
)

// A key names a command at a site.
type key struct {
	site protocol.SiteID
	id   command.ID
}

// A Hub hands frames to readers. Its methods may be called concurrently.
type Hub struct {
	// publish sends an encoded command.Credit.
	publish        func(ctx context.Context, site protocol.SiteID, id command.ID, payload []byte) error
	received, lost prometheus.Counter // bytes

	mu      sync.RWMutex // protects readers
	readers map[key]map[*Reader]struct{}
	count   int
}

// New returns a Hub, which sends credit by publish. The registerer may be nil.
func New(publish func(ctx context.Context, site protocol.SiteID, id command.ID, payload []byte) error, reg prometheus.Registerer) *Hub {
	f := promauto.With(reg)
	h := &Hub{
		publish: publish, readers: map[key]map[*Reader]struct{}{},
		received: f.NewCounter(prometheus.CounterOpts{Name: "colony_co_live_received_bytes_total", Help: "Bytes that nodes sent live to readers of this CO, such as lines of logs."}),
		lost:     f.NewCounter(prometheus.CounterOpts{Name: "colony_co_live_lost_bytes_total", Help: "Bytes of the same that were left out, or lost on their way, and counted."}),
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: "colony_co_live_readers", Help: "Who reads now what nodes send live, by way of this CO; at most 256."}, func() float64 {
		h.mu.RLock()
		defer h.mu.RUnlock()
		return float64(h.count)
	})
	return h
}

// A Reader gets what the nodes of one command send. One goroutine reads it, another one keeps it.
type Reader struct {
	hub    *Hub
	key    key
	most   uint64    // that each node may send ahead of what was read, on a fast way
	opened time.Time // see window.now
	news   notify.Signal
	moved  notify.Signal // there is more credit

	mu      sync.Mutex // protects what follows
	waiting []queued
	bytes   int
	nodes   map[protocol.NodeID]*sender
	unheard int // nodes that have sent nothing yet
}

// A queued frame waits for its reader.
type queued struct {
	command.Frame
	// cost is what its node sent with it, and before it since the frame before, in bytes, also where that was left out.
	cost uint64
}

// A sender is a node that sends.
type sender struct {
	seq  uint64 // of the last frame
	read uint64 // bytes that it sent and that were read, or left out before what was read
	// window is what it may send ahead of that.
	window window
	// cost is that of frames that found no room since the last one that did, lostItems and lostBytes what they had.
	cost, lostItems, lostBytes uint64
	// totalItems and totalBytes are what it had had to send up to the last frame, where it counts that.
	totalItems, totalBytes uint64
	ended                  bool
}

// Open begins to collect what so many nodes send for a command. Close ends it. The error is of kind Unavailable where
// there are MaxReaders.
func (h *Hub) Open(site protocol.SiteID, id command.ID, nodes int) (*Reader, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count >= MaxReaders {
		return nil, protocol.Errorf(protocol.Unavailable, "%d logs and sessions are followed by way of this CO, which is the limit: end one, or try again later", h.count)
	}
	r := &Reader{
		hub: h, key: key{site, id}, news: notify.New(), moved: notify.New(), nodes: map[protocol.NodeID]*sender{}, unheard: nodes,
		most: uint64(min(max(room/max(nodes, 1), command.MaxFrame), 16*command.MaxFrame)), opened: time.Now(),
	}
	if h.readers[r.key] == nil {
		h.readers[r.key] = map[*Reader]struct{}{}
	}
	h.readers[r.key][r] = struct{}{}
	h.count++
	return r, nil
}

// Accept hands an encoded frame of a site to the readers of the command. A frame without a reader is dropped. The error is
// of kind Invalid where it is no frame.
func (h *Hub) Accept(site protocol.SiteID, id string, payload []byte) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	readers := h.readers[key{site, command.ID(id)}]
	if len(readers) == 0 {
		return nil
	}
	var f command.Frame
	if err := command.Unmarshal(payload, &f); err != nil {
		return err
	}
	if _, err := protocol.ParseNodeID(string(f.Node)); err != nil || len(f.Data) > command.MaxFrame {
		return protocol.Errorf(protocol.Invalid, "frame of command %s, node %q, with %d bytes: want the name of a node, and at most %d bytes", id, f.Node, len(f.Data), command.MaxFrame)
	}
	for r := range readers {
		r.add(f)
	}
	return nil
}

// follow takes note of a frame, and makes what it says of losses complete. It reports false for one that came twice, or says nothing.
func (s *sender) follow(f *command.Frame) bool {
	if f.TotalBytes > 0 {
		return s.count(f)
	}
	switch {
	case f.Seq == 1 && s.seq > 1: // it begins again after a crash
		s.seq = 0
	case f.Seq <= s.seq:
		return false // it came twice
	}
	if missed := f.Seq - s.seq - 1; missed > 0 {
		// What they held is not known: they count as full, so that the node may go on.
		s.cost += missed * command.MaxFrame
		f.LostItems = max(f.LostItems, 1) // at least
	}
	s.seq = f.Seq
	return true
}

// count is follow by what the node itself has counted, whose LO may have lost frames, or number them anew after a crash.
func (s *sender) count(f *command.Frame) bool {
	news, bytes := f.TotalItems-min(f.TotalItems, s.totalItems), f.TotalBytes-min(f.TotalBytes, s.totalBytes)
	if news == 0 && bytes == 0 && (!f.End || s.ended) {
		return false
	}
	for f.Items > news { // it came before in part
		n := command.FirstItem(f.Data)
		if n == 0 {
			break
		}
		f.Items, f.Data = f.Items-1, f.Data[n:]
	}
	f.LostItems, f.LostBytes = news-min(news, f.Items), bytes-min(bytes, uint64(len(f.Data)))
	s.totalItems, s.totalBytes = s.totalItems+news, s.totalBytes+bytes
	s.seq, s.ended = f.Seq, s.ended || f.End
	return true
}

// add queues a frame; where there is no room its data is left out, and counted in the next one.
func (r *Reader) add(f command.Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.nodes[f.Node]
	if s == nil {
		if len(r.nodes) > command.MaxNodes {
			return
		}
		s = &sender{}
		r.nodes[f.Node] = s
		r.unheard--
	}
	if !s.follow(&f) {
		return
	}
	s.window.arrived(time.Now(), len(f.Data), r.most)
	r.hub.received.Add(float64(len(f.Data)))
	r.hub.lost.Add(float64(f.LostBytes))
	s.cost += f.LostBytes + uint64(len(f.Data))
	s.lostItems, s.lostBytes = s.lostItems+f.LostItems, s.lostBytes+f.LostBytes
	if r.bytes+len(f.Data) > room || len(r.waiting) >= frames {
		s.lostItems, s.lostBytes = s.lostItems+f.Items, s.lostBytes+uint64(len(f.Data))
		r.hub.lost.Add(float64(len(f.Data)))
		if !f.End { // an end always finds room
			return
		}
		f.Data, f.Items = nil, 0
	}
	f.LostItems, f.LostBytes = s.lostItems, s.lostBytes
	r.waiting, r.bytes = append(r.waiting, queued{f, s.cost}), r.bytes+len(f.Data)
	s.cost, s.lostItems, s.lostBytes = 0, 0, 0
	r.news.Notify()
}

// C delivers a value when there may be something to read.
func (r *Reader) C() <-chan struct{} { return r.news.C() }

// Next returns the frame that has waited longest; ok is false where none waits. What it returned counts as read.
func (r *Reader) Next() (f command.Frame, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return f, false
	}
	first := r.waiting[0]
	r.waiting[0] = queued{}
	r.waiting, r.bytes = r.waiting[1:], r.bytes-len(first.Data)
	r.nodes[first.Node].read += first.cost
	if len(r.waiting) == 0 { // nothing that waits will bring what these left out
		for _, s := range r.nodes {
			s.read, s.cost = s.read+s.cost, 0
		}
	}
	r.moved.Notify()
	return first.Frame, true
}

// credit returns what each node may have sent, all in all, the size of its window, and whether some node has
// sent nothing yet.
func (r *Reader) credit() (n, size uint64, unheard bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, idle := time.Now(), len(r.waiting) == 0
	if r.unheard > 0 {
		var w window
		size = w.now(now, r.opened, idle)
		n = size
	}
	for _, s := range r.nodes {
		w := s.window.now(now, r.opened, idle)
		if s.read+w > n {
			n, size = s.read+w, w
		}
	}
	return n, size, r.unheard > 0
}

// Keep lets the nodes send as fast as the reader takes, until ctx ends. They end some seconds after it has.
func (r *Reader) Keep(ctx context.Context) {
	var sent uint64
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.moved.C():
			if now, size, _ := r.credit(); now < sent+size/4 {
				continue
			}
			if retry.Sleep(ctx, pace) != nil {
				return
			}
		case <-timer.C:
		}
		now, _, unheard := r.credit()
		now = max(now, sent) // a window that became smaller takes nothing back
		// One that is not sent is followed by another one; the nodes wait for a few.
		if r.hub.publish(ctx, r.key.site, r.key.id, protocol.Marshal(&command.Credit{V: protocol.Version, Bytes: now})) == nil {
			sent = now
		}
		wait := renewal
		if unheard {
			wait = early
		}
		timer.Reset(wait)
	}
}

// endWait bounds the time that the end of a reader is published in.
const endWait = 2 * time.Second

// Close ends the reader. If it was the last one of its command, the nodes get the message that ends it; where that
// does not reach them, their lease ends.
func (r *Reader) Close(ctx context.Context) {
	r.hub.mu.Lock()
	readers := r.hub.readers[r.key]
	_, there := readers[r]
	delete(readers, r)
	last := there && len(readers) == 0
	if last {
		delete(r.hub.readers, r.key)
	}
	if there {
		r.hub.count--
	}
	r.hub.mu.Unlock()
	if !last {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	now, _, _ := r.credit()
	_ = r.hub.publish(ctx, r.key.site, r.key.id, protocol.Marshal(&command.Credit{V: protocol.Version, Bytes: now, End: true}))
}

// Lines decodes the lines of a frame. Component and container of each are filled in.
func Lines(f command.Frame) ([]command.LogLine, error) {
	if len(f.Data) == 0 {
		return nil, nil
	}
	if f.Items == 0 || f.Items > command.MaxFrame {
		return nil, protocol.Errorf(protocol.Invalid, "frame of node %s with %d bytes and %d items", f.Node, len(f.Data), f.Items)
	}
	var list []command.LogLine
	if err := protocol.Unmarshal(items.Array(uint32(f.Items), f.Data), &list); err != nil {
		return nil, err
	}
	component, container := "", ""
	for i := range list {
		if list[i].Component != "" {
			component = list[i].Component
		}
		if list[i].Container != "" {
			container = list[i].Container
		}
		list[i].Component, list[i].Container = component, container
	}
	return list, nil
}
