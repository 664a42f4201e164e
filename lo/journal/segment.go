package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"syscall"

	"github.com/colonyfleet/colony/protocol"
)

const (
	role     = "lo/journal"
	lockName = "lock"
	metaName = "meta"
	oldMeta  = "meta.json" // before release 0.1.0
	trimName = "trim"
	segExt   = ".seg"
	tmpExt   = ".tmp"

	segmentMagic = "COLONYJ2"
	oldMagic     = "COLONYJ1" // before release 0.1.0: checksums without the identity
	// A segment opens with: magic 8, first sequence 8, last sequence 8 (0 unless
	// it was rewritten), reserved 4, CRC32C of the identity of the journal and the 28
	// bytes before 4.
	segmentHead = 32
	// A record opens with: length of key and body 4, CRC32C of the identity of the
	// journal and all that follows and the length 4, sequence 8, unix milliseconds 8,
	// class 1, flags 1, length of the key 2. Key and body follow.
	recordHead = 28

	maxKey = 1024
	// MaxBody is the largest body of an Entry, in bytes: one event must fit into a
	// batch, and a batch into a message.
	MaxBody = protocol.MaxMessage - 4096
	// maxRecord bounds what a scan believes of a length field.
	maxRecord = maxKey + MaxBody

	// markEvery is the distance in bytes of two entries of a segment's sparse
	// index, and so about what a seek has to read in vain.
	markEvery = 64 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// flags of a record.
const (
	// flagLoss marks the DataLost event that announces the dropping of the
	// segments named by its key. It is the intent that recovery carries out.
	flagLoss = 1 << 0
)

// class 0 is a run of tombstones: body is the number of sequences that it covers.
const classRun Class = 0

// errTorn says that the bytes at an offset are no whole record.
var errTorn = errors.New("no valid record")

// frame is a record as it stands in a segment.
type frame struct {
	seq    uint64
	count  uint64 // 1, or the length of a run
	millis int64
	class  Class
	flags  byte
	key    []byte
	body   []byte
	size   int // bytes in the file
}

func (f *frame) last() uint64 { return f.seq + f.count - 1 }

// appendFrame encodes f at the end of b, for a segment with a seed.
func appendFrame(b []byte, f *frame, seed uint32) []byte {
	start := len(b)
	b = append(b, make([]byte, recordHead)...)
	b = append(b, f.key...)
	b = append(b, f.body...)
	h := b[start:]
	binary.LittleEndian.PutUint32(h, uint32(len(f.key)+len(f.body)))
	binary.LittleEndian.PutUint64(h[8:], f.seq)
	binary.LittleEndian.PutUint64(h[16:], uint64(f.millis))
	h[24], h[25] = byte(f.class), f.flags
	binary.LittleEndian.PutUint16(h[26:], uint16(len(f.key)))
	binary.LittleEndian.PutUint32(h[4:], frameSum(h, seed))
	return b
}

// appendRun encodes a run of count tombstones from seq.
func appendRun(b []byte, seq, count uint64, seed uint32) []byte {
	return appendFrame(b, &frame{seq: seq, class: classRun, body: binary.LittleEndian.AppendUint64(nil, count)}, seed)
}

// seedOf is what the checksums of a journal begin with, so that segments of another
// journal do not pass for its own.
func seedOf(name string) uint32 {
	return crc32.Checksum([]byte(role+"\x00"+name), castagnoli)
}

func frameSum(h []byte, seed uint32) uint32 {
	return crc32.Update(crc32.Update(seed, castagnoli, h[:4]), castagnoli, h[8:])
}

// parseFrame reads the record at the start of b. short reports that more bytes
// could make it whole. Key and body alias b.
func parseFrame(b []byte, want uint64, seed uint32) (f frame, short bool, err error) {
	if len(b) < recordHead {
		return f, true, errTorn
	}
	n := binary.LittleEndian.Uint32(b)
	keyLen := binary.LittleEndian.Uint16(b[26:])
	f = frame{
		seq: binary.LittleEndian.Uint64(b[8:]), count: 1, millis: int64(binary.LittleEndian.Uint64(b[16:])),
		class: Class(b[24]), flags: b[25], size: recordHead + int(n),
	}
	if n > maxRecord || uint32(keyLen) > n || f.seq != want || f.class > Data {
		return f, false, errTorn
	}
	if len(b) < f.size {
		return f, true, errTorn
	}
	h := b[:f.size]
	if frameSum(h, seed) != binary.LittleEndian.Uint32(h[4:]) {
		return f, false, errTorn
	}
	f.key, f.body = h[recordHead:recordHead+int(keyLen)], h[recordHead+int(keyLen):]
	if f.class == classRun {
		if len(f.body) != 8 {
			return f, false, errTorn
		}
		if f.count = binary.LittleEndian.Uint64(f.body); f.count == 0 || f.last() < f.seq {
			return f, false, errTorn
		}
	}
	return f, false, nil
}

func segmentHeader(first, last uint64, seed uint32) []byte {
	h := make([]byte, segmentHead)
	copy(h, segmentMagic)
	binary.LittleEndian.PutUint64(h[8:], first)
	binary.LittleEndian.PutUint64(h[16:], last)
	binary.LittleEndian.PutUint32(h[28:], crc32.Update(seed, castagnoli, h[:28]))
	return h
}

// parseSegmentHeader returns the last sequence that a rewrite left in the header, and
// whether the segment is of before release 0.1.0, which has the seed 0.
func parseSegmentHeader(h []byte, first uint64, seed uint32) (last uint64, old bool, err error) {
	if len(h) < segmentHead {
		return 0, false, errTorn
	}
	if old = string(h[:8]) == oldMagic; old {
		seed = 0
	}
	if !old && string(h[:8]) != segmentMagic ||
		crc32.Update(seed, castagnoli, h[:28]) != binary.LittleEndian.Uint32(h[28:]) ||
		binary.LittleEndian.Uint64(h[8:]) != first {
		return 0, false, errTorn
	}
	return binary.LittleEndian.Uint64(h[16:]), old, nil
}

func segmentName(first uint64) string { return fmt.Sprintf("%020d%s", first, segExt) }

func parseSegmentName(name string) (first uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, segExt)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil && first > 0
}

// mark says that the record seq begins at offset off.
type mark struct {
	seq uint64
	off int64
}

// segment is one file of the journal. The writer replaces a *segment when it
// rewrites the file, so that offsets never outlive the file that they point into.
type segment struct {
	first uint64
	last  uint64 // first-1 while empty
	size  int64  // durable bytes
	seed  uint32 // of its checksums

	headless bool // its head was damaged when the journal was opened

	// marks is the sparse index, ascending, filled by whoever passes.
	marks []mark

	// scanned says that dead, data and the journal's keys know this segment.
	scanned bool
	dead    int64 // bytes of records that a rewrite would leave out
	data    int64 // bytes of Data records

	oldest, newest int64 // stamps, as far as they are known; 0: none is
}

func (s *segment) name() string { return segmentName(s.first) }

// stamp notes the time of a record.
func (s *segment) stamp(millis int64) {
	if millis == 0 {
		return
	}
	if s.oldest == 0 || millis < s.oldest {
		s.oldest = millis
	}
	s.newest = max(s.newest, millis)
}

// seek returns the best known place at or before seq.
func (s *segment) seek(seq uint64) mark {
	lo, hi := 0, len(s.marks)
	for lo < hi {
		if mid := (lo + hi) / 2; s.marks[mid].seq <= seq {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return mark{s.first, segmentHead}
	}
	return s.marks[lo-1]
}

// note adds m to the index if it lies far enough behind its end.
func (s *segment) note(m mark) {
	end := int64(segmentHead)
	if n := len(s.marks); n > 0 {
		end = s.marks[n-1].off
	}
	if m.off >= end+markEvery {
		s.marks = append(s.marks, m)
	}
}

// scanner walks the records of a segment.
type scanner struct {
	f    file
	seed uint32
	end  int64
	at   mark // the next record
	buf  []byte
	base int64 // offset of buf[0]
}

const scanChunk = 128 << 10

func newScanner(f file, s *segment, from mark, end int64) *scanner {
	return &scanner{f: f, seed: s.seed, end: end, at: from, base: from.off}
}

// next returns the next record; more is false at the end. The record's slices
// stay valid: no buffer is used twice.
func (s *scanner) next() (f frame, more bool, err error) {
	if s.at.off >= s.end {
		return f, false, nil
	}
	f, short, err := parseFrame(s.buf[s.at.off-s.base:], s.at.seq, s.seed)
	for want := int64(scanChunk); short; want *= 4 {
		have := int64(len(s.buf)) - (s.at.off - s.base)
		if s.at.off+have >= s.end {
			return f, false, errTorn
		}
		want = max(want, int64(f.size))
		if err := s.fill(want); err != nil {
			return f, false, err
		}
		f, short, err = parseFrame(s.buf, s.at.seq, s.seed)
	}
	if err != nil {
		return f, false, err
	}
	s.at = mark{f.last() + 1, s.at.off + int64(f.size)}
	return f, true, nil
}

// fill reads n bytes from the next record on, into a new buffer, because the
// records given out before still point into the old one.
func (s *scanner) fill(n int64) error {
	n = min(n, s.end-s.at.off)
	buf := make([]byte, n)
	got, err := s.f.ReadAt(buf, s.at.off)
	if errors.Is(err, syscall.EIO) {
		got, err = readAround(s.f, buf, s.at.off), nil
	}
	if int64(got) < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = errTorn // the file is shorter than it was
		}
		return fmt.Errorf("read segment: %w", err)
	}
	s.buf, s.base = buf, s.at.off
	return nil
}
