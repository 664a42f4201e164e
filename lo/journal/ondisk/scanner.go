package ondisk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/colonyfleet/colony/internal/disk"
)

// Scanner reads the records of a segment in order. One goroutine uses it.
type Scanner struct {
	// At is where the next record begins. After an error it is where the damage begins.
	At Mark

	f    disk.File
	seed uint32
	end  int64
	buf  []byte
	base int64 // offset of buf[0]
}

const scanChunk = 128 << 10

// NewScanner reads segment s, whose file is f, from a record to the offset end. The caller
// closes f.
func NewScanner(f disk.File, s *Segment, from Mark, end int64) *Scanner {
	return &Scanner{f: f, seed: s.Seed, end: end, At: from, base: from.Off}
}

// Next returns the next record; more is false at the end. It fails with ErrTorn where no
// whole record follows. The record's slices stay valid: no buffer is used twice.
func (s *Scanner) Next() (f Frame, more bool, err error) {
	if s.At.Off >= s.end {
		return f, false, nil
	}
	f, short, err := ParseFrame(s.buf[s.At.Off-s.base:], s.At.Seq, s.seed)
	for want := int64(scanChunk); short; want *= 4 {
		have := int64(len(s.buf)) - (s.At.Off - s.base)
		if s.At.Off+have >= s.end {
			return f, false, ErrTorn
		}
		want = max(want, int64(f.Size))
		if err := s.fill(want); err != nil {
			return f, false, err
		}
		f, short, err = ParseFrame(s.buf, s.At.Seq, s.seed)
	}
	if err != nil {
		return f, false, err
	}
	s.At = Mark{f.Last() + 1, s.At.Off + int64(f.Size)}
	return f, true, nil
}

// fill reads n bytes from the next record on, into a new buffer, because the
// records given out before still point into the old one.
func (s *Scanner) fill(n int64) error {
	n = min(n, s.end-s.At.Off)
	buf := make([]byte, n)
	got, err := s.f.ReadAt(buf, s.At.Off)
	if errors.Is(err, syscall.EIO) {
		got, err = ReadAround(s.f, buf, s.At.Off), nil
	}
	if int64(got) < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = ErrTorn // the file is shorter than it was
		}
		return fmt.Errorf("read segment: %w", err)
	}
	s.buf, s.base = buf, s.At.Off
	return nil
}

// Resync goes on behind damage: with the next valid record, whose sequence is at
// most last. It returns false where there is none.
func (s *Scanner) Resync(last uint64) bool {
	if s.fill(s.end-s.At.Off) != nil {
		return false // the file is shorter than it was
	}
	try := func(i int) bool {
		if i+RecordHeadSize > len(s.buf) {
			return false
		}
		seq := binary.LittleEndian.Uint64(s.buf[i+8:])
		if seq < s.At.Seq || seq > last {
			return false
		}
		if _, _, err := ParseFrame(s.buf[i:], seq, s.seed); err != nil {
			return false
		}
		s.At = Mark{seq, s.At.Off + int64(i)}
		return true
	}
	// Nearly always the length is whole: what looks like a record within a damaged
	// one is not looked at then.
	if len(s.buf) >= RecordHeadSize && try(RecordHeadSize+int(min(binary.LittleEndian.Uint32(s.buf), maxRecord))) {
		return true
	}
	for i := range s.buf {
		if try(i) {
			return true
		}
	}
	return false
}

// Torn reports whether the damage that Next met may be the torn end of a write that was never
// durable. It is not if a record follows that can only have been written after the damaged one was
// durable.
func (s *Scanner) Torn() bool {
	rest := *s
	for rest.Resync(math.MaxUint64) {
		for {
			f, more, err := rest.Next()
			if err != nil {
				break
			}
			if !more {
				return true
			}
			if f.Flags&FlagContinues == 0 {
				return false
			}
		}
	}
	return true
}
