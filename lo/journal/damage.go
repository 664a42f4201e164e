package journal

import (
	"os"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/journal/ondisk"
)

// keepDamaged is how many damaged files a journal keeps, for people to look at.
const keepDamaged = 2

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
	if aside, err = w.asideName(name); err != nil {
		return "", err
	}
	return aside, w.j.fs.Copy(name, aside)
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
