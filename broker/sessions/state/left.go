package state

import "maps"

// Left says of sessions which of the messages are left that the log has before it. It takes the place of all records that say
// how others ended.
type Left struct{ List []Remaining }

// Remaining is what is left of one session.
type Remaining struct {
	Session  SessionID
	Next     uint64   // of messages with this number or a higher one nothing is said
	Ranges   []Range  // of messages that are left, by number
	Received []uint16 // packet ids of the client's messages of QoS 2 before PUBREL
}

// A Range is messages of a queue whose numbers follow each other.
type Range struct {
	First, Count uint64
	Released     bool // only PUBREL is left to send
}

// Remaining returns what is left of the session.
func (s *Session) Remaining() Remaining {
	r := Remaining{Session: s.ID, Next: s.Queue.NextSeq()}
	for item := range s.Queue.All {
		if n := len(r.Ranges); n > 0 {
			if last := &r.Ranges[n-1]; last.Released == item.Released && last.First+last.Count == item.Seq {
				last.Count++
				continue
			}
		}
		r.Ranges = append(r.Ranges, Range{First: item.Seq, Count: 1, Released: item.Released})
	}
	for id := range s.Received {
		r.Received = append(r.Received, id)
	}
	return r
}

// keep removes what is not left.
func (st *State) keep(r *Remaining) {
	s := st.Sessions[r.Session]
	if s == nil {
		return
	}
	var removed, released []uint64
	ranges := r.Ranges
	for item := range s.Queue.All {
		for len(ranges) > 0 && item.Seq >= ranges[0].First+ranges[0].Count {
			ranges = ranges[1:]
		}
		switch {
		case item.Seq >= r.Next:
		case len(ranges) == 0 || item.Seq < ranges[0].First:
			removed = append(removed, item.Seq)
		case ranges[0].Released && !item.Released:
			released = append(released, item.Seq)
		}
	}
	for _, seq := range removed {
		st.release(s.Queue.Remove(seq))
	}
	for _, seq := range released {
		st.release(s.Queue.Release(seq))
	}
	received := make(map[uint16]struct{}, len(r.Received))
	for _, id := range r.Received {
		received[id] = struct{}{}
	}
	maps.DeleteFunc(s.Received, func(id uint16, _ struct{}) bool { _, there := received[id]; return !there })
}

// Append implements Record.
func (r Left) Append(b []byte) []byte {
	b = append(b, kindLeft)
	for i := range r.List {
		one := &r.List[i]
		b = number(number(number(b, one.Session), one.Next), len(one.Ranges))
		at := uint64(0)
		for _, r := range one.Ranges {
			released := byte(0)
			if r.Released {
				released = 1
			}
			b = number(number(append(b, released), r.First-at), r.Count)
			at = r.First + r.Count
		}
		b = number(b, len(one.Received))
		for _, id := range one.Received {
			b = number(b, id)
		}
	}
	return b
}

func (d *decoder) remaining() Remaining {
	r := Remaining{Session: SessionID(d.number()), Next: d.number()}
	at := uint64(0)
	for n := d.number(); n > 0 && d.err == nil; n-- {
		one := Range{Released: d.byte() == 1}
		one.First = at + d.number()
		one.Count = d.number()
		at = one.First + one.Count
		r.Ranges = append(r.Ranges, one)
	}
	for n := d.number(); n > 0 && d.err == nil; n-- {
		r.Received = append(r.Received, uint16(d.number()))
	}
	return r
}
