package journal

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

// Open opens the journal in dir, and makes it where there is none. Only the last segment is read,
// so that its duration does not grow with the backlog.
//
// A torn end, which a crash leaves, is cut off: it was never acknowledged. The torn end is not
// covered by the trim mark, and no later record follows it. Any other damage of the last segment
// costs the damaged records only: they are given up as by Salvage, and their numbers are not given
// again. Where the meta file, the trim mark or every segment is lost, a new epoch begins and the
// log says so; see Damage. Open fails where another process has the journal open, or wrote it in a
// later format.
func Open(dir string, opts Options) (*Journal, error) {
	opts = opts.withDefaults(dir)
	if err := ondisk.MakeDir(opts.Disk, dir); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &Journal{
		dir: dir, opts: opts, fs: ondisk.Dir{FS: opts.Disk, Path: dir}, log: opts.Logger,
		requests: make(chan *request, 128), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	j.w.j = j
	j.seed = ondisk.SeedOf(filepath.Base(dir))
	j.st.keys, j.st.salvaged = map[string]keyed{}, map[string]uint64{}
	lock, err := j.fs.Lock()
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j.lock = lock
	if err := j.w.restore(); err != nil {
		err = fmt.Errorf("open journal %s: %w", dir, err)
		return nil, errors.Join(err, closeAll(j.w.active, j.w.trimf, lock))
	}
	go j.w.run()
	return j, nil
}

func closeAll(closers ...io.Closer) (err error) {
	for _, c := range closers {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// restore brings the directory into order and the state into memory.
func (w *writer) restore() error {
	j := w.j
	if err := j.fs.SetAsideIrregular(j.log); err != nil {
		return err
	}
	names, err := j.fs.List()
	if err != nil {
		return err
	}
	epoch, previous, noEpoch := ondisk.ReadEpoch(j.fs, j.dir)
	if noEpoch != nil && protocol.KindOf(noEpoch) == protocol.Unavailable {
		return noEpoch // before anything is touched
	}
	segments, err := w.survey(names)
	if err != nil {
		return err
	}
	j.st.previous = previous
	if err := w.restoreEpoch(epoch, noEpoch, len(segments) > 0); err != nil {
		return err
	}
	if err := w.openTrim(); err != nil && !disk.IsFull(err) { // else it is made with the next mark
		return err
	}
	if w.trimf != nil {
		slot, whole := int64(0), false
		j.st.trimmed, w.durable, slot, whole = ondisk.ReadTrimMark(w.trimf, j.st.epoch)
		w.trimSlot = 1 - slot
		if !whole && ondisk.HaveRecords(segments) {
			w.lostMark(slices.Contains(names, ondisk.TrimName))
		}
	}
	if segments, err = w.restoreLast(segments); err != nil {
		return err
	}
	if segments, err = w.renewActive(segments); err != nil {
		return err
	}
	if err := w.nameEpoch(); err != nil {
		return err
	}
	if segments[0].First > j.st.trimmed+1 {
		j.st.trimmed = segments[0].First - 1
	}
	j.st.segments = segments
	for _, s := range segments {
		w.total += s.Size
	}
	w.markTrimmed()
	if err := w.syncTrim(); err != nil && !disk.IsFull(err) {
		return err
	}
	if err := w.removeTrimmed(); err != nil {
		return err
	}
	if err := j.fs.SyncDir(); err != nil {
		return err
	}
	if err := w.index(); err != nil {
		return err
	}
	w.startClock()
	w.salvageFound()
	j.st.opened = j.st.last
	return nil
}

// lostMark begins a new epoch where the trim mark is lost, which alone says where the journal ended: records may be missing
// at its end, and their numbers be given again. What is there has the numbers of the epoch before. The epoch has its name once the
// end is known, see nameEpoch.
func (w *writer) lostMark(there bool) {
	d := w.j.fs.LostMark(there)
	w.j.log.Error("the mark of the journal is lost, which says where it ended: records at its end may be lost, beginning a new epoch", "err", d)
	w.j.damage = d
	w.j.st.previous = protocol.PreviousEpoch{Epoch: w.j.st.epoch}
	w.j.st.epoch, w.unnamed = w.j.newEpoch(), true
}

// nameEpoch stores an epoch that has no name on the disk yet, and up to where it has the numbers of the one before. Where there is no
// room for it, the next Append does it.
func (w *writer) nameEpoch() error {
	if w.unnamed && w.j.st.previous.Epoch != "" {
		w.j.st.previous.Through = w.j.st.last
	}
	if err := w.saveEpoch(); err != nil && !disk.IsFull(err) {
		return err
	}
	return nil
}

// renewActive begins a new segment where the last one is damaged, so that it can be
// salvaged.
func (w *writer) renewActive(segments []*ondisk.Segment) ([]*ondisk.Segment, error) {
	s := segments[len(segments)-1]
	if w.damaged == nil {
		return segments, nil
	}
	if s.Last < s.First { // it is empty: the new one has its name
		segments = segments[:len(segments)-1]
	}
	if err := w.active.Close(); err != nil {
		return nil, err
	}
	w.active = nil
	return w.begin(segments, s.Last+1)
}

// begin appends a segment without records. Where there is no room for its file, the next
// Append makes it: until then the journal gives what it has, and accepts nothing.
func (w *writer) begin(segments []*ondisk.Segment, first uint64) ([]*ondisk.Segment, error) {
	f, err := w.createSegment(first)
	if err == nil {
		w.active = f
	} else if !disk.IsFull(err) {
		return nil, err
	}
	return append(segments, &ondisk.Segment{First: first, Last: first - 1, Size: ondisk.HeadSize, Seed: w.j.seed}), nil
}

// salvageFound gives up what was found damaged. Where it fails, as on a full disk, the
// reader meets the damage again.
func (w *writer) salvageFound() {
	i := slices.Index(w.j.st.segments, w.damaged)
	if i < 0 {
		return
	}
	if _, err := w.salvageSegment(i, ondisk.ErrTorn); err != nil {
		w.j.log.Error("salvage journal", "segment", w.damaged.Name(), "err", err)
	}
}

// survey returns the segments in order, and removes what a crash has left: files
// that were being written, and segments whose records were merged into the one
// before them.
func (w *writer) survey(names []string) ([]*ondisk.Segment, error) {
	slices.Sort(names)
	var segments []*ondisk.Segment
	var covered uint64
	for _, name := range names {
		first, ok := ondisk.ParseSegmentName(name)
		if strings.HasSuffix(name, ondisk.TempExt) || ok && first <= covered {
			if err := w.j.fs.Remove(name); err != nil {
				return nil, err
			}
			continue
		}
		if !ok {
			continue
		}
		s, last, err := ondisk.ReadHeader(w.j.fs, first, w.j.seed)
		if err != nil {
			return nil, err
		}
		covered = max(covered, last)
		if n := len(segments); n > 0 {
			segments[n-1].Last = first - 1
		}
		s.Last = max(last, first-1)
		segments = append(segments, s)
	}
	return segments, nil
}

// restoreEpoch sets the epoch that was found, or begins one.
func (w *writer) restoreEpoch(epoch string, none error, segments bool) error {
	switch {
	case none == nil && segments:
		w.j.st.epoch = epoch
		return nil
	case none != nil && segments:
		w.j.log.Error("journal has lost its epoch, beginning a new one: the CO gets a snapshot", "err", none)
	case none == nil:
		w.j.log.Warn("journal has no segments, beginning a new epoch", "epoch", epoch)
	}
	return w.newEpoch()
}

// newEpoch begins an epoch. Where there is no room for its name, the next Append writes it.
func (w *writer) newEpoch() error {
	w.j.st.epoch, w.j.st.previous, w.unnamed = w.j.newEpoch(), protocol.PreviousEpoch{}, true
	return w.nameEpoch()
}

func (w *writer) saveEpoch() error {
	if !w.unnamed {
		return nil
	}
	err := ondisk.WriteEpoch(w.j.fs, w.j.dir, w.j.st.epoch, w.j.st.previous)
	w.unnamed = err != nil
	return err
}

// restoreLast opens the segment to append to, and looks at its end.
func (w *writer) restoreLast(segments []*ondisk.Segment) ([]*ondisk.Segment, error) {
	j := w.j
	for n := len(segments); n > 0; n = len(segments) {
		s := segments[n-1]
		f, err := j.fs.Open(s.Name(), os.O_RDWR)
		if err != nil {
			return nil, err
		}
		w.active = f
		if err := w.scanActive(s); err != nil {
			return nil, err
		}
		// A head is durable before the first record is written, so that a segment with a
		// torn one is empty, unless the disk broke it later.
		if !s.Headless || w.damaged != nil || s.Last >= s.First {
			break
		}
		if err := errors.Join(f.Close(), w.discard(s)); err != nil {
			return nil, err
		}
		w.active, segments = nil, segments[:n-1]
	}
	if n := len(segments); n > 0 {
		s := segments[n-1]
		if j.st.last = s.Last; j.st.last >= j.st.trimmed {
			return segments, nil
		}
		// The mark outlived records, which the CO has: only their numbers are still
		// needed, and they must not be given a second time.
		j.log.Warn("journal ends before its trim mark", "last", j.st.last, "trimmed", j.st.trimmed)
		if err := w.active.Close(); err != nil {
			return nil, err
		}
		s.Last, w.damaged = j.st.trimmed, nil // so that it is removed with what is trimmed
	}
	w.active, j.st.last = nil, j.st.trimmed
	return w.begin(segments, j.st.trimmed+1)
}

// discard removes a last segment that has neither a head nor a record.
func (w *writer) discard(s *ondisk.Segment) error {
	if s.Size <= ondisk.HeadSize {
		return w.j.fs.Remove(s.Name())
	}
	aside, err := w.j.fs.AsideName(s.Name())
	if err != nil {
		return err
	}
	w.j.log.Error("the last segment is damaged, its records are lost: beginning a new epoch, because their numbers will be used again; check the disk",
		"segment", s.Name(), "kept_as", aside)
	if err := w.j.fs.Rename(s.Name(), aside); err != nil {
		return err
	}
	return w.newEpoch()
}

// scanActive reads the last segment to its end, cuts off what is torn, and makes
// durable what the process before may have left in the page cache only. Where the
// segment is damaged, it is left as it is, and noted as w.damaged.
func (w *writer) scanActive(s *ondisk.Segment) error {
	began := time.Now()
	s.Last = s.First - 1
	sc := ondisk.NewScanner(w.active, s, ondisk.Mark{Seq: s.First, Off: ondisk.HeadSize}, s.Size)
	for {
		at := sc.At
		f, more, err := sc.Next()
		switch {
		case err == nil && more:
			s.Last = f.Last()
			s.Note(at)
			continue
		case err != nil && !errors.Is(err, ondisk.ErrTorn):
			return err
		case err != nil && !s.Headless && at.Seq > w.durable && sc.Torn():
		case err != nil && sc.Resync(math.MaxUint64):
			w.damaged = s
			continue
		}
		if err == nil || w.damaged != nil {
			break
		}
		if !s.Headless {
			w.j.log.Warn("cut off torn end of the journal", "segment", s.Name(), "offset", at.Off, "bytes", s.Size-at.Off)
			if err := w.active.Truncate(at.Off); err != nil {
				return err
			}
			s.Size = at.Off
		}
		break
	}
	if w.durable > s.Last && w.durable > w.j.st.trimmed {
		w.damaged, s.Last = s, w.durable
	}
	if err := w.active.Sync(); err != nil {
		return err
	}
	w.j.log.Debug("journal scanned", "segment", s.Name(), "bytes", s.Size, "took", time.Since(began))
	return nil
}

// index enters the last segment into the keys, and carries out the dropping that
// was announced last, in case the crash came between the two.
func (w *writer) index() error {
	st := &w.j.st
	if w.active == nil { // it has no file yet, and so no record
		return nil
	}
	s := st.segments[len(st.segments)-1]
	var intent string
	err := w.each(s, func(f *ondisk.Frame) {
		st.account(s, f)
		if f.Flags&ondisk.FlagLoss != 0 {
			intent = string(f.Key)
		}
	})
	if err != nil {
		return err
	}
	s.Scanned = true
	return w.repeatDrop(intent)
}

// repeatDrop drops what an announcement names, if it is there still.
func (w *writer) repeatDrop(intent string) error {
	st := &w.j.st
	var first, last uint64
	if n, err := fmt.Sscanf(intent, lossKey, &first, &last); err != nil || n != 2 {
		return nil // there is none
	}
	sealed := st.segments[:len(st.segments)-1]
	at := slices.IndexFunc(sealed, func(s *ondisk.Segment) bool { return s.First >= first && s.Last <= last })
	n := 0
	for at >= 0 && at+n < len(sealed) && sealed[at+n].Last <= last {
		n++
	}
	if n == 0 {
		return nil
	}
	p, err := w.prepare(at, n, true)
	switch {
	case err != nil: // such as a full disk: the records are delivered after all
		w.j.log.Warn("drop data that was announced as lost", "first", first, "last", last, "err", err)
		return nil
	case p.records+p.earlier.Records == 0:
		return w.abandon(p)
	}
	return w.install(p)
}
