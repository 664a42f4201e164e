package inflight

// A Window holds the packets that wait to be written to one client, and keeps
// the client's Receive Maximum: of the PUBLISH packets with QoS 1 and 2 only so
// many are made ready as the client has room for; the rest are held in order.
//
// mochi has such a window too, but it loses held messages and can lock itself
// for good while it looks for the next one; it is never told the client's number.
// The zero Window has no limit. It is not safe for concurrent use.
type Window struct {
	limit   int  // see Limit
	v3      bool // see Limit
	unacked int
	ready   []byte   // whole packets, to be written next
	held    [][]byte // PUBLISH packets for which there is no room yet
	size    int      // bytes in ready and held
}

// Limit sets the client's Receive Maximum, 0 for none. To a client of MQTT 3, which
// must not be sent a DISCONNECT, none goes.
func (w *Window) Limit(receiveMaximum uint16, v3 bool) { w.limit, w.v3 = int(receiveMaximum), v3 }

// Size is how many bytes wait, those that are held included.
func (w *Window) Size() int { return w.size }

// Ready reports whether Take returns something.
func (w *Window) Ready() bool { return len(w.ready) > 0 }

// Add takes whole packets.
func (w *Window) Add(p []byte) {
	if w.limit == 0 && !w.v3 {
		w.ready = append(w.ready, p...)
		w.size += len(p)
		return
	}
	for len(p) > 0 {
		n := packetLen(p)
		w.addOne(p[:n])
		p = p[n:]
	}
}

func (w *Window) addOne(p []byte) {
	const publish, disconnect = 3, 14
	switch kind, qos := p[0]>>4, p[0]>>1&3; {
	case kind == disconnect && w.v3: // [MQTT-3.1.1 3.14]: sent by clients only
	case kind == publish && qos > 0 && w.limit > 0:
		w.size += len(p)
		if w.unacked >= w.limit {
			w.held = append(w.held, append([]byte(nil), p...))
			return
		}
		w.unacked++
		w.ready = append(w.ready, p...)
	default:
		w.size += len(p)
		w.ready = append(w.ready, p...)
	}
}

// Release makes room for one more message.
func (w *Window) Release() {
	if w.limit == 0 || w.unacked == 0 {
		return
	}
	if len(w.held) == 0 {
		w.unacked--
		return
	}
	w.ready = append(w.ready, w.held[0]...)
	w.held[0] = nil
	w.held = w.held[1:]
}

// Acquire returns what is ready.
func (w *Window) Acquire() []byte {
	p := w.ready
	w.ready = nil
	w.size -= len(p)
	return p
}

// DropHeld forgets what is held, and returns how many bytes that were.
func (w *Window) DropHeld() int {
	n := w.size - len(w.ready)
	w.held, w.size = nil, len(w.ready)
	return n
}

// Drop forgets everything, and returns how many bytes that were.
func (w *Window) Drop() int {
	n := w.size
	w.ready, w.held, w.size = nil, nil, 0
	return n
}

// packetLen is the length of the packet at the head of p, which is whole.
func packetLen(p []byte) int {
	size, shift := 0, 0
	for i := 1; i < len(p); i++ {
		size |= int(p[i]&0x7f) << shift
		shift += 7
		if p[i]&0x80 == 0 {
			return min(1+i+size, len(p))
		}
	}
	return len(p)
}
