package recordlog

import (
	"encoding/binary"
	"fmt"
)

// scan walks the records of a file.
type scan struct {
	log    *Log
	b      []byte
	at     int    // the end of the last record
	next   uint64 // the number of the record that belongs there
	gap    uint64 // records that are lost before it
	sealed bool   // a seal is there
	each   func(body []byte, at int64, lost uint64) error

	lost uint64 // records
	why  error  // nil: nothing but a torn tail
}

// A record is one in the file, or a seal.
type record struct {
	body      []byte
	n         uint64 // its number; of a seal: that of the last record before it
	seal      bool
	continues bool
	end       int // offset behind it
}

// end is the offset behind the last record, and behind the seal if there is one.
func (s *scan) end() int {
	if s.sealed {
		return s.at + recordHead
	}
	return s.at
}

// run hands out the records, those behind damage too, and finds what is missing at the end.
func (s *scan) run() {
	s.walk()
	if durable := s.log.o.Durable; s.next <= durable {
		s.damage(durable+1-s.next, "it ends at byte %d, behind record %d of %d that were flushed", s.at, s.next-1, durable)
	}
}

func (s *scan) walk() {
	for s.at < len(s.b) {
		r, ok := s.record(s.at)
		switch {
		case ok && r.seal && r.n == s.next-1:
			s.sealed = true
			return // what follows is of an append whose beginning is missing
		case ok && !r.seal && r.n == s.next:
			s.accept(r.body, r.end)
			continue
		}
		at, r, found := s.find(s.at)
		if s.wrongLength(at, found, r) {
			continue
		}
		if !found || s.next > s.log.o.Durable && !s.proof(r) {
			return
		}
		next := r.n
		if r.seal {
			next++
		}
		s.damage(next-s.next, "bytes %d to %d hold no valid record", s.at, at)
		s.gap += next - s.next
		s.at, s.next = at, next
	}
}

// accept passes on the record that belongs here and ends at end.
func (s *scan) accept(body []byte, end int) {
	err := s.each(body, int64(end-len(body)-recordHead), s.gap)
	s.at, s.next, s.gap = end, s.next+1, 0
	if err != nil {
		s.damage(1, "record %d cannot be read: %w", s.next-1, err)
		s.gap = 1
	}
}

func (s *scan) damage(lost uint64, format string, args ...any) {
	s.lost += lost
	if s.why == nil { // the first one is reported; lost counts them all
		s.why = fmt.Errorf(format, args...)
	}
}

// record returns the record at an offset if it is valid, with any number.
func (s *scan) record(at int) (r record, ok bool) {
	b := s.b[at:]
	if len(b) < recordHead {
		return r, false
	}
	length := binary.LittleEndian.Uint32(b)
	size := int64(length &^ flagContinues)
	if length == sealLength {
		size = 0
	}
	if size > int64(s.log.o.MaxRecord) || size > int64(len(b)-recordHead) {
		return r, false
	}
	rest := b[8 : recordHead+int(size)]
	if s.log.sum(length, rest) != binary.LittleEndian.Uint32(b[4:]) {
		return r, false
	}
	return record{
		body: rest[8:], n: binary.LittleEndian.Uint64(rest), seal: length == sealLength, continues: length&flagContinues != 0, end: at + recordHead + int(size),
	}, true
}

// find returns the first valid record behind an offset that can belong to what
// follows: each number before its own must have had room. A seal counts where it says
// that the record is durable that belongs to the end of the last one.
func (s *scan) find(from int) (at int, r record, found bool) {
	for at = from; at+recordHead <= len(s.b); at++ {
		n := binary.LittleEndian.Uint64(s.b[at+8:])
		if n < s.next || n-s.next > uint64(at-from)/recordHead {
			continue
		}
		if r, ok := s.record(at); ok {
			return at, r, true
		}
	}
	return 0, record{}, false
}

// proof reports whether a record behind the damage proves that what is missing was
// durable. The first one is r.
func (s *scan) proof(r record) bool {
	for found := true; found; {
		if r.seal || !r.continues {
			return true
		}
		if next, ok := s.record(r.end); ok && next.n >= s.next {
			r = next
			continue
		}
		_, r, found = s.find(r.end)
	}
	return false
}

// wrongLength passes on the record that belongs to the end of the last one if its length
// is all that is wrong. It ends where the next valid record begins, or the file.
func (s *scan) wrongLength(at int, found bool, follows record) bool {
	switch {
	case !found:
		at = len(s.b)
	case follows.seal && follows.n != s.next, !follows.seal && follows.n != s.next+1:
		return false
	}
	b := s.b[s.at:at]
	if len(b) < recordHead || binary.LittleEndian.Uint64(b[8:]) != s.next {
		return false
	}
	size := uint32(len(b) - recordHead)
	for _, length := range []uint32{size, size | flagContinues} {
		if s.log.sum(length, b[8:]) == binary.LittleEndian.Uint32(b[4:]) {
			s.damage(0, "the length of record %d is wrong", s.next)
			s.accept(b[recordHead:], at)
			return true
		}
	}
	return false
}
