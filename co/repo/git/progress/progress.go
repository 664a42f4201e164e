// Package progress takes what git prints about its progress: it says that git goes on, and is no part of an error.
package progress

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"
)

// A Writer passes on the output of git without its progress, a line at a time, and calls Moved for every output. It is for one
// goroutine.
type Writer struct {
	To    io.Writer
	Moved func()

	line []byte
}

// most bounds a line, in bytes; the rest of a longer one is left out.
const most = 4 << 10

// Write implements io.Writer. A line that ends in a carriage return is replaced by the next one on a terminal, and one that
// ends in "done." is the last of those.
func (w *Writer) Write(p []byte) (int, error) {
	w.Moved()
	for _, c := range p {
		switch {
		case c == '\r':
			w.line = w.line[:0]
		case c != '\n':
			if len(w.line) < most {
				w.line = append(w.line, c)
			}
		case bytes.HasSuffix(w.line, []byte("done.")):
			w.line = w.line[:0]
		default:
			if _, err := w.To.Write(append(w.line, '\n')); err != nil {
				return 0, err
			}
			w.line = w.line[:0]
		}
	}
	return len(p), nil
}

// A Watch bounds a wait that goes on as long as something moves.
type Watch struct {
	timer *time.Timer
	still time.Duration
}

// New returns a context that ends where Moved is not called for the time still, or after most, and a Watch, which the caller stops.
func New(ctx context.Context, still, most time.Duration) (context.Context, *Watch, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("not done within %s", most))
	ctx, stalled := context.WithCancelCause(ctx)
	w := &Watch{still: still, timer: time.AfterFunc(still, func() { stalled(fmt.Errorf("no answer within %s", still)) })}
	return ctx, w, func() {
		w.timer.Stop()
		stalled(nil)
		cancel()
	}
}

// Moved says that something moves. It may be called concurrently.
func (w *Watch) Moved() { w.timer.Reset(w.still) }
