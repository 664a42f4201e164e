// Package inflight keeps account of what is under way to one client: the packets
// that wait for it, and the packet ids of messages that it has not acknowledged.
package inflight

// ids are the packet ids of the messages of QoS 1 and 2 that were written to one
// client and are not acknowledged.
type ids struct {
	last uint16
	open map[uint16]Ack // nil until the first message
}

// An Ack is the packet that the broker waits for before the next step of a message.
type Ack byte

// The packets of a client that acknowledge.
const (
	Puback  Ack = iota + 1 // of a PUBLISH of QoS 1
	Pubrec                 // of a PUBLISH of QoS 2
	Pubcomp                // of a PUBREL
)

// take returns a free packet id for a message of QoS 1 or 2. The caller sees to it
// that fewer than 65,535 are in use. [MQTT-2.2.1-4]
func (f *ids) take(qos byte) uint16 {
	if f.open == nil {
		f.open = make(map[uint16]Ack)
	}
	for {
		f.last++
		if _, used := f.open[f.last]; f.last != 0 && !used {
			break
		}
	}
	f.open[f.last] = Puback
	if qos == 2 {
		f.open[f.last] = Pubrec
	}
	return f.last
}

// end frees an id if its message waits for this packet.
func (f *ids) end(id uint16, by Ack) bool {
	if f.open[id] != by {
		return false
	}
	delete(f.open, id)
	if len(f.open) == 0 && f.last > 1024 {
		f.open = nil // a map does not shrink
	}
	return true
}

// odd reports whether a message waits for another packet than this one: of another QoS, or of
// a later step.
func (f *ids) odd(id uint16, by Ack) bool {
	waits, known := f.open[id]
	return known && waits != by && !(waits == Pubcomp && by == Pubrec) // a PUBREC may come again
}

// recorded notes a PUBREC; false if the id is unknown.
func (f *ids) recorded(id uint16) bool {
	switch f.open[id] {
	case Pubrec, Pubcomp:
		f.open[id] = Pubcomp
		return true
	}
	return false
}
