package memory

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/logs"
)

// maxRuns is how many runs of all containers together have logs.
const maxRuns = 256

// A run is what a container wrote from one start to the next. It writes when it ends.
type run struct {
	id      engine.ID
	n       uint32
	began   time.Time
	removed bool
	lines   []logs.Entry
}

// beginLog makes a log for a start. The caller holds the lock.
func (e *Engine) beginLog(id engine.ID, n uint32) {
	e.runs = append(e.runs, &run{id: id, n: n, began: time.Now()})
	e.runs = e.runs[max(0, len(e.runs)-maxRuns):]
	e.written.Notify()
}

// writeLog adds what a container wrote before it ended. The caller holds the lock.
func (e *Engine) writeLog(id engine.ID, p Program) {
	at := slices.IndexFunc(e.runs, func(r *run) bool { return r.id == id && !r.removed })
	if at < 0 {
		return
	}
	lines := map[logs.Stream]int64{}
	var last *run
	for _, r := range e.runs[at:] {
		if r.id == id && !r.removed {
			last = r
			for _, l := range r.lines {
				lines[l.Stream]++
			}
		}
	}
	for _, l := range []struct {
		stream logs.Stream
		text   string
	}{{logs.Stderr, p.Errors}, {logs.Stdout, p.Output}} {
		if l.text == "" {
			continue
		}
		text, left := logs.Text([]byte(l.text))
		last.lines = append(last.lines, logs.Entry{
			Deployment: id.Deployment, Component: id.Component, Container: id.Name, Stream: l.stream, Run: last.n, Began: last.began,
			NotBefore: time.Now(), Time: time.Now(), Line: lines[l.stream] + 1, Text: text, Cut: int64(left),
		})
	}
	e.written.Notify()
}

// removeLog retains the log of a container that is removed. The caller holds the lock.
func (e *Engine) removeLog(id engine.ID) {
	for _, r := range e.runs {
		if r.id == id {
			r.removed = true
		}
	}
}

// Logs returns what reads the output of the programs.
func (e *Engine) Logs() logs.Reader { return reader{e} }

type reader struct{ e *Engine }

// List returns the logs that there are.
func (r reader) List(context.Context) ([]logs.Log, error) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	return r.list(), nil
}

func (r reader) list() []logs.Log {
	var out []logs.Log
	for _, run := range r.e.runs {
		l := logs.Log{Deployment: run.id.Deployment, Component: run.id.Component, Container: run.id.Name, Removed: run.removed}
		at := slices.IndexFunc(out, func(o logs.Log) bool { return o.Name() == l.Name() && o.Removed == l.Removed })
		if at < 0 {
			out, at = append(out, l), len(out)
		}
		out[at].Runs++
		for _, line := range run.lines {
			out[at].Bytes += int64(len(line.Text)) + 1
			out[at].Last = line.Time
		}
	}
	slices.SortFunc(out, logs.Log.Compare)
	return out
}

// Read yields what a request asks for.
func (r reader) Read(ctx context.Context, request logs.Request) iter.Seq2[logs.Entry, error] {
	return func(yield func(logs.Entry, error) bool) {
		filter, err := request.Filter()
		if err != nil {
			yield(logs.Entry{}, err)
			return
		}
		seen := map[*run]int{}
		for first := true; ; first = false {
			changed := r.e.written.C()
			lines, err := r.lines(request, filter, seen, first)
			if err != nil {
				yield(logs.Entry{}, err)
				return
			}
			for _, l := range lines {
				l.Past = first
				if !yield(l, nil) {
					return
				}
			}
			if !request.Follow {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				yield(logs.Entry{}, context.Cause(ctx))
				return
			}
		}
	}
}

// lines returns those of a request that were not seen, and notes that they are.
func (r reader) lines(request logs.Request, filter logs.Filter, seen map[*run]int, first bool) ([]logs.Entry, error) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	var out []logs.Entry
	found := false
	for n, run := range r.e.runs {
		l := logs.Log{Deployment: run.id.Deployment, Component: run.id.Component, Container: run.id.Name}
		if !request.Of(l) || request.Previous && !r.previous(n) || !request.Previous && run.removed {
			continue
		}
		found = true
		for _, line := range run.lines[seen[run]:] {
			if filter.Stream(line.Stream) && filter.Wants(line) {
				out = append(out, line)
			}
		}
		seen[run] = len(run.lines)
	}
	if !first {
		return out, nil
	}
	if !found {
		return nil, request.NotFound(r.list())
	}
	slices.SortStableFunc(out, func(a, b logs.Entry) int { return a.Time.Compare(b.Time) })
	switch {
	case request.Tail > 0:
		out = out[max(0, len(out)-request.Tail):]
	case request.Tail < 0:
		out = nil
	}
	return out, nil
}

// previous reports whether a run is the one before the present one of its container: where that was removed, the last.
func (r reader) previous(n int) bool {
	later := 0
	for _, o := range r.e.runs[n+1:] {
		if o.id == r.e.runs[n].id {
			later++
		}
	}
	present := slices.ContainsFunc(r.e.runs, func(o *run) bool { return o.id == r.e.runs[n].id && !o.removed })
	return present && later == 1 || !present && later == 0
}
