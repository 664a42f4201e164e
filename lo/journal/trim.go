package journal

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/internal/statefile"
)

// pruneKeys is how many keys may pile up before the trimmed ones are looked for.
const pruneKeys = 4096

// trim forgets up to through and deletes the segments that hold nothing else.
// The mark is written before the files go, but not synced: what is gone of the
// files says at least as much.
func (w *writer) trim(through uint64) error {
	st := &w.j.st
	if through = min(through, st.last); through <= st.trimmed {
		return nil
	}
	w.j.mu.Lock()
	st.trimmed = through
	st.forgetKeys()
	w.j.mu.Unlock()
	w.markTrimmed()
	return w.removeTrimmed()
}

// markTrimmed writes the trim mark. Without it a restart sends records again.
func (w *writer) markTrimmed() {
	if err := w.mark(); err != nil {
		w.j.log.Warn("write trim mark, a restart will send records again", "err", err)
	}
}

// mark writes what is trimmed, and what is durable: a segment that ends before that
// has lost its end.
func (w *writer) mark() error {
	w.trimDirty = true
	_, err := w.trimf.WriteAt(trimMark(w.j.st.epoch, w.j.st.trimmed, w.j.st.last), w.trimSlot*trimSlotSize)
	return err
}

// syncTrim makes the mark durable. The next one goes to the other slot, so that a
// torn write never hits the one that is durable.
func (w *writer) syncTrim() error {
	if !w.trimDirty {
		return nil
	}
	if err := w.trimf.Sync(); err != nil {
		return err
	}
	w.trimSlot, w.trimDirty = 1-w.trimSlot, false
	return nil
}

// forgetKeys drops the keys whose newest record is trimmed.
func (st *state) forgetKeys() {
	if st.trimmed == st.last {
		clear(st.keys)
		return
	}
	if len(st.keys) < pruneKeys || len(st.keys) < 2*int(st.last-st.trimmed) {
		return // few, or mostly of records that are still there
	}
	for k, v := range st.keys {
		if v.seq <= st.trimmed {
			delete(st.keys, k)
		}
	}
}

// removeTrimmed deletes sealed segments from the front.
func (w *writer) removeTrimmed() error {
	st := &w.j.st
	n := 0
	for n < len(st.segments)-1 && st.segments[n].last <= st.trimmed {
		n++
	}
	if n == 0 {
		return nil
	}
	removed := st.segments[:n]
	w.j.mu.Lock()
	st.segments = append([]*segment(nil), st.segments[n:]...)
	w.j.mu.Unlock()
	// A disk may make removals durable in any order. With the mark on it first, a
	// hole that is left by them is known as trimmed and not taken for damage.
	if err := w.syncTrim(); err != nil {
		w.j.log.Warn("sync trim mark", "err", err)
	}
	for _, s := range removed {
		w.total -= s.size
		if err := w.j.fs.Remove(s.name()); err != nil {
			// It is found again, and removed, at the next open.
			w.j.log.Warn("remove trimmed segment", "segment", s.name(), "err", err)
		}
	}
	if err := w.j.fs.SyncDir(); err != nil {
		return unavailable("remove trimmed segments", err)
	}
	return nil
}

// renew draws a new epoch.
func (w *writer) renew(have uint64) error {
	if err := w.trim(min(have, w.j.st.opened)); err != nil {
		return err
	}
	epoch := w.j.newEpoch()
	if err := w.writeMeta(epoch); err != nil {
		return unavailable("write the new epoch", err)
	}
	w.j.mu.Lock()
	w.j.st.epoch = epoch
	w.j.mu.Unlock()
	w.markTrimmed()
	return nil
}

// newEpoch names an epoch. A site has several journals, each in a directory of its own.
func (j *Journal) newEpoch() string {
	var b [16]byte
	j.opts.Random.Fill("epoch/"+filepath.Base(j.dir), b[:])
	return hex.EncodeToString(b[:])
}

// meta is the content of the meta file, under the header of a state file.
type meta struct {
	Version int    `json:"version"`
	Epoch   string `json:"epoch"`
}

const metaVersion = 1

// identity is that of the meta file.
func (j *Journal) identity() statefile.Identity {
	return statefile.Identity{Role: role, Name: filepath.Base(j.dir)}
}

// writeMeta replaces the meta file atomically and durably.
func (w *writer) writeMeta(epoch string) error {
	b, err := json.Marshal(meta{Version: metaVersion, Epoch: epoch})
	if err != nil {
		return err
	}
	return replaceFile(w.j.fs, metaName, w.j.identity().Seal(b))
}

// replaceFile puts content in the place of name: a crash leaves the old or the new.
func replaceFile(fs files, name string, content []byte) error {
	tmp := name + tmpExt
	f, err := fs.Open(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", tmp, err)
	}
	if err := fs.Rename(tmp, name); err != nil {
		return err
	}
	return fs.SyncDir()
}

const (
	trimSize     = 16 + 8 + 8 + 4
	oldTrimSize  = 16 + 8 + 4 // before release 0.1.0: without last
	trimSlotSize = 512        // a sector
)

// trimMark encodes the trim mark: what is trimmed, and last, which is durable. It
// names the epoch, so that a mark that was left behind by another journal counts for
// nothing.
func trimMark(epoch string, through, last uint64) []byte {
	return sealMark(binary.LittleEndian.AppendUint64(oldMark(epoch, through), last))
}

// oldMark encodes the mark of before release 0.1.0, but for its checksum.
func oldMark(epoch string, through uint64) []byte {
	b := make([]byte, 16, trimSize)
	_, _ = hex.Decode(b, []byte(epoch)) // checked by readMeta
	return binary.LittleEndian.AppendUint64(b, through)
}

func sealMark(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readTrimMark returns the higher mark and its slot, and the highest sequence that is
// known to have been durable. A mark that is missing, torn or of another epoch counts
// as 0.
func readTrimMark(f file, epoch string) (through, last uint64, slot int64) {
	b := make([]byte, trimSize)
	for i := range int64(2) {
		n, _ := f.ReadAt(b, i*trimSlotSize)
		if n < oldTrimSize {
			continue
		}
		t := binary.LittleEndian.Uint64(b[16:])
		durable := binary.LittleEndian.Uint64(b[24:])
		switch {
		case n == trimSize && string(b) == string(trimMark(epoch, t, durable)):
			last = max(last, durable)
		case string(b[:oldTrimSize]) != string(sealMark(oldMark(epoch, t))):
			continue
		}
		if t > through {
			through, slot = t, i
		}
	}
	return through, max(last, through), slot
}
