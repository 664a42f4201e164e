package ondisk

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// A Class says what may happen to an entry before it was delivered.
type Class uint8

// The classes. The numbers are on disk.
const (
	// State is the newest entry of its key: it may be left out once a later one is durable.
	State Class = 1
	// Event is kept until it is trimmed.
	Event Class = 2
	// Data is kept while there is room; then the oldest is dropped, and counted.
	Data Class = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The flags of a record.
const (
	// FlagLoss marks the DataLost event that announces the dropping of the
	// segments named by its key. It is the intent that recovery carries out.
	FlagLoss = 1 << 0
	// FlagContinues marks a record that was made durable together with the one before
	// it: that one may not have been durable when this one was written.
	FlagContinues = 1 << 1
	// FlagSalvage marks the DataLost event that announces damaged records. Its key
	// names them, so that a salvage that is repeated after a crash counts them once.
	FlagSalvage = 1 << 2
)

// Run is the class of a run of tombstones: the body is the number of sequences that it
// covers, as 8 bytes.
const Run Class = 0

// ErrTorn says that the bytes at an offset are not a whole record.
var ErrTorn = errors.New("no valid record")

// Frame is a record as it stands in a segment.
type Frame struct {
	Seq    uint64
	Count  uint64 // 1, or the length of a run
	Millis int64  // since 1970, by Journal.Now
	Class  Class
	Flags  byte // of this package
	Key    []byte
	Body   []byte
	Size   int // in the file, in bytes
}

// Last is the last sequence that f covers.
func (f *Frame) Last() uint64 { return f.Seq + f.Count - 1 }

// AppendFrame encodes f at the end of b, for a segment with a seed.
func AppendFrame(b []byte, f *Frame, seed uint32) []byte {
	start := len(b)
	b = append(b, make([]byte, RecordHeadSize)...)
	b = append(b, f.Key...)
	b = append(b, f.Body...)
	h := b[start:]
	binary.LittleEndian.PutUint32(h, uint32(len(f.Key)+len(f.Body)))
	binary.LittleEndian.PutUint64(h[8:], f.Seq)
	binary.LittleEndian.PutUint64(h[16:], uint64(f.Millis))
	h[24], h[25] = byte(f.Class), f.Flags
	binary.LittleEndian.PutUint16(h[26:], uint16(len(f.Key)))
	binary.LittleEndian.PutUint32(h[4:], frameSum(h, seed))
	return b
}

// AppendRun encodes a run of count tombstones from seq at the end of b.
func AppendRun(b []byte, seq, count uint64, seed uint32) []byte {
	return AppendFrame(b, &Frame{Seq: seq, Class: Run, Body: binary.LittleEndian.AppendUint64(nil, count)}, seed)
}

// SeedOf returns the value that the checksums of a journal begin with. name is that of
// its directory: a segment of another journal fails the checksum.
func SeedOf(name string) uint32 {
	return crc32.Checksum([]byte(role+"\x00"+name), castagnoli)
}

func frameSum(h []byte, seed uint32) uint32 {
	return crc32.Update(crc32.Update(seed, castagnoli, h[:4]), castagnoli, h[8:])
}

// ParseFrame reads the record at the start of b, whose sequence must be want. It fails
// with ErrTorn; short reports that more bytes could make it whole. Key and body alias b.
func ParseFrame(b []byte, want uint64, seed uint32) (f Frame, short bool, err error) {
	if len(b) < RecordHeadSize {
		return f, true, ErrTorn
	}
	n := binary.LittleEndian.Uint32(b)
	keyLen := binary.LittleEndian.Uint16(b[26:])
	f = Frame{
		Seq: binary.LittleEndian.Uint64(b[8:]), Count: 1, Millis: int64(binary.LittleEndian.Uint64(b[16:])),
		Class: Class(b[24]), Flags: b[25], Size: RecordHeadSize + int(n),
	}
	if n > maxRecord || uint32(keyLen) > n || f.Seq != want || f.Class > Data {
		return f, false, ErrTorn
	}
	if len(b) < f.Size {
		return f, true, ErrTorn
	}
	h := b[:f.Size]
	if frameSum(h, seed) != binary.LittleEndian.Uint32(h[4:]) {
		return f, false, ErrTorn
	}
	f.Key, f.Body = h[RecordHeadSize:RecordHeadSize+int(keyLen)], h[RecordHeadSize+int(keyLen):]
	if f.Class == Run {
		if len(f.Body) != 8 {
			return f, false, ErrTorn
		}
		if f.Count = binary.LittleEndian.Uint64(f.Body); f.Count == 0 || f.Last() < f.Seq {
			return f, false, ErrTorn
		}
	}
	return f, false, nil
}
