package ondisk

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io/fs"
	"path/filepath"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// The format of the trim file.
const (
	trimSize = 16 + 8 + 8 + 4

	// TrimSlotSize is the distance of the two slots of the trim file, in bytes: a
	// sector, so that a torn write damages one of them.
	TrimSlotSize = 512
)

// TrimMark encodes the trim mark: what is trimmed, and last, which is durable. It
// names the epoch, so that a mark of another journal in the same directory is ignored.
func TrimMark(epoch string, through, last uint64) []byte {
	b := make([]byte, 16, trimSize)
	_, _ = hex.Decode(b, []byte(epoch)) // checked by ReadEpoch
	b = binary.LittleEndian.AppendUint64(b, through)
	b = binary.LittleEndian.AppendUint64(b, last)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// ReadTrimMark returns the higher mark and its slot, and the highest sequence that is
// known to have been durable. A mark that is missing, torn or of another epoch counts
// as 0. whole reports whether a slot has a mark of any epoch, as after the first sync of
// the file one always does.
func ReadTrimMark(f disk.File, epoch string) (through, last uint64, slot int64, whole bool) {
	b := make([]byte, trimSize)
	for i := range int64(2) {
		n, _ := f.ReadAt(b, i*TrimSlotSize)
		if n < trimSize || crc32.Checksum(b[:trimSize-4], castagnoli) != binary.LittleEndian.Uint32(b[trimSize-4:]) {
			continue
		}
		whole = true
		t := binary.LittleEndian.Uint64(b[16:])
		durable := binary.LittleEndian.Uint64(b[24:])
		if string(b) != string(TrimMark(epoch, t, durable)) {
			continue
		}
		last = max(last, durable)
		if t > through {
			through, slot = t, i
		}
	}
	return through, max(last, through), slot, whole
}

// HaveRecords reports whether segments have records, or had.
func HaveRecords(segments []*Segment) bool {
	n := len(segments)
	return n > 0 && (segments[n-1].First > 1 || segments[n-1].Size > HeadSize)
}

var errNoMark = errors.New("it has no mark that can be read")

// LostMark says that the trim file has no mark that can be read, or is not there. A copy is kept aside where there is room.
func (d Dir) LostMark(there bool) *statefile.Damage {
	out := &statefile.Damage{Identity: statefile.Identity{Role: "lo/journal mark", Name: filepath.Base(d.Path)}, Path: filepath.Join(d.Path, TrimName), Err: errNoMark}
	if !there {
		out.Err = fs.ErrNotExist
	} else if aside, err := d.CopyAside(TrimName); err == nil {
		out.Aside = filepath.Join(d.Path, aside)
	}
	return out
}
