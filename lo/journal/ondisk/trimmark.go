package ondisk

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"

	"github.com/colonyfleet/colony/internal/disk"
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
// as 0.
func ReadTrimMark(f disk.File, epoch string) (through, last uint64, slot int64) {
	b := make([]byte, trimSize)
	for i := range int64(2) {
		n, _ := f.ReadAt(b, i*TrimSlotSize)
		if n < trimSize {
			continue
		}
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
	return through, max(last, through), slot
}
