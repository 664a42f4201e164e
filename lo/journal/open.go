package journal

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// Open opens the journal in dir, and makes it where there is none. Only the last
// segment is read, so that the time it takes does not grow with the backlog.
//
// A torn end, which a crash leaves, is cut off: it was never acknowledged. Any other
// damage of the last segment costs the damaged records only: they are given up as by
// Salvage, and their numbers are not given again. Where the meta file or every
// segment is lost, a new epoch begins and the log says so. Open fails where another
// process has the journal open, or wrote it in a later format.
func Open(dir string, opts Options) (*Journal, error) {
	if opts.files == nil {
		if err := makeDir(dir); err != nil {
			return nil, fmt.Errorf("open journal: %w", err)
		}
	}
	opts = opts.withDefaults(dir)
	j := &Journal{
		dir: dir, opts: opts, fs: opts.files, log: opts.Logger,
		requests: make(chan *request, 128), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	j.w.j = j
	j.seed = seedOf(filepath.Base(dir))
	j.st.keys = map[string]keyed{}
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

// makeDir makes dir and its name durable.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return disk{filepath.Dir(filepath.Clean(dir))}.SyncDir()
}

// restore brings the directory into order and the state into memory.
func (w *writer) restore() error {
	j := w.j
	names, err := j.fs.List()
	if err != nil {
		return err
	}
	epoch, noEpoch := j.readMeta()
	if noEpoch != nil && protocol.KindOf(noEpoch) == protocol.Unavailable {
		return noEpoch // before anything is touched
	}
	segments, err := w.survey(names)
	if err != nil {
		return err
	}
	if err := w.restoreEpoch(epoch, noEpoch, len(segments) > 0); err != nil {
		return err
	}
	if w.trimf, err = j.fs.Open(trimName, os.O_RDWR|os.O_CREATE); err != nil {
		return err
	}
	var slot int64
	j.st.trimmed, w.durable, slot = readTrimMark(w.trimf, j.st.epoch)
	w.trimSlot = 1 - slot
	if segments, err = w.restoreLast(segments); err != nil {
		return err
	}
	if segments, err = w.renewActive(segments); err != nil {
		return err
	}
	if segments[0].first > j.st.trimmed+1 {
		j.st.trimmed = segments[0].first - 1
	}
	j.st.segments = segments
	for _, s := range segments {
		w.total += s.size
	}
	w.markTrimmed()
	if err := w.syncTrim(); err != nil {
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

// renewActive begins a new segment where the last one is damaged, so that it can be
// salvaged, or is of before release 0.1.0.
func (w *writer) renewActive(segments []*segment) ([]*segment, error) {
	s := segments[len(segments)-1]
	if w.damaged == nil && s.seed == w.j.seed {
		return segments, nil
	}
	if s.last < s.first { // it is empty: the new one has its name
		segments = segments[:len(segments)-1]
	}
	if err := w.active.Close(); err != nil {
		return nil, err
	}
	next := &segment{first: s.last + 1, last: s.last, size: segmentHead, seed: w.j.seed}
	var err error
	if w.active, err = w.createSegment(next.first); err != nil {
		return nil, err
	}
	return append(segments, next), nil
}

// salvageFound gives up what was found damaged. Where it fails, as on a full disk, the
// reader meets the damage again.
func (w *writer) salvageFound() {
	i := slices.Index(w.j.st.segments, w.damaged)
	if i < 0 {
		return
	}
	if _, err := w.salvageSegment(i, errTorn); err != nil {
		w.j.log.Error("salvage journal", "segment", w.damaged.name(), "err", err)
	}
}

// survey returns the segments in order, and removes what a crash has left: files
// that were being written, and segments whose records were merged into the one
// before them.
func (w *writer) survey(names []string) ([]*segment, error) {
	slices.Sort(names)
	var segments []*segment
	var covered uint64
	for _, name := range names {
		first, ok := parseSegmentName(name)
		if strings.HasSuffix(name, tmpExt) || ok && first <= covered {
			if err := w.j.fs.Remove(name); err != nil {
				return nil, err
			}
			continue
		}
		if !ok {
			continue
		}
		s, last, err := w.header(first)
		if err != nil {
			return nil, err
		}
		covered = max(covered, last)
		if n := len(segments); n > 0 {
			segments[n-1].last = first - 1
		}
		s.last = max(last, first-1)
		segments = append(segments, s)
	}
	return segments, nil
}

// header returns a segment as its file says, and the last sequence that a rewrite
// left in its head; 0 where there is none. A broken head does no harm by itself.
func (w *writer) header(first uint64) (s *segment, last uint64, err error) {
	f, err := w.j.fs.Open(segmentName(first), os.O_RDONLY)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	s = &segment{first: first, seed: w.j.seed}
	if s.size, err = f.Size(); err != nil {
		return nil, 0, err
	}
	head := make([]byte, segmentHead)
	readAround(f, head, 0)
	last, old, err := parseSegmentHeader(head, first, w.j.seed)
	s.headless = err != nil
	if s.headless {
		was := *s
		was.seed = 0
		_, _, now := newScanner(f, s, mark{first, segmentHead}, s.size).next()
		_, more, before := newScanner(f, &was, mark{first, segmentHead}, s.size).next()
		old = now != nil && before == nil && more
	}
	if old {
		s.seed = 0
	}
	return s, last, nil
}

// restoreEpoch takes the epoch that was found, or begins one.
func (w *writer) restoreEpoch(epoch string, none error, segments bool) error {
	switch {
	case none == nil && segments:
		w.j.st.epoch = epoch
		return nil
	case none != nil && segments:
		w.j.log.Error("journal has lost its epoch, beginning a new one: the centre gets a snapshot", "err", none)
	case none == nil:
		w.j.log.Warn("journal has no segments, beginning a new epoch", "epoch", epoch)
	}
	w.j.st.epoch = w.j.newEpoch()
	return w.writeMeta(w.j.st.epoch)
}

// readMeta fails with kind Unavailable where the journal must not be touched, and
// with kind NotFound where there is no usable epoch.
func (j *Journal) readMeta() (epoch string, err error) {
	b, err := readSmall(j.fs, metaName)
	if errors.Is(err, fs.ErrNotExist) {
		return j.readOldMeta()
	} else if err != nil {
		return "", protocol.Errorf(protocol.Unavailable, "%s: %w", metaName, err)
	}
	content, _, err := j.identity().Unseal(b)
	if newer, ok := errors.AsType[*statefile.NewerError](err); ok {
		newer.Path = filepath.Join(j.dir, metaName)
		return "", protocol.Errorf(protocol.Unavailable, "%w", newer)
	}
	if err != nil {
		return "", protocol.Errorf(protocol.NotFound, "%s is damaged: %w", metaName, err)
	}
	return parseMeta(content)
}

// readOldMeta reads the file of before release 0.1.0, and puts it into the present
// format.
func (j *Journal) readOldMeta() (epoch string, err error) {
	b, err := readSmall(j.fs, oldMeta)
	if errors.Is(err, fs.ErrNotExist) {
		return "", protocol.Errorf(protocol.NotFound, "%s: %w", metaName, err)
	} else if err != nil {
		return "", protocol.Errorf(protocol.Unavailable, "%s: %w", oldMeta, err)
	}
	if epoch, err = parseMeta(b); err != nil {
		return "", err
	}
	if err := j.w.writeMeta(epoch); err != nil {
		return "", protocol.Errorf(protocol.Unavailable, "%w", err)
	}
	if err := j.fs.Remove(oldMeta); err != nil {
		return "", protocol.Errorf(protocol.Unavailable, "%w", err)
	}
	return epoch, nil
}

func parseMeta(b []byte) (epoch string, err error) {
	var m meta
	if err := json.Unmarshal(b, &m); err != nil {
		return "", protocol.Errorf(protocol.NotFound, "%s: %w", metaName, err)
	}
	if m.Version > metaVersion {
		return "", protocol.Errorf(protocol.Unavailable, "%s: format %d, this program knows %d: run the newer version", metaName, m.Version, metaVersion)
	}
	if raw, err := hex.DecodeString(m.Epoch); err != nil || len(raw) != 16 {
		return "", protocol.Errorf(protocol.NotFound, "%s: epoch %q is not 32 hexadecimal digits", metaName, m.Epoch)
	}
	return m.Epoch, nil
}

// readSmall returns the beginning of a file, which is all of one that is not damaged.
func readSmall(files files, name string) ([]byte, error) {
	f, err := files.Open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, sector))
	return b[:readAround(f, b, 0)], nil
}

// restoreLast opens the segment to append to, and looks at its end.
func (w *writer) restoreLast(segments []*segment) ([]*segment, error) {
	j := w.j
	for n := len(segments); n > 0; n = len(segments) {
		s := segments[n-1]
		f, err := j.fs.Open(s.name(), os.O_RDWR)
		if err != nil {
			return nil, err
		}
		w.active = f
		if err := w.scanActive(s); err != nil {
			return nil, err
		}
		// A head is durable before the first record is written, so that a segment with a
		// torn one is empty, unless the disk broke it later.
		if !s.headless || w.damaged != nil || s.last >= s.first {
			break
		}
		if err := errors.Join(f.Close(), w.discard(s)); err != nil {
			return nil, err
		}
		w.active, segments = nil, segments[:n-1]
	}
	if n := len(segments); n > 0 {
		s := segments[n-1]
		if j.st.last = s.last; j.st.last >= j.st.trimmed {
			return segments, nil
		}
		// The mark outlived records, which the CO has: only their numbers are still
		// needed, and they must not be given a second time.
		j.log.Warn("journal ends before its trim mark", "last", j.st.last, "trimmed", j.st.trimmed)
		if err := w.active.Close(); err != nil {
			return nil, err
		}
		s.last, w.damaged = j.st.trimmed, nil // so that it is removed with what is trimmed
	}
	first := j.st.trimmed + 1
	f, err := w.createSegment(first)
	if err != nil {
		return nil, err
	}
	w.active = f
	j.st.last = j.st.trimmed
	return append(segments, &segment{first: first, last: first - 1, size: segmentHead, seed: j.seed}), nil
}

// discard takes a last segment away that has neither a head nor a record.
func (w *writer) discard(s *segment) error {
	if s.size <= segmentHead {
		return w.j.fs.Remove(s.name())
	}
	aside, err := w.asideName(s.name())
	if err != nil {
		return err
	}
	w.j.log.Error("the last segment is damaged, its records are lost: beginning a new epoch, because their numbers will be used again; check the disk",
		"segment", s.name(), "kept_as", aside)
	if err := w.j.fs.Rename(s.name(), aside); err != nil {
		return err
	}
	w.j.st.epoch = w.j.newEpoch()
	return w.writeMeta(w.j.st.epoch)
}

// scanActive reads the last segment to its end, cuts off what is torn, and makes
// durable what the process before may have left in the page cache only. Where the
// segment is damaged, it is left as it is, and noted as w.damaged.
func (w *writer) scanActive(s *segment) error {
	began := time.Now()
	s.last = s.first - 1
	sc := newScanner(w.active, s, mark{s.first, segmentHead}, s.size)
	for {
		at := sc.at
		f, more, err := sc.next()
		switch {
		case err == nil && more:
			s.last = f.last()
			s.note(at)
			continue
		case err != nil && !errors.Is(err, errTorn):
			return err
		case err != nil && sc.resync(math.MaxUint64):
			w.damaged = s
			continue
		case err != nil && !s.headless && !sc.torn():
			w.damaged, s.last = s, at.seq
		}
		if err == nil || w.damaged != nil {
			break
		}
		if !s.headless {
			w.j.log.Warn("cut off torn end of the journal", "segment", s.name(), "offset", at.off, "bytes", s.size-at.off)
			if err := w.active.Truncate(at.off); err != nil {
				return err
			}
			s.size = at.off
		}
		break
	}
	if w.durable > s.last && w.durable > w.j.st.trimmed {
		w.damaged, s.last = s, w.durable
	}
	if err := w.active.Sync(); err != nil {
		return err
	}
	w.j.log.Debug("journal scanned", "segment", s.name(), "bytes", s.size, "took", time.Since(began))
	return nil
}

// index enters the last segment into the keys, and carries out the dropping that
// was announced last, in case the crash came between the two.
func (w *writer) index() error {
	st := &w.j.st
	s := st.segments[len(st.segments)-1]
	var intent string
	err := w.each(s, func(f *frame) {
		st.account(s, f)
		if f.flags&flagLoss != 0 {
			intent = string(f.key)
		}
	})
	if err != nil {
		return err
	}
	s.scanned = true
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
	at := slices.IndexFunc(sealed, func(s *segment) bool { return s.first >= first && s.last <= last })
	n := 0
	for at >= 0 && at+n < len(sealed) && sealed[at+n].last <= last {
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
