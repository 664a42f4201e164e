package logs

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// From returns the Source that a Reader is. now is the clock of the node, by which lines have their times.
func From(reader logs.Reader, now func() time.Time) Source {
	return func(ctx context.Context, r wire.LogRequest) iter.Seq2[Line, error] {
		return func(yield func(Line, error) bool) {
			request, err := requestOf(ctx, reader, r, now())
			if err != nil {
				yield(Line{}, err)
				return
			}
			for e, err := range reader.Read(ctx, request) {
				if !yield(Line{lineOf(e, r.Numbered), e.Past && !r.Resumed}, err) || err != nil {
					return
				}
			}
		}
	}
}

// requestOf returns what to ask a Reader for. A container that is named without its component is looked for.
func requestOf(ctx context.Context, reader logs.Reader, r wire.LogRequest, now time.Time) (logs.Request, error) {
	q := logs.Request{
		Deployment: r.Deployment, Component: r.Component, Container: r.Container, Previous: r.Previous, Follow: r.Follow, Grep: r.Grep,
		Tail: int(min(r.Tail, wire.MaxTail)),
	}
	if r.SinceMillis > 0 {
		q.Since = now.Add(-time.Duration(min(r.SinceMillis, 1<<40)) * time.Millisecond)
	}
	if r.Stream != "" {
		q.Streams = []logs.Stream{logs.Stream(r.Stream)}
	}
	if q.Container != "" && q.Component == "" {
		all, err := reader.List(ctx)
		if err != nil {
			return q, err
		}
		var in []string
		for _, l := range all {
			if l.Deployment == q.Deployment && l.Container == q.Container && !slices.Contains(in, l.Component) {
				in = append(in, l.Component)
			}
		}
		if len(in) > 1 {
			return q, command.Failf(wire.BadArguments, "container %s is in the components %s: name one", q.Container, strings.Join(in, ", "))
		}
		if len(in) == 0 {
			return q, q.NotFound(all)
		}
		q.Component = in[0]
	}
	if err := q.Validate(); err != nil {
		return q, command.Failf(wire.BadArguments, "%v", err)
	}
	return q, nil
}

// lineOf returns an entry as it is sent up; where lines are numbered, with the marks that identify
// it permanently.
func lineOf(e logs.Entry, numbered bool) wire.LogLine {
	l := wire.LogLine{Component: e.Component, Container: e.Container, Stream: string(e.Stream), Text: e.Text, CutBytes: uint64(max(e.Cut, 0)), Partial: e.Partial}
	if e.Stream == logs.Mixed {
		l.Stream = ""
	}
	if g := e.Gap; g != nil { // it has no time: it would be an empty line with a gap before it
		l.LostBytes = uint64(max(g.Bytes, 1)) // that something is missing is known where its size is not
		if !g.LinesUnknown {
			l.LostLines = uint64(max(g.Lines, 0))
		}
		return l
	}
	if !e.Time.IsZero() {
		l.UnixMillis = e.Time.UnixMilli()
	}
	if numbered && !e.Began.IsZero() {
		l.Run, l.Number = uint32(e.Began.UnixMilli()), uint64(max(e.Line, 0)) //nolint:gosec // the lower bits are meant
	}
	return l
}

// is reports whether an error is of a kind.
func is(err error, kind protocol.Kind) bool { return err != nil && protocol.KindOf(err) == kind }
