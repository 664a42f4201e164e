package ondisk

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/logs"
)

// Read yields what a request asks for.
func (s *Store) Read(ctx context.Context, r logs.Request) iter.Seq2[logs.Entry, error] {
	return func(yield func(logs.Entry, error) bool) {
		rd := reading{store: s, request: r, yield: yield}
		err := rd.run(ctx)
		for _, src := range rd.sources {
			err = errors.Join(err, src.file.Close())
		}
		if err != nil && !rd.stopped {
			yield(logs.Entry{}, err)
		}
	}
}

// A reading carries one request out.
type reading struct {
	store   *Store
	request logs.Request
	filter  logs.Filter
	yield   func(logs.Entry, error) bool
	stopped bool // the reader wants no more

	opened  map[*log]*[streams]bool
	sources []*source
}

func (rd *reading) run(ctx context.Context) error {
	var err error
	if rd.filter, err = rd.request.Filter(); err != nil {
		return err
	}
	if rd.request.Follow {
		// From here on the files are looked at more often.
		rd.store.following.Add(1)
		defer rd.store.following.Add(-1)
	}
	changed := rd.store.changed.C()
	windows, err := rd.windows(ctx)
	if err != nil {
		return err
	}
	rd.opened = map[*log]*[streams]bool{}
	for _, w := range windows {
		if err := rd.open(w); err != nil {
			return err
		}
	}
	if rd.request.Tail != 0 {
		if err := rd.skip(ctx); err != nil {
			return err
		}
	}
	for _, src := range rd.sources {
		if src.past = src.to; rd.request.Follow {
			src.to = -1
		}
	}
	if err := rd.give(ctx); err != nil || !rd.request.Follow {
		return err
	}
	for !rd.stopped {
		if err := rd.goOn(ctx); err != nil || rd.stopped {
			return err
		}
		select {
		case <-changed:
			changed = rd.store.changed.C()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// windows returns what is to be read of which logs.
func (rd *reading) windows(ctx context.Context) ([]window, error) {
	var out []window
	r := rd.request
	present := map[engine.ID]*log{}
	for _, l := range rd.store.all() {
		id, ok := asked(r, l)
		if !ok {
			continue
		}
		l.work.Lock()
		l.look()
		l.work.Unlock()
		present[id] = l
		if !r.Previous {
			w := window{log: l}
			l.mu.RLock()
			for i, e := range l.extents {
				w.to[i] = e.end
			}
			l.mu.RUnlock()
			out = append(out, w)
		}
	}
	if r.Previous {
		removed, err := rd.store.removed()
		if err != nil {
			return nil, err
		}
		runs := map[engine.ID][]window{}
		for _, l := range removed {
			if id, ok := asked(r, l); ok {
				runs[id] = append(runs[id], l.windows()...)
			}
		}
		for id, l := range present {
			runs[id] = append(runs[id], l.windows()...)
			runs[id] = runs[id][:len(runs[id])-1]
		}
		for _, all := range runs {
			if len(all) > 0 {
				out = append(out, all[len(all)-1])
			}
		}
		slices.SortFunc(out, func(a, b window) int { return strings.Compare(a.log.key, b.log.key) })
	}
	if len(out) > 0 {
		return out, nil
	}
	all, err := rd.store.List(ctx)
	return nil, errors.Join(r.NotFound(all), err)
}

// asked reports whether a log is asked for, and whose it is.
func asked(r logs.Request, l *log) (engine.ID, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.id, r.Of(logs.Log{Deployment: l.id.Deployment, Component: l.id.Component, Container: l.id.Name})
}

// open opens the streams of a log that are asked for and have something.
func (rd *reading) open(w window) error {
	opened := rd.opened[w.log]
	if opened == nil {
		opened = new([streams]bool)
		rd.opened[w.log] = opened
	}
	for _, i := range []int{earlier, mixed, stdout, stderr} {
		if opened[i] || !rd.filter.Stream(streamNames[i]) {
			continue
		}
		src, err := w.log.open(i, w.from[i], w.to[i])
		if err != nil {
			return err
		}
		if src != nil {
			opened[i], src.final = true, !rd.request.Follow
			rd.sources = append(rd.sources, src)
		}
	}
	return nil
}

// last are the places of the last lines of a container.
type last struct {
	ring  []position
	count int
}

type position struct {
	source *source
	offset int64
}

// skip reads all once, and lets each source begin at the first of the last lines of its container that are asked for.
func (rd *reading) skip(ctx context.Context) error {
	tail := max(rd.request.Tail, 0)
	of, all := map[*source]*last{}, map[engine.ID]*last{}
	for _, src := range rd.sources {
		src.log.mu.RLock()
		id := src.log.id
		src.log.mu.RUnlock()
		if all[id] == nil {
			all[id] = &last{}
		}
		of[src] = all[id]
	}
	if tail > 0 {
		err := rd.each(ctx, func(src *source, e *logs.Entry) bool {
			if e.Gap != nil || !rd.filter.Wants(*e) {
				return true
			}
			l, at := of[src], position{src, e.Offset}
			if len(l.ring) < tail {
				l.ring = append(l.ring, at)
			} else {
				l.ring[l.count%tail] = at
			}
			l.count++
			return true
		})
		if err != nil {
			return err
		}
	}
	first := map[*source]int64{}
	for _, l := range all {
		for _, p := range l.ring {
			if at, ok := first[p.source]; !ok || p.offset < at {
				first[p.source] = p.offset
			}
		}
	}
	for n, src := range rd.sources {
		anew := &source{log: src.log, stream: src.stream, file: src.file, from: src.from, to: src.to, final: src.final, buffer: src.buffer}
		more := of[src].count > tail
		if at, ok := first[src]; tail == 0 {
			anew.from = src.to
		} else if more && !ok {
			anew.from = src.begin // a line that has no end yet
		} else if more {
			anew.from = at
		}
		rd.sources[n] = anew
	}
	return nil
}

// give yields what there is.
func (rd *reading) give(ctx context.Context) error {
	return rd.each(ctx, func(src *source, e *logs.Entry) bool {
		e.Past = e.Offset < src.past
		if rd.filter.Wants(*e) && !rd.yield(*e, nil) {
			rd.stopped = true
		}
		return !rd.stopped
	})
}

// precedes reports whether what a source gives next comes before what another one does: by time, and in one log first by the run, as the times
// of two runs may be the same.
func (s *source) precedes(other *source) bool {
	if s.log == other.log && s.head.Run != other.head.Run {
		return s.head.Run < other.head.Run
	}
	return s.head.Time.Before(other.head.Time)
}

// each calls f with each entry that there is, in the order of time, until it returns false.
func (rd *reading) each(ctx context.Context, f func(*source, *logs.Entry) bool) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var from *source
		for _, src := range rd.sources {
			e, err := src.peek()
			if err != nil {
				return err
			}
			if e != nil && (from == nil || src.precedes(from)) {
				from = src
			}
		}
		if from == nil {
			return nil
		}
		e := from.head
		from.dropHead()
		if !f(from, e) {
			return nil
		}
	}
}

// goOn opens what is new, yields what came meanwhile, and closes what ended.
func (rd *reading) goOn(ctx context.Context) error {
	var errs []error
	for _, l := range rd.store.all() {
		if _, ok := asked(rd.request, l); ok {
			errs = append(errs, rd.open(window{log: l, to: [streams]int64{-1, -1, -1, -1}}))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, src := range rd.sources {
		src.log.mu.RLock()
		src.final = src.log.removed
		src.log.mu.RUnlock()
	}
	if err := rd.give(ctx); err != nil || rd.stopped {
		return err
	}
	rd.sources = slices.DeleteFunc(rd.sources, func(src *source) bool {
		if src.final {
			errs = append(errs, src.file.Close())
			delete(rd.opened, src.log)
		}
		return src.final
	})
	return errors.Join(errs...)
}
