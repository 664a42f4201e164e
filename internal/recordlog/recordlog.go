// Package recordlog is a file of records that is appended to, and now and then replaced by one
// without history. It never gives back a record that was not appended to it.
//
// The file has a header with a format and the release that reads it. Each record has a checksum,
// which also covers its number within the file and the role and name of the file, so that flipped
// bits, zeroed blocks, cuts, and files or blocks in the place of others are detected.
//
// Open distinguishes a torn tail from damage. A torn tail is what a crash leaves of appends that
// were never durable. It is cut off. A disk may keep the sectors of these in any order, so that
// valid records may lie within the tail; but nothing in it proves that the missing ones were
// durable. There are two proofs. Each record says whether the one before it was durable at that
// time. After a Sync a seal at the end of the file marks all records as durable, until the next
// Append replaces the seal. Options.Durable is a third, for a caller that keeps one elsewhere. What
// is missing before a proof is damage: the records around it are salvaged, the lost ones are
// counted by the gap in the numbers, and the damaged file is kept aside.
package recordlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// The header, integers little-endian: magic 8, format 4, release that reads it 12
// (padded with zeros), reserved 4, CRC-32C of these 28 bytes and the identity 4. Its
// layout never changes, so that each release can tell a later format from damage.
//
// A record: length 4, CRC-32C of the identity and all that follows, and the length 4,
// number from 1 on 8, body. The highest bit of the length is flagContinues.
//
// A seal is a record without a body, whose length is sealLength and whose number is that
// of the last record.
const (
	magic      = "COLONYR1"
	format     = 1
	release    = "0.1.0" // the first that reads format
	headSize   = 32
	recordHead = 16

	// flagContinues says that the record before may not have been durable when this one
	// was written.
	flagContinues = 1 << 31
	sealLength    = 1<<32 - 1

	filePerm = 0o600
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Options say what a log is.
type Options struct {
	statefile.Identity
	Path string
	// Disk is where the file is; nil: the file system of the machine.
	Disk disk.FS
	// MaxRecord is the largest body, in bytes. It must be positive, and less than 1 GiB.
	MaxRecord int
	// Durable is the number of a record of which the caller knows that it was durable, with
	// those before it: where one of them is not in the file, that is damage. 0: it knows nothing.
	Durable uint64
}

// A Log is an open log. Sync may be called concurrently with all but Replace and
// Close; the other methods are called one at a time.
type Log struct {
	o      Options
	seed   uint32 // the checksum of the identity
	file   disk.File
	broken atomic.Bool

	mu      sync.Mutex // protects what follows, and is held to write at the end of the file
	size    int64      // up to the last record, without the seal
	next    uint64     // number of the next record
	durable uint64     // number of the last record that is known to be durable
}

// Found is what Open met.
type Found struct {
	// New says that there was no file.
	New bool
	// Torn is how many bytes of an unfinished append were cut off.
	Torn int64
	// Unsealed says that no seal was at the end: a crash came in the middle of an append, or right behind
	// it, or a disk has lost the end.
	Unsealed bool
	// Damage is nil where the file held all that was stored in it. Its Lost is the least number of
	// records that are missing. Those that the argument of each did not count were behind the last
	// record.
	Damage *statefile.Damage
}

// Open opens a log, and makes it if it does not exist. It hands each record to each, in order, with
// the number of records that were lost right before it; a record that each refuses with an error
// counts as lost. After damage, and where there is no file and no room for one, the Log is Broken,
// and the caller replaces its content.
//
// Open fails with a *statefile.NewerError for a file of a later format, which it does not touch,
// and where the file cannot be read or written now.
func Open(o Options, each func(body []byte, lost uint64) error) (*Log, Found, error) {
	return OpenAt(o, func(body []byte, _ int64, lost uint64) error { return each(body, lost) })
}

// OpenAt is Open for a caller that reads records again, with ReadAt: each also receives
// the offset of the record in the file.
func OpenAt(o Options, each func(body []byte, at int64, lost uint64) error) (*Log, Found, error) {
	o.Disk = disk.Or(o.Disk)
	l := &Log{o: o, seed: seedOf(o.Identity), size: headSize, next: 1}
	b, err := disk.ReadFile(o.Disk, o.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err := l.Replace(nil)
		if disk.IsFull(err) { // the caller writes it as soon as there is room
			l.broken.Store(true)
			err = nil
		}
		return l, Found{New: true}, err
	case disk.Unreadable(err):
		return l.salvaged(&statefile.Damage{Err: err})
	case err != nil:
		return nil, Found{}, fmt.Errorf("read %s: %w", o.Identity, err)
	}
	headErr := l.checkHead(b)
	if newer, ok := errors.AsType[*statefile.NewerError](headErr); ok {
		return nil, Found{}, newer
	}
	s := scan{log: l, b: b, at: min(headSize, len(b)), next: 1, each: each}
	s.run()
	if s.why == nil && len(b) == headSize {
		s.why = errors.New("it ends behind its header, as no crash leaves it: what was stored in it is missing")
	}
	if headErr != nil {
		s.why = errors.Join(fmt.Errorf("header: %w", headErr), s.why)
	}
	if s.why != nil {
		return l.salvaged(&statefile.Damage{Lost: s.lost, Kept: s.lost == 0 && s.sealed && s.next > 1, Err: s.why})
	}
	found := Found{Torn: int64(len(b) - s.end()), Unsealed: !s.sealed}
	if l.file, err = o.Disk.Open(o.Path, os.O_RDWR, filePerm); err != nil {
		return nil, found, fmt.Errorf("open %s: %w", o.Identity, err)
	}
	l.size, l.next = int64(s.at), s.next
	if s.sealed && found.Torn == 0 {
		l.durable = s.next - 1
		return l, found, nil
	}
	// What follows was never durable, and what is there may be in the page cache only. A log without records is
	// replaced, and not cut: a header alone is what a disk leaves that has lost the rest.
	if l.size == headSize || l.file.Truncate(l.size) != nil || l.file.Sync() != nil {
		l.broken.Store(true) // it is to be replaced
		return l, found, nil
	}
	l.durable = s.next - 1
	return l, found, nil
}

// salvaged returns a broken log, whose damaged file gets a second name.
func (l *Log) salvaged(d *statefile.Damage) (*Log, Found, error) {
	aside, err := statefile.LinkAside(l.o.Disk, l.o.Path)
	d.Identity, d.Path, d.Aside, d.Err = l.o.Identity, l.o.Path, aside, errors.Join(d.Err, err)
	l.broken.Store(true)
	return l, Found{Damage: d}, nil
}

func seedOf(id statefile.Identity) uint32 {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(id.Role)))
	return crc32.Checksum(append(append(b, id.Role...), id.Name...), castagnoli)
}

func (l *Log) head(format uint32, release string) []byte {
	h := make([]byte, headSize)
	copy(h, magic)
	binary.LittleEndian.PutUint32(h[8:], format)
	copy(h[12:24], release)
	binary.LittleEndian.PutUint32(h[28:], crc32.Update(l.seed, castagnoli, h[:28]))
	return h
}

// checkHead returns a *statefile.NewerError for a later format, and another error
// for what is no header of this log.
func (l *Log) checkHead(b []byte) error {
	switch {
	case len(b) < headSize:
		return fmt.Errorf("%d bytes are less than one", len(b))
	case string(b[:8]) != magic:
		return errors.New("there is none")
	case crc32.Update(l.seed, castagnoli, b[:28]) != binary.LittleEndian.Uint32(b[28:]):
		return errors.New("its checksum is wrong")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > format {
		end := 12
		for end < 24 && b[end] != 0 {
			end++
		}
		return &statefile.NewerError{Path: l.o.Path, Format: v, Release: string(b[12:end])}
	}
	return nil
}

// frame appends record number n to b; continues is flagContinues or 0.
func (l *Log) frame(b, body []byte, n uint64, continues uint32) []byte {
	return l.encode(b, uint32(len(body))|continues, body, n)
}

// seal appends the seal of n records to b.
func (l *Log) seal(b []byte, n uint64) []byte { return l.encode(b, sealLength, nil, n) }

func (l *Log) encode(b []byte, length uint32, body []byte, n uint64) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, length)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, n)
	b = append(b, body...)
	binary.LittleEndian.PutUint32(b[at+4:], l.sum(length, b[at+8:]))
	return b
}

// sum is the checksum of a record; rest is its number and its body.
func (l *Log) sum(length uint32, rest []byte) uint32 {
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], length)
	return crc32.Update(crc32.Update(l.seed, castagnoli, n[:]), castagnoli, rest)
}

// Append writes records at the end, next to each other. They are durable after a
// Sync. When it fails, the log is as before, or Broken.
func (l *Log) Append(bodies ...[]byte) error {
	switch {
	case l.Broken():
		return fmt.Errorf("append to %s: an earlier write failed, and the file was not replaced yet", l.o.Identity)
	case l.file == nil:
		return fmt.Errorf("append to %s: %w", l.o.Identity, os.ErrClosed)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var b []byte
	n := l.next
	continues := uint32(0)
	if n-1 > l.durable {
		continues = flagContinues
	}
	for _, body := range bodies {
		if len(body) > l.o.MaxRecord {
			return fmt.Errorf("append to %s: a record of %d bytes, the limit is %d", l.o.Identity, len(body), l.o.MaxRecord)
		}
		b = l.frame(b, body, n, continues)
		n, continues = n+1, flagContinues
	}
	if _, err := l.file.WriteAt(b, l.size); err != nil {
		l.undo()
		return fmt.Errorf("append to %s: %w", l.o.Identity, err)
	}
	l.size, l.next = l.size+int64(len(b)), n
	return nil
}

// undo takes back what a failed Append has written. The caller holds mu.
func (l *Log) undo() {
	end := l.size
	if l.next == 1 { // a log without records has its seal alone to say that it is whole: it is put back, in bytes that the file has
		if _, err := l.file.WriteAt(l.seal(nil, 0), end); err != nil {
			l.broken.Store(true)
			return
		}
		end += recordHead
	}
	if l.file.Truncate(end) != nil {
		l.broken.Store(true)
	}
}

// Sync makes durable what was appended before the call. When it fails the log is Broken, because it
// is unknown what the disk has.
func (l *Log) Sync() error {
	f := l.file
	if f == nil {
		return fmt.Errorf("flush %s: %w", l.o.Identity, os.ErrClosed)
	}
	if l.broken.Load() { // the system reports a failed write once: another flush would say that all is well
		return fmt.Errorf("flush %s: an earlier write or flush failed", l.o.Identity)
	}
	l.mu.Lock()
	through := l.next - 1
	l.mu.Unlock()
	if err := f.Sync(); err != nil {
		l.broken.Store(true)
		return fmt.Errorf("flush %s: %w", l.o.Identity, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.durable = max(l.durable, through); l.durable == l.next-1 {
		// Not flushed itself: where it is missing, less is known of damage at the end.
		_, _ = f.WriteAt(l.seal(nil, l.durable), l.size)
	}
	return nil
}

// Replace puts a file with these records alone in the place of the log. When it
// returns nil that is durable, and the log is not Broken any more; a crash leaves the
// old file or the new one.
func (l *Log) Replace(bodies [][]byte) error {
	b := l.head(format, release)
	n := uint64(1)
	for _, body := range bodies {
		b = l.frame(b, body, n, 0)
		n++
	}
	size := int64(len(b))
	b = l.seal(b, n-1)
	if err := atomicfile.Write(l.o.Disk, l.o.Path, b, filePerm); err != nil {
		return fmt.Errorf("replace %s: %w", l.o.Identity, err)
	}
	f, err := l.o.Disk.Open(l.o.Path, os.O_RDWR, filePerm)
	if err != nil {
		l.broken.Store(true) // the open file is not the one that a restart finds
		return fmt.Errorf("replace %s: %w", l.o.Identity, err)
	}
	if l.file != nil {
		_ = l.file.Close() // the file that was replaced: it is not needed
	}
	l.mu.Lock()
	l.file, l.size, l.next, l.durable = f, size, n, n-1
	l.mu.Unlock()
	l.broken.Store(false)
	return nil
}

// Records is the number of the last record.
func (l *Log) Records() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next - 1
}

// Broken says that nothing can be appended before a Replace.
func (l *Log) Broken() bool { return l.broken.Load() }

// Size returns the length of the file without its seal, in bytes.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size
}

// Close flushes the log and closes it. A second Close does nothing.
func (l *Log) Close() error {
	f := l.file
	if f == nil {
		return nil
	}
	var err error
	if !l.Broken() {
		err = l.Sync()
	}
	l.file = nil
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("close %s: %w", l.o.Identity, err)
	}
	return nil
}
