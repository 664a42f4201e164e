package journal

import (
	"time"

	"github.com/colonyfleet/colony/lo/journal/ondisk"
)

// ageSteps is how many segments the time of Options.MaxAge is spread over, at
// least, so that whole segments can go without much that is younger.
const ageSteps = 8

// ages ticks while there is a bound by age.
func (w *writer) ages() <-chan time.Time {
	if w.j.opts.MaxAge <= 0 {
		return nil
	}
	return time.Tick(min(max(w.j.opts.MaxAge/ageSteps, time.Second), time.Minute))
}

// spread reports that a segment has been appended to for so long that it should
// be sealed.
func (w *writer) spread(s *ondisk.Segment) bool {
	age := w.j.opts.MaxAge
	return age > 0 && s.Oldest > 0 && w.j.Now().UnixMilli()-s.Oldest > (age/ageSteps).Milliseconds()
}

// expire drops the Data of segments in which everything is older than MaxAge.
func (w *writer) expire() error {
	if w.j.opts.MaxAge <= 0 {
		return nil
	}
	limit := w.j.Now().Add(-w.j.opts.MaxAge).UnixMilli()
	st := &w.j.st
	for i := 0; i < len(st.segments); {
		s := st.segments[i]
		w.scan(s)
		switch {
		case s.Damaged && i < len(st.segments)-1:
			if _, err := w.salvageSegment(i, ondisk.ErrTorn); err != nil {
				w.j.log.Warn("damaged segment stays, later ones are looked at", "segment", s.Name(), "err", err)
				i++
			}
			continue // with what was salvaged
		case s.Newest > limit:
			return nil // and so are all that follow
		case s.Data == 0 || s.Last <= st.trimmed:
			i++
			continue
		case i == len(st.segments)-1:
			if err := w.roll(); err != nil {
				return unavailable("open the next segment", err)
			}
		}
		// What is rewritten has no Data any more, so that the next round passes it.
		if err := w.drop(i, lossAge); err != nil && !w.noteDamage(err) {
			return unavailable("drop data", err)
		}
	}
	return nil
}

// startClock sets the clock of the journal, see Now.
func (w *writer) startClock() {
	j := w.j
	j.beganWall = j.opts.Now()
	j.began = j.beganWall
	for i := len(j.st.segments) - 1; i >= 0 && j.st.last > j.st.trimmed; i-- {
		s := j.st.segments[i]
		w.scan(s) // nearly always the last one, which is known already
		if s.Newest > 0 {
			if newest := time.UnixMilli(s.Newest); newest.After(j.began) {
				j.log.Warn("the machine's clock is behind the journal, going on from the newest record", "clock", j.beganWall, "newest", newest)
				j.began = newest
			}
			return
		}
	}
}
