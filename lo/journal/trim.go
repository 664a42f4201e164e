package journal

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
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
	if _, err := w.trimf.WriteAt(trimMark(w.j.st.epoch, w.j.st.trimmed), w.trimSlot*trimSlotSize); err != nil {
		w.j.log.Warn("write trim mark, a restart will send records again", "err", err)
	}
	w.trimDirty = true
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
	epoch := newEpoch()
	if err := writeMeta(w.j.fs, epoch); err != nil {
		return unavailable("write the new epoch", err)
	}
	w.j.mu.Lock()
	w.j.st.epoch = epoch
	w.j.mu.Unlock()
	w.markTrimmed()
	return nil
}

func newEpoch() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return hex.EncodeToString(b[:])
}

// meta is the content of meta.json.
type meta struct {
	Version int    `json:"version"`
	Epoch   string `json:"epoch"`
}

const metaVersion = 1

// writeMeta replaces meta.json atomically and durably.
func writeMeta(fs files, epoch string) error {
	b, err := json.Marshal(meta{Version: metaVersion, Epoch: epoch})
	if err != nil {
		return err
	}
	return replaceFile(fs, metaName, append(b, '\n'))
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
	trimSize     = 16 + 8 + 4
	trimSlotSize = 512 // a sector
)

// trimMark encodes the trim mark. It names the epoch, so that a mark that was
// left behind by another journal counts for nothing.
func trimMark(epoch string, through uint64) []byte {
	b := make([]byte, trimSize)
	_, _ = hex.Decode(b[:16], []byte(epoch)) // checked by readMeta
	binary.LittleEndian.PutUint64(b[16:], through)
	binary.LittleEndian.PutUint32(b[24:], crc32.Checksum(b[:24], castagnoli))
	return b
}

// readTrimMark returns the higher mark and its slot. A mark that is missing, torn
// or of another epoch counts as 0.
func readTrimMark(f file, epoch string) (through uint64, slot int64) {
	b := make([]byte, trimSize)
	for i := range int64(2) {
		if n, _ := f.ReadAt(b, i*trimSlotSize); n < trimSize {
			continue
		}
		t := binary.LittleEndian.Uint64(b[16:])
		if t > through && string(b) == string(trimMark(epoch, t)) {
			through, slot = t, i
		}
	}
	return through, slot
}
