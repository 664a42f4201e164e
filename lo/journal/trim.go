package journal

import (
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

// pruneKeys is how many keys may pile up before the trimmed ones are looked for.
const pruneKeys = 4096

// trim forgets up to through and deletes the segments that hold nothing else.
// The mark is written before the segments are removed, but not synced: a missing segment
// shows at Open that it was trimmed.
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
	if err := w.openTrim(); err != nil {
		return err
	}
	_, err := w.trimf.WriteAt(ondisk.TrimMark(w.j.st.epoch, w.j.st.trimmed, w.j.st.last), w.trimSlot*ondisk.TrimSlotSize)
	return err
}

// openTrim opens the file of the mark, unless that is done.
func (w *writer) openTrim() (err error) {
	if w.trimf == nil {
		w.trimf, err = w.j.fs.Open(ondisk.TrimName, os.O_RDWR|os.O_CREATE)
	}
	return err
}

// syncTrim makes the mark durable. The next mark is written to the other slot, so that a
// torn write never hits the one that is durable.
func (w *writer) syncTrim() error {
	if !w.trimDirty || w.trimf == nil {
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
	maps.DeleteFunc(st.salvaged, func(_ string, seq uint64) bool { return seq <= st.trimmed })
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
	for n < len(st.segments)-1 && st.segments[n].Last <= st.trimmed {
		n++
	}
	if n == 0 {
		return nil
	}
	removed := st.segments[:n]
	w.j.mu.Lock()
	st.segments = append([]*ondisk.Segment(nil), st.segments[n:]...)
	w.j.mu.Unlock()
	// A disk may make removals durable in any order. With the mark on it first, a
	// hole that is left by them is known as trimmed and does not count as damage.
	if err := w.syncTrim(); err != nil {
		w.j.log.Warn("sync trim mark", "err", err)
	}
	for _, s := range removed {
		w.total -= s.Size
		if err := w.j.fs.Remove(s.Name()); err != nil {
			// It is found again, and removed, at the next open.
			w.j.log.Warn("remove trimmed segment", "segment", s.Name(), "err", err)
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
	epoch, previous := w.j.newEpoch(), protocol.PreviousEpoch{Epoch: w.j.st.epoch, Through: w.j.st.opened}
	if err := ondisk.WriteEpoch(w.j.fs, w.j.dir, epoch, previous); err != nil {
		return unavailable("write the new epoch", err)
	}
	w.unnamed = false
	w.j.mu.Lock()
	w.j.st.epoch, w.j.st.previous = epoch, previous
	w.j.mu.Unlock()
	w.markTrimmed()
	return nil
}

// newEpoch names an epoch: 32 hexadecimal digits. A site has several journals, each in
// a directory of its own.
func (j *Journal) newEpoch() string {
	var b [16]byte
	j.opts.Random.Fill("epoch/"+filepath.Base(j.dir), b[:])
	return hex.EncodeToString(b[:])
}
