package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/colonyfleet/colony/lo/journal/ondisk"
)

// Salvage gives up the records that cannot be read any more, and no others: they
// read as superseded from then on, and a protocol.DataLost event of class "corrupt"
// counts them. The damaged segments are kept aside, the newest few. It reads the whole
// journal. The state of the CO may be wrong afterwards, until it gets a snapshot.
func (j *Journal) Salvage() (lost uint64, err error) {
	_, err = j.do(context.Background(), &request{done: make(chan struct{}), control: func(w *writer) error {
		n, err := w.salvage()
		lost = n
		return err
	}})
	return lost, err
}

func (w *writer) salvage() (lost uint64, err error) {
	w.scanSealed() // it finds the announcements of a salvage that a crash ended
	st := &w.j.st
	active := st.segments[len(st.segments)-1]
	if w.active != nil && w.each(active, func(*ondisk.Frame) {}) != nil {
		// Only a sealed segment is replaced, because it is not appended to.
		if err := w.roll(); err != nil {
			return 0, unavailable("salvage", err)
		}
	}
	for i := range st.segments[:len(st.segments)-1] {
		s := st.segments[i]
		broken := w.each(s, func(*ondisk.Frame) {})
		if broken == nil {
			continue
		}
		if _, ok := errors.AsType[*CorruptError](broken); !ok {
			return lost, broken
		}
		n, err := w.salvageSegment(i, broken)
		lost += n
		if err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// salvageSegment gives up what is damaged of a sealed segment.
func (w *writer) salvageSegment(i int, why error) (lost uint64, err error) {
	s := w.j.st.segments[i]
	p, err := w.prepareBroken(i)
	if err != nil {
		return 0, unavailable("salvage", err)
	}
	w.j.log.Error("records of the journal are damaged and given up; check the disk", "segment", s.Name(), "records", p.records, "bytes", p.bytes, "err", why)
	// After a crash between the announcement and the replacement of the segment, the
	// journal has the announcement of the same records.
	key := fmt.Sprintf(lossKey+"/%016x", p.segment.First, p.segment.Last, p.gaps)
	if _, announced := w.j.st.salvaged[key]; p.records > 0 && !announced {
		a := announcement{class: lossCorrupt, key: key, flags: ondisk.FlagSalvage, records: p.records, bytes: p.bytes}
		if err := w.announce(a); err != nil {
			return 0, errors.Join(err, w.abandon(p))
		}
	}
	w.j.fs.KeepAside(s.Name(), w.j.log)
	if err := w.install(p); err != nil {
		return p.records, unavailable("salvage", err)
	}
	w.j.mu.Lock()
	w.j.st.stats.Lost += p.records
	w.j.st.stats.Salvaged++
	w.j.mu.Unlock()
	return p.records, nil
}
