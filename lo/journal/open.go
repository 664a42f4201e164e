package journal

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// Open opens the journal in dir, and makes it where there is none. Only the last
// segment is read, so that the time it takes does not grow with the backlog.
//
// A torn end, which a crash leaves, is cut off: it was never acknowledged. Where
// the meta file or every segment is lost, a new epoch begins and the log says so.
// Open fails where another process has the journal open, or wrote it in a later
// format.
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
	epoch, noEpoch := readMeta(j.fs)
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
	j.st.trimmed, slot = readTrimMark(w.trimf, j.st.epoch)
	w.trimSlot = 1 - slot
	if segments, err = w.restoreLast(segments); err != nil {
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
	j.st.opened = j.st.last
	w.startClock()
	return nil
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
		last, size, err := w.header(first)
		if err != nil {
			return nil, err
		}
		covered = max(covered, last)
		if n := len(segments); n > 0 {
			segments[n-1].last = first - 1
		}
		segments = append(segments, &segment{first: first, last: max(last, first-1), size: size})
	}
	return segments, nil
}

// header reads the last sequence that a rewrite left in the head of a segment; 0
// where there is none. A broken head of a sealed segment does no harm by itself.
func (w *writer) header(first uint64) (last uint64, size int64, err error) {
	f, err := w.j.fs.Open(segmentName(first), os.O_RDONLY)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	if size, err = f.Size(); err != nil {
		return 0, 0, err
	}
	head := make([]byte, segmentHead)
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, err
	}
	last, err = parseSegmentHeader(head, first)
	if err != nil {
		return 0, size, nil
	}
	return last, size, nil
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
	w.j.st.epoch = newEpoch()
	return writeMeta(w.j.fs, w.j.st.epoch)
}

// readMeta fails with kind Unavailable where the journal must not be touched, and
// with kind NotFound where there is no usable epoch.
func readMeta(files files) (epoch string, err error) {
	f, err := files.Open(metaName, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return "", protocol.Errorf(protocol.NotFound, "%s: %w", metaName, err)
	} else if err != nil {
		return "", protocol.Errorf(protocol.Unavailable, "%s: %w", metaName, err)
	}
	defer f.Close()
	b := make([]byte, 4096)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", protocol.Errorf(protocol.Unavailable, "%s: %w", metaName, err)
	}
	var m meta
	if err := json.Unmarshal(b[:n], &m); err != nil {
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

// restoreLast opens the segment to append to, and cuts off its torn end.
func (w *writer) restoreLast(segments []*segment) ([]*segment, error) {
	j := w.j
	for len(segments) > 0 {
		s := segments[len(segments)-1]
		f, err := j.fs.Open(s.name(), os.O_RDWR)
		if err != nil {
			return nil, err
		}
		head := make([]byte, segmentHead)
		if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
			return nil, errors.Join(err, f.Close())
		}
		if _, err := parseSegmentHeader(head, s.first); err == nil {
			w.active = f
			break
		}
		// A head is durable before the first record is written, so that a segment
		// with a torn one is empty, unless the disk broke it later.
		if err := errors.Join(f.Close(), w.discard(s)); err != nil {
			return nil, err
		}
		segments = segments[:len(segments)-1]
	}
	if len(segments) > 0 {
		s := segments[len(segments)-1]
		if err := w.scanActive(s); err != nil {
			return nil, err
		}
		if j.st.last = s.last; j.st.last >= j.st.trimmed {
			return segments, nil
		}
		// The mark outlived records, which the centre has: only their numbers are
		// still of use, and they must not be given a second time.
		j.log.Warn("journal ends before its trim mark", "last", j.st.last, "trimmed", j.st.trimmed)
		if err := w.active.Close(); err != nil {
			return nil, err
		}
		s.last = j.st.trimmed // so that it is removed with what is trimmed
	}
	first := j.st.trimmed + 1
	f, err := createSegment(j.fs, first)
	if err != nil {
		return nil, err
	}
	w.active = f
	j.st.last = j.st.trimmed
	return append(segments, &segment{first: first, last: first - 1, size: segmentHead}), nil
}

// discard takes a last segment without a head away.
func (w *writer) discard(s *segment) error {
	if s.size <= segmentHead {
		return w.j.fs.Remove(s.name())
	}
	w.j.log.Error("head of the last segment is corrupt, its records are lost: beginning a new epoch, because their numbers will be used again",
		"segment", s.name(), "kept_as", s.name()+badExt)
	if err := w.j.fs.Rename(s.name(), s.name()+badExt); err != nil {
		return err
	}
	w.j.st.epoch = newEpoch()
	return writeMeta(w.j.fs, w.j.st.epoch)
}

// scanActive reads the last segment to its end, cuts off what is torn, and makes
// durable what the process before may have left in the page cache only.
func (w *writer) scanActive(s *segment) error {
	began := time.Now()
	s.last = s.first - 1
	sc := newScanner(w.active, mark{s.first, segmentHead}, s.size)
	for {
		at := sc.at
		f, more, err := sc.next()
		if err != nil && !errors.Is(err, errTorn) {
			return err
		}
		if err != nil {
			w.j.log.Warn("cut off torn end of the journal", "segment", s.name(), "offset", at.off, "bytes", s.size-at.off)
			if err := w.active.Truncate(at.off); err != nil {
				return err
			}
			s.size = at.off
		}
		if !more {
			break
		}
		s.last = f.last()
		s.note(at)
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
