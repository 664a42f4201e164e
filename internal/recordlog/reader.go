package recordlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/colonyfleet/colony/internal/disk"
)

// RecordHead is what a record takes in the file beside its body, in bytes.
const RecordHead = recordHead

// Start is the offset of the first record of a file.
const Start = int64(headSize)

// A Reader reads single records of a log by their offsets, while others may append to
// it. Its methods may be called concurrently, but for Close.
type Reader struct {
	log  *Log // for the checksums
	file disk.File
}

// OpenReader opens a log for ReadAt alone. It looks at nothing: a file that is damaged,
// or of another format, shows at ReadAt.
func OpenReader(o Options) (*Reader, error) {
	f, err := disk.Or(o.Disk).Open(o.Path, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", o.Identity, err)
	}
	return &Reader{log: &Log{o: o, seed: seedOf(o.Identity)}, file: f}, nil
}

// ReadAt returns the body of the record at an offset. Where size is the length of the
// body, in bytes, it is read at once; 0 means that the caller does not know it. The error
// says that there is no valid record of that length.
func (r *Reader) ReadAt(at int64, size int) ([]byte, error) {
	if size == 0 {
		var head [recordHead]byte
		if _, err := r.file.ReadAt(head[:], at); err != nil {
			return nil, fmt.Errorf("read %s at %d: %w", r.log.o.Identity, at, err)
		}
		size = int(min(binary.LittleEndian.Uint32(head[:])&^flagContinues, uint32(r.log.o.MaxRecord)))
	}
	b := make([]byte, recordHead+size)
	if _, err := r.file.ReadAt(b, at); err != nil {
		return nil, fmt.Errorf("read %s at %d: %w", r.log.o.Identity, at, err)
	}
	length := binary.LittleEndian.Uint32(b)
	if int64(length&^flagContinues) != int64(size) || r.log.sum(length, b[8:]) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, fmt.Errorf("read %s at %d: %w", r.log.o.Identity, at, errNoRecord)
	}
	return b[recordHead:], nil
}

var errNoRecord = errors.New("there is no valid record")

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }
