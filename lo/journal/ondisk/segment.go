package ondisk

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// The names in the directory of a journal.
const (
	// LockName is held with flock by the process that has the journal open.
	LockName = "lock"
	// MetaName holds the format version and the epoch.
	MetaName = "meta"
	// TrimName holds the trim marks, see TrimMark.
	TrimName = "trim"
	// SegmentExt ends the name of a segment.
	SegmentExt = ".seg"
	// TempExt ends the name of a file that is being written; Open removes it.
	TempExt = ".tmp"
)

// role is what the journal's files are for, as in the header of a state file.
const role = "lo/journal"

// The format of a segment. All integers are little-endian.
const (
	segmentMagic = "COLONYJ2"

	// HeadSize is the length of a segment's head, in bytes: magic 8, first sequence 8,
	// last sequence 8 (0 unless it was rewritten), reserved 4, CRC32C of the identity
	// of the journal and the 28 bytes before 4.
	HeadSize = 32

	// RecordHeadSize is the length of a record's head, in bytes: length of key and body (4), CRC32C
	// of the journal's identity, all that follows and the length (4), sequence (8), unix
	// milliseconds (8), class (1), flags (1), length of the key (2). Key and body follow.
	RecordHeadSize = 28

	// MaxKey is the longest key of a record, in bytes.
	MaxKey = 1024

	// MaxBody is the largest body of a record, in bytes: one event must fit into a
	// batch, and a batch into a message.
	MaxBody = protocol.MaxMessage - 4096

	// maxRecord bounds the length field that a scan accepts, in bytes.
	maxRecord = MaxKey + MaxBody

	// IndexInterval is the distance of two entries of a segment's sparse index, in
	// bytes: a seek reads about that many bytes that it does not need.
	IndexInterval = 64 << 10
)

// SegmentHeader encodes the head of a segment. last is 0 unless the segment is rewritten.
func SegmentHeader(first, last uint64, seed uint32) []byte {
	h := make([]byte, HeadSize)
	copy(h, segmentMagic)
	binary.LittleEndian.PutUint64(h[8:], first)
	binary.LittleEndian.PutUint64(h[16:], last)
	binary.LittleEndian.PutUint32(h[28:], crc32.Update(seed, castagnoli, h[:28]))
	return h
}

// ParseSegmentHeader returns the last sequence that a rewrite left in the header.
func ParseSegmentHeader(h []byte, first uint64, seed uint32) (last uint64, err error) {
	if len(h) < HeadSize || string(h[:8]) != segmentMagic ||
		crc32.Update(seed, castagnoli, h[:28]) != binary.LittleEndian.Uint32(h[28:]) ||
		binary.LittleEndian.Uint64(h[8:]) != first {
		return 0, ErrTorn
	}
	return binary.LittleEndian.Uint64(h[16:]), nil
}

// SegmentName returns the name of the segment that begins with sequence first.
func SegmentName(first uint64) string { return fmt.Sprintf("%020d%s", first, SegmentExt) }

// ParseSegmentName returns the first sequence of the segment with a name; ok is false
// where the name is not that of a segment.
func ParseSegmentName(name string) (first uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, SegmentExt)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil && first > 0
}

// Mark says that the record Seq begins at offset Off, in bytes.
type Mark struct {
	Seq uint64
	Off int64
}

// Segment is one file of the journal. The writer replaces a *Segment when it
// rewrites the file, so that offsets never outlive the file that they point into.
type Segment struct {
	First uint64
	Last  uint64 // First-1 while empty
	Size  int64  // durable bytes
	Seed  uint32 // of its checksums

	Headless bool // its head was damaged when the journal was opened

	// Damaged says that a scan met a record that cannot be read: Dead and Data do not
	// cover what follows it.
	Damaged bool

	// Marks is the sparse index, ascending; readers and writers of the segment add to it.
	Marks []Mark

	// Scanned says that Dead, Data and the journal's keys cover this segment.
	Scanned bool
	Dead    int64 // bytes of records that a rewrite would leave out
	Data    int64 // bytes of Data records

	// Oldest and Newest are the stamps of its records in milliseconds, as far as they
	// are known; 0: none is.
	Oldest, Newest int64
}

// Name is the name of its file.
func (s *Segment) Name() string { return SegmentName(s.First) }

// Stamp notes the time of a record.
func (s *Segment) Stamp(millis int64) {
	if millis == 0 {
		return
	}
	if s.Oldest == 0 || millis < s.Oldest {
		s.Oldest = millis
	}
	s.Newest = max(s.Newest, millis)
}

// Seek returns the last known position at or before seq.
func (s *Segment) Seek(seq uint64) Mark {
	lo, hi := 0, len(s.Marks)
	for lo < hi {
		if mid := (lo + hi) / 2; s.Marks[mid].Seq <= seq {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return Mark{s.First, HeadSize}
	}
	return s.Marks[lo-1]
}

// Note adds m to the index if it lies far enough behind its end.
func (s *Segment) Note(m Mark) {
	end := int64(HeadSize)
	if n := len(s.Marks); n > 0 {
		end = s.Marks[n-1].Off
	}
	if m.Off >= end+IndexInterval {
		s.Marks = append(s.Marks, m)
	}
}

// ReadHeader returns a segment as its file says, for a journal of a seed, and the last
// sequence that a rewrite left in its head; 0 where there is none. A broken head costs no
// record.
func ReadHeader(fs Dir, first uint64, seed uint32) (s *Segment, last uint64, err error) {
	f, err := fs.Open(SegmentName(first), os.O_RDONLY)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	s = &Segment{First: first, Seed: seed}
	if s.Size, err = f.Size(); err != nil {
		return nil, 0, err
	}
	head := make([]byte, HeadSize)
	ReadAround(f, head, 0)
	last, err = ParseSegmentHeader(head, first, seed)
	s.Headless = err != nil
	return s, last, nil
}
