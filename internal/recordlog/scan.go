package recordlog

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// scan walks the records of a file.
type scan struct {
	log  *Log
	b    []byte
	at   int    // the end of the last record
	next uint64 // the number of the record that belongs there
	gap  uint64 // records that are lost before it
	each func(body []byte, lost uint64) error

	lost uint64 // records
	why  error  // nil: nothing but a torn tail
}

// run hands out the records, those behind damage too.
func (s *scan) run() {
	for s.at < len(s.b) {
		body, n, ok := s.record(s.at)
		if ok && n == s.next {
			s.take(body, s.at+recordHead+len(body))
			continue
		}
		at, n, found := s.find(s.at)
		if !found {
			s.tail()
			return
		}
		s.damage(n-s.next, "bytes %d to %d hold no valid record", s.at, at)
		s.gap += n - s.next
		s.at, s.next = at, n
	}
}

// take passes on the record that belongs here and ends at end.
func (s *scan) take(body []byte, end int) {
	err := s.each(body, s.gap)
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

// record returns the record at an offset if it is valid, whatever its number.
func (s *scan) record(at int) (body []byte, n uint64, ok bool) {
	b := s.b[at:]
	if len(b) < recordHead {
		return nil, 0, false
	}
	size := binary.LittleEndian.Uint32(b)
	if int64(size) > int64(s.log.o.MaxRecord) || int64(size) > int64(len(b)-recordHead) {
		return nil, 0, false
	}
	rest := b[8 : recordHead+int(size)]
	if s.log.sum(size, rest) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, 0, false
	}
	return rest[8:], binary.LittleEndian.Uint64(rest), true
}

// find returns the first valid record behind an offset that can belong to what
// follows: each number before its own must have had room.
func (s *scan) find(from int) (at int, n uint64, found bool) {
	for at = from; at+recordHead <= len(s.b); at++ {
		n = binary.LittleEndian.Uint64(s.b[at+8:])
		if n < s.next || n-s.next > uint64(at-from)/recordHead {
			continue
		}
		if _, _, ok := s.record(at); ok {
			return at, n, true
		}
	}
	return 0, 0, false
}

var errLast = errors.New("the last record is damaged")

// tail looks at what no valid record follows. A crash leaves a part of a record, or
// zeros where the disk has the length of the file and not its content. A record that
// is whole and wrong was damaged later.
func (s *scan) tail() {
	b := s.b[s.at:]
	if len(b) < recordHead || zeros(b) {
		return
	}
	// If its length is all that is wrong, the end of the file is its end.
	size := uint32(len(b) - recordHead)
	if s.log.sum(size, b[8:]) == binary.LittleEndian.Uint32(b[4:]) && binary.LittleEndian.Uint64(b[8:]) == s.next {
		s.damage(0, "the length of record %d is wrong", s.next)
		s.take(b[recordHead:], len(s.b))
		return
	}
	if n := binary.LittleEndian.Uint64(b[8:]); n == s.next && binary.LittleEndian.Uint32(b) > size {
		return // it goes on behind the end of the file
	}
	s.damage(1, "bytes %d to %d: %w", s.at, len(s.b), errLast)
}

func zeros(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
