package journal

import (
	"os"

	"github.com/colonyfleet/colony/lo/journal/ondisk"
)

// missing is what cannot be read of a segment.
type missing struct {
	records uint64 // that are not trimmed
	bytes   uint64
	gaps    uint64 // see ondisk.HashGap
}

// eachWhole calls do for every record of a sealed segment that can be read. It
// returns which cannot.
func (w *writer) eachWhole(s *ondisk.Segment, do func(*ondisk.Frame)) (m missing, err error) {
	gap := func(first, last uint64, bytes int64) {
		m.records += w.untrimmed(first, last)
		m.bytes += uint64(bytes)
		m.gaps = ondisk.HashGap(m.gaps, first, last)
	}
	f, err := w.j.fs.Open(s.Name(), os.O_RDONLY)
	if err != nil { // there is nothing to read
		gap(s.First, s.Last, s.Size)
		return m, nil
	}
	defer f.Close()
	err = ondisk.EachWhole(f, s, do, gap)
	return m, err
}

// untrimmed counts the sequences from first to last that are not trimmed.
func (w *writer) untrimmed(first, last uint64) uint64 {
	first = max(first, w.j.st.trimmed+1)
	if last < first {
		return 0
	}
	return last - first + 1
}
