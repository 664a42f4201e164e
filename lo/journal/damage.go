package journal

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"github.com/colonyfleet/colony/internal/statefile"
)

// keepDamaged is how many damaged files a journal keeps, for people to look at.
const keepDamaged = 2

// sector is the unit in which a disk loses what it held, in bytes.
const sector = 4 << 10

// readAround reads what a disk with unreadable places still gives, and leaves zeros
// for the rest, which no checksum takes for a record.
func readAround(f file, buf []byte, off int64) int {
	for at := 0; at < len(buf); at += sector {
		piece := buf[at:min(at+sector, len(buf))]
		if _, err := f.ReadAt(piece, off+int64(at)); err != nil && !errors.Is(err, io.EOF) {
			clear(piece)
		}
	}
	return len(buf)
}

// resync goes on behind damage: with the next valid record, whose sequence is at
// most last. It returns false where there is none.
func (s *scanner) resync(last uint64) bool {
	if s.fill(s.end-s.at.off) != nil {
		return false // the file is shorter than it was
	}
	try := func(i int) bool {
		if i+recordHead > len(s.buf) {
			return false
		}
		seq := binary.LittleEndian.Uint64(s.buf[i+8:])
		if seq < s.at.seq || seq > last {
			return false
		}
		if _, _, err := parseFrame(s.buf[i:], seq, s.seed); err != nil {
			return false
		}
		s.at = mark{seq, s.at.off + int64(i)}
		return true
	}
	// Nearly always the length is whole: what looks like a record within a damaged
	// one is not looked at then.
	if len(s.buf) >= recordHead && try(recordHead+int(min(binary.LittleEndian.Uint32(s.buf), maxRecord))) {
		return true
	}
	for i := range s.buf {
		if try(i) {
			return true
		}
	}
	return false
}

// torn reports that what no valid record follows is what a crash leaves of a write
// that was never durable: a part of a record, or zeros where the disk has the length
// of the file and not its content. A record that is whole and wrong was damaged later.
func (s *scanner) torn() bool {
	if s.fill(s.end-s.at.off) != nil || len(s.buf) < recordHead {
		return true
	}
	n := binary.LittleEndian.Uint32(s.buf)
	rest := uint32(len(s.buf) - recordHead)
	h := append(binary.LittleEndian.AppendUint32(nil, rest), s.buf[4:]...)
	if frameSum(h, s.seed) == binary.LittleEndian.Uint32(h[4:]) {
		return false // only its length is wrong
	}
	if n > rest && n <= maxRecord && binary.LittleEndian.Uint64(s.buf[8:]) == s.at.seq {
		return true
	}
	for _, c := range s.buf {
		if c != 0 {
			return false
		}
	}
	return true
}

// eachWhole calls do for every record of a sealed segment that can be read. It
// returns how many records that are not trimmed cannot, and of how many bytes.
func (w *writer) eachWhole(s *segment, do func(*frame)) (lost, bytes uint64, err error) {
	f, err := w.j.fs.Open(s.name(), os.O_RDONLY)
	if err != nil {
		return w.untrimmed(s.first, s.last), uint64(s.size), nil // there is nothing to read
	}
	defer f.Close()
	end, err := f.Size()
	if err != nil {
		return 0, 0, err
	}
	sc := newScanner(f, s, mark{s.first, segmentHead}, min(end, s.size))
	for {
		at := sc.at
		fr, more, err := sc.next()
		switch {
		case err == nil && more && fr.last() <= s.last:
			do(&fr)
			continue
		case err != nil && !errors.Is(err, errTorn):
			return lost, bytes, err
		case err != nil && sc.resync(s.last):
			lost += w.untrimmed(at.seq, sc.at.seq-1)
			bytes += uint64(sc.at.off - at.off)
			continue
		}
		if at.seq <= s.last {
			lost += w.untrimmed(at.seq, s.last)
			bytes += uint64(max(0, s.size-at.off))
		}
		return lost, bytes, nil
	}
}

// untrimmed counts the sequences from first to last that are not trimmed.
func (w *writer) untrimmed(first, last uint64) uint64 {
	first = max(first, w.j.st.trimmed+1)
	if last < first {
		return 0
	}
	return last - first + 1
}

// keepAside copies a damaged segment, which is about to be replaced. Where that
// fails, as on a full disk, the log says so.
func (w *writer) keepAside(name string) {
	aside, err := w.copyAside(name)
	if err != nil {
		w.j.log.Warn("damaged segment of the journal is not kept", "segment", name, "err", err)
		return
	}
	w.j.log.Warn("damaged segment of the journal kept aside", "segment", name, "kept_as", aside)
}

func (w *writer) copyAside(name string) (aside string, err error) {
	from, err := w.j.fs.Open(name, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer from.Close()
	size, err := from.Size()
	if err != nil {
		return "", err
	}
	if aside, err = w.asideName(name); err != nil {
		return "", err
	}
	to, err := w.j.fs.Open(aside, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return "", err
	}
	buf := make([]byte, rewriteChunk)
	for at := int64(0); err == nil && at < size; at += int64(len(buf)) {
		piece := buf[:min(int64(len(buf)), size-at)]
		readAround(from, piece, at)
		_, err = to.WriteAt(piece, at)
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return "", errors.Join(err, w.j.fs.Remove(aside))
	}
	return aside, nil
}

// asideName returns the name for a damaged file, and removes the oldest of those
// that are kept.
func (w *writer) asideName(name string) (string, error) {
	names, err := w.j.fs.List()
	if err != nil {
		return "", err
	}
	aside, drop := statefile.AsideName(names, name, keepDamaged)
	for _, d := range drop {
		if err := w.j.fs.Remove(d); err != nil {
			return "", err
		}
	}
	return aside, nil
}
