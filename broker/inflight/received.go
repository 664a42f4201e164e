package inflight

import "sync"

// Received are the packet ids of messages of QoS 2 that came and wait for PUBREL. The zero value
// has none. Its methods may be called concurrently. [MQTT-4.3.3-10]
type Received struct {
	mu  sync.Mutex          // protects ids
	ids map[uint16]struct{} // nil until the first
}

// Begin notes a packet id, unless there are most of them. known says that it was noted before,
// room that the client may have one more.
func (r *Received) Begin(id uint16, most int) (known, room bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known = r.ids[id]; known || len(r.ids) >= most {
		return known, false
	}
	r.add(id)
	return false, true
}

// Add notes packet ids.
func (r *Received) Add(ids ...uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(ids...)
}

// add is Add with r.mu held.
func (r *Received) add(ids ...uint16) {
	if r.ids == nil && len(ids) > 0 {
		r.ids = make(map[uint16]struct{}, len(ids))
	}
	for _, id := range ids {
		r.ids[id] = struct{}{}
	}
}

// End forgets a packet id; false if it is unknown.
func (r *Received) End(id uint16) (known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known = r.ids[id]
	delete(r.ids, id)
	return known
}
