// Package inflight keeps account of what is under way to one client: the packet ids
// of messages that it has not acknowledged, and the packets that wait for it.
package inflight

// IDs holds the packet ids of the messages of QoS 1 and 2 under way to one
// client. It needs not the messages: sessions end with their connection, and MQTT
// forbids to send again before that. [MQTT-4.4.0-1] Not safe for concurrent use.
type IDs struct {
	last uint16
	open map[uint16]Packet // nil until the first message
}

// A Packet is what the broker waits for before the next step of a message.
type Packet byte

// The packets of a client that acknowledge.
const (
	Puback Packet = iota + 1
	Pubrec
	Pubcomp
)

// Len is how many messages are under way.
func (f *IDs) Len() int { return len(f.open) }

// Clear forgets all, and returns how many there were.
func (f *IDs) Clear() int {
	n := len(f.open)
	f.open = nil
	return n
}

// Acquire returns a free packet id for a message of QoS 1 or 2. The caller
// sees to it that fewer than 65,535 are in use. [MQTT-2.2.1-4]
func (f *IDs) Acquire(qos byte) uint16 {
	if f.open == nil {
		f.open = make(map[uint16]Packet)
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

// End frees an id if its message waits for this packet.
func (f *IDs) End(id uint16, w Packet) bool {
	if f.open[id] != w {
		return false
	}
	delete(f.open, id)
	if len(f.open) == 0 && f.last > 1024 {
		f.open = nil // a map does not shrink
	}
	return true
}

// Recorded notes a PUBREC; false if the id is unknown. [MQTT-4.3.3-4]
func (f *IDs) Recorded(id uint16) bool {
	switch f.open[id] {
	case Pubrec, Pubcomp:
		f.open[id] = Pubcomp
		return true
	}
	return false
}
