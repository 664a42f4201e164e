package broker

// A window holds the packets that wait to be written to one client, and keeps
// the client's Receive Maximum: of the PUBLISH packets with QoS 1 and 2 only so
// many are made ready as the client has room for; the rest are held in order.
//
// mochi has such a window too, but it loses held messages and can lock itself
// for good while it looks for the next one; it is never told the client's number.
// It is not safe for concurrent use.
type window struct {
	limit   int  // Receive Maximum; 0: none
	v3      bool // the client speaks MQTT 3: it must not be sent a DISCONNECT
	unacked int
	ready   []byte   // whole packets, to be written next
	held    [][]byte // PUBLISH packets for which there is no room yet
	size    int      // bytes in ready and held
}

// add takes whole packets.
func (w *window) add(p []byte) {
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

func (w *window) addOne(p []byte) {
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

// release makes room for one more message.
func (w *window) release() {
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

// take returns what is ready.
func (w *window) take() []byte {
	p := w.ready
	w.ready = nil
	w.size -= len(p)
	return p
}

// dropHeld forgets what is held, and returns how many bytes that were.
func (w *window) dropHeld() int {
	n := w.size - len(w.ready)
	w.held, w.size = nil, len(w.ready)
	return n
}

// drop forgets everything, and returns how many bytes that were.
func (w *window) drop() int {
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
