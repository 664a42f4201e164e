package logs

import (
	"context"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	wire "github.com/colonyfleet/colony/protocol/command"
)

const (
	// ahead is how many lines that were there when the reading began are read before there is credit for them.
	ahead = 64
	// lag is how much older a line that waits may be than the newest one: while a container goes on to write, its follower sees what it wrote so
	// long ago, and what it sends before that.
	lag = 5 * time.Second
	// mostBytes bounds the lines that wait, in bytes of memory.
	mostBytes = 256 << 10
	// lineBytes is what a line takes beside its text.
	lineBytes = 128
	// readBytes is how much is read, and left out, between two pauses: what a container writes faster than 10 MB/s is left out where it is dropped
	// on disk, without reading it.
	readBytes, pause = 256 << 10, 25 * time.Millisecond
)

// waiting is a line that was read and not sent.
type waiting struct {
	wire.LogLine
	at time.Time // when it was read
}

// size is what the line takes in memory.
func (w *waiting) size() int { return len(w.Text) + lineBytes }

// A missing is what was left out of a stream of a container.
type missing struct {
	wire.LogLine
	unknown bool // how many lines that was
}

// A source is a stream of a container.
type source struct{ component, container, stream string }

func sourceOf(l *wire.LogLine) source { return source{l.Component, l.Container, l.Stream} }

// A backlog is what was read of logs and not sent. What was there when the reading began waits for its reader, however long that takes; of what is
// written from then on the oldest lines are left out, and counted, where the reader is too slow for them. One goroutine adds, another one takes.
type backlog struct {
	news notify.Signal // there is something to take, or nothing more comes
	room notify.Signal // there is room for another line of before

	mu     sync.Mutex // protects what follows
	before []waiting
	now    []waiting
	bytes  int // of now
	lost   []missing
	sent   map[source]uint64 // number of the last line that was handed out; absent: it is not known
	ended  bool
	passed int // bytes that were added to now since the last pause, of lines of which some were left out
}

func newBacklog() *backlog {
	return &backlog{news: notify.New(), room: notify.New(), sent: map[source]uint64{}}
}

// add adds a line. It waits for room where the line was there before.
func (b *backlog) add(ctx context.Context, l Line) error {
	for {
		added, rest := b.tryAdd(l, time.Now())
		if added {
			b.news.Notify()
			if rest {
				return retry.Sleep(ctx, pause)
			}
			return context.Cause(ctx)
		}
		if err := b.room.Wait(ctx); err != nil {
			return err
		}
	}
}

// tryAdd adds a line where there is room; rest says that enough was read and left out.
func (b *backlog) tryAdd(l Line, now time.Time) (added, rest bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := waiting{l.LogLine, now}
	if l.Past {
		if len(b.before) >= ahead {
			return false, false
		}
		b.before = append(b.before, w)
		return true, false
	}
	b.now, b.bytes = append(b.now, w), b.bytes+w.size()
	if b.bytes <= mostBytes && now.Sub(b.now[0].at) <= lag {
		return true, false
	}
	for len(b.now) > 1 && (b.bytes > mostBytes || now.Sub(b.now[0].at) > lag) {
		b.leaveOut(b.now[0])
		b.drop()
	}
	if b.passed += w.size(); b.passed < readBytes {
		return true, false
	}
	b.passed = 0
	return true, true
}

// drop takes the first of the lines of now away. The caller holds mu.
func (b *backlog) drop() {
	b.bytes -= b.now[0].size()
	b.now[0] = waiting{}
	b.now = b.now[1:]
}

// leaveOut counts a line that is not sent. The caller holds mu.
func (b *backlog) leaveOut(w waiting) {
	var m *missing
	for i := range b.lost {
		if o := &b.lost[i]; sourceOf(&o.LogLine) == sourceOf(&w.LogLine) {
			m = o
		}
	}
	if m == nil {
		b.lost = append(b.lost, missing{LogLine: wire.LogLine{Component: w.Component, Container: w.Container, Stream: w.Stream}})
		m = &b.lost[len(b.lost)-1]
	}
	switch {
	case w.LostBytes > 0: // it is a gap itself
		m.LostLines, m.LostBytes, m.unknown = m.LostLines+w.LostLines, m.LostBytes+w.LostBytes, m.unknown || w.LostLines == 0
	case w.Partial: // whether its end is given, or counted, is not known
		m.LostBytes, m.unknown = m.LostBytes+uint64(len(w.Text))+w.CutBytes, true
	default:
		m.LostLines, m.LostBytes = m.LostLines+1, m.LostBytes+uint64(len(w.Text))+w.CutBytes+1
	}
}

// end says that nothing more is added.
func (b *backlog) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.news.Notify()
}

// next returns what is to be sent next, in the order in which it was read, with gaps in the place of what was left out. Nil: nothing is there; ended
// says that nothing more comes.
func (b *backlog) next() (l *wire.LogLine, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(b.before) > 0:
		l = &b.before[0].LogLine
		b.before = b.before[1:]
		b.room.Notify()
	case len(b.lost) > 0:
		m := b.lost[0]
		b.lost = b.lost[1:]
		if n := b.between(sourceOf(&m.LogLine)); n > 0 {
			m.LostLines, m.unknown = n, false
		}
		if m.unknown {
			m.LostLines = 0
		}
		m.LostBytes = max(m.LostBytes, 1)
		l = &m.LogLine
	case len(b.now) > 0:
		w := b.now[0]
		b.drop()
		l = &w.LogLine
	}
	if l != nil && l.Number > 0 {
		b.sent[sourceOf(l)] = l.Number
	}
	return l, b.ended
}

// between returns how many lines are between the last line of a source that was taken and the next one, by their numbers; 0 where
// that is not known. The caller holds mu.
func (b *backlog) between(of source) uint64 {
	last := b.sent[of]
	for i := range b.now {
		w := &b.now[i]
		if sourceOf(&w.LogLine) != of {
			continue
		}
		if last == 0 || w.LostBytes > 0 || w.Number <= last {
			return 0
		}
		return w.Number - last - 1
	}
	return 0
}
