package logs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// A link takes what is sent at a rate.
type link struct {
	t    *testing.T
	rate int // bytes a second
	got  []arrival
	sent atomic.Int64 // how many
}

type arrival struct {
	wire.LogLine
	at time.Time
}

func (l *link) Send(item []byte) error {
	time.Sleep(time.Duration(len(item)) * time.Second / time.Duration(l.rate))
	var line wire.LogLine
	if err := protocol.Unmarshal(item, &line); err != nil {
		l.t.Error(err)
	}
	l.got = append(l.got, arrival{line, time.Now()})
	l.sent.Add(1)
	return nil
}

func (l *link) Flush() error { return nil }

// number returns that of a line, of which Text is.
func (a *arrival) number(t *testing.T) (n int) {
	t.Helper()
	if _, err := fmt.Sscanf(a.Text, "line %d", &n); err != nil {
		t.Fatalf("line %q: %v", a.Text, err)
	}
	return n
}

// counted checks that each line is there or counted, up to the last one, whose number is returned.
func (l *link) counted() (last int) {
	l.t.Helper()
	for i := range l.got {
		a := &l.got[i]
		if a.LostBytes > 0 {
			if a.LostLines == 0 || a.UnixMillis != 0 {
				l.t.Errorf("gap %+v, want a count and no time", a.LogLine)
			}
			last += int(a.LostLines)
			continue
		}
		if n := a.number(l.t); n != last+1 {
			l.t.Fatalf("line %d follows %d", n, last)
		}
		last++
	}
	return last
}

// text is that of a line of 100 bytes.
func text(n int) string { return fmt.Sprintf("%-99s", fmt.Sprintf("line %d", n)) }

// TestFollowerSeesNow follows a container that writes 1 MB/s for twenty seconds, over a link of 8 kB/s: what arrives is seconds old, after the
// lines of before, and what is left out is counted.
func TestFollowerSeesNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const past, lines = 1000, 200_000
		source := func(yield func(Line, error) bool) {
			for n := 1; n <= past; n++ {
				if !yield(Line{wire.LogLine{Text: text(n)}, true}, nil) {
					return
				}
			}
			for n := past + 1; n <= lines; {
				time.Sleep(10 * time.Millisecond)
				for range 100 {
					if !yield(Line{wire.LogLine{Text: text(n), UnixMillis: time.Now().UnixMilli()}, false}, nil) {
						return
					}
					n++
				}
			}
		}
		to := &link{t: t, rate: 8000}
		if err := send(t.Context(), source, to); err != nil {
			t.Fatal(err)
		}
		if last := to.counted(); last < lines {
			t.Errorf("%d lines are there or counted, want %d", last, lines)
		}
		shown := 0
		for i := range to.got {
			a := &to.got[i]
			if a.LostBytes > 0 || a.UnixMillis == 0 {
				continue
			}
			shown++
			if age := a.at.Sub(time.UnixMilli(a.UnixMillis)); age > lag+time.Second && a.number(t) < lines-mostBytes/100 {
				t.Fatalf("line %d is %s old when it arrives", a.number(t), age)
			}
		}
		if shown < 500 {
			t.Errorf("%d new lines arrived, want what the link carries", shown)
		}
	})
}

// TestBurst has a container write 200 kB at once and then nothing: all of it arrives, however long that takes. Once the container writes on, its
// follower sees that.
func TestBurst(t *testing.T) {
	t.Parallel()
	for name, goesOn := range map[string]bool{"rests": false, "goes on": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const lines = 1000
				source := func(yield func(Line, error) bool) {
					for n := 1; n <= lines; n++ {
						if !yield(Line{LogLine: wire.LogLine{Text: text(n)}}, nil) {
							return
						}
					}
					time.Sleep(time.Minute)
				}
				if goesOn {
					source = func(yield func(Line, error) bool) {
						for n := 1; n <= lines+10; n++ {
							if n > lines {
								time.Sleep(time.Second)
							}
							if !yield(Line{LogLine: wire.LogLine{Text: text(n)}}, nil) {
								return
							}
						}
					}
				}
				to := &link{t: t, rate: 8000}
				if err := send(t.Context(), source, to); err != nil {
					t.Fatal(err)
				}
				if last := to.counted(); !goesOn && (last != lines || len(to.got) != lines) || goesOn && (last != lines+10 || len(to.got) > 700) {
					t.Errorf("%d lines and gaps up to line %d", len(to.got), last)
				}
			})
		})
	}
}

// TestPastWaits reads a log over a slow link: no line is left out, and no more is read than is sent.
func TestPastWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := &link{t: t, rate: 8000}
		read := 0
		source := func(yield func(Line, error) bool) {
			for read = 1; read <= 5000; read++ {
				if sent := int(to.sent.Load()); read > sent+ahead+2 {
					t.Errorf("line %d is read when %d were sent", read, sent)
				}
				if !yield(Line{wire.LogLine{Text: text(read)}, true}, nil) {
					return
				}
			}
		}
		if err := send(t.Context(), source, to); err != nil {
			t.Fatal(err)
		}
		if len(to.got) != 5000 {
			t.Errorf("%d lines arrived", len(to.got))
		}
	})
}

// TestGapsOfEach leaves out lines of two containers, and gaps among them: each container has a gap with what it lost, whose lines are unknown
// where those of a part are.
func TestGapsOfEach(t *testing.T) {
	t.Parallel()
	b := newBacklog()
	now := time.Now()
	add := func(container string, l wire.LogLine) {
		l.Container = container
		if added, _ := b.tryAdd(Line{LogLine: l}, now); !added {
			t.Fatal("a new line waits")
		}
	}
	add("web", wire.LogLine{Text: "1234"})
	add("db", wire.LogLine{Text: "12", CutBytes: 7})
	add("web", wire.LogLine{LostLines: 10, LostBytes: 1000})
	add("db", wire.LogLine{Text: "123", Partial: true})
	now = now.Add(lag + time.Second)
	add("web", wire.LogLine{Text: "new"})
	b.end()
	var got []string
	for {
		l, ended := b.next()
		if l == nil {
			if !ended {
				t.Error("more may come")
			}
			break
		}
		got = append(got, fmt.Sprint(l.Container, " ", l.Text, l.LostLines, " ", l.LostBytes))
	}
	if text := strings.Join(got, "; "); text != "web 11 1005; db 0 13; web new0 0" {
		t.Error(text)
	}
}

// TestEnds ends with its reader, with the source, and with an error of either.
func TestEnds(t *testing.T) {
	t.Parallel()
	broken := errors.New("no more credit")
	forever := func(yield func(Line, error) bool) {
		for yield(Line{}, nil) {
		}
	}
	if err := send(t.Context(), forever, refuses{broken}); !errors.Is(err, broken) {
		t.Errorf("the link refuses: %v", err)
	}
	if err := send(t.Context(), iter.Seq2[Line, error](func(yield func(Line, error) bool) { yield(Line{}, broken) }), refuses{}); !errors.Is(err, broken) {
		t.Errorf("the source fails: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if err := send(ctx, func(func(Line, error) bool) { <-ctx.Done() }, refuses{}); !errors.Is(err, broken) {
		t.Errorf("its context ends: %v", err)
	}
}

// refuses takes nothing, for a reason, or everything where there is none.
type refuses struct{ err error }

func (r refuses) Send([]byte) error { return r.err }
func (r refuses) Flush() error      { return r.err }

// TestGapsAreCounted leaves lines out of which one has no end, and gaps: how many that were say the numbers of the lines beside them.
func TestGapsAreCounted(t *testing.T) {
	t.Parallel()
	line := func(n uint64) wire.LogLine {
		return wire.LogLine{Component: "c", Container: "web", Stream: "stdout", Number: n, Text: "x"}
	}
	for name, c := range map[string]struct {
		out  []wire.LogLine // left out, after line 1
		next []wire.LogLine
		want uint64
	}{
		"whole lines":               {[]wire.LogLine{line(2), line(3)}, []wire.LogLine{line(4)}, 2},
		"one without its end":       {[]wire.LogLine{line(2), {Component: "c", Container: "web", Stream: "stdout", Number: 3, Text: "x", Partial: true}, line(4)}, []wire.LogLine{line(5)}, 3},
		"a gap of unknown lines":    {[]wire.LogLine{line(2), {Component: "c", Container: "web", Stream: "stdout", LostBytes: 9}, line(70)}, []wire.LogLine{line(71)}, 69},
		"nothing comes after":       {[]wire.LogLine{line(2), {Component: "c", Container: "web", Stream: "stdout", LostBytes: 9}}, nil, 0},
		"another gap comes after":   {[]wire.LogLine{{Component: "c", Container: "web", Stream: "stdout", Partial: true}}, []wire.LogLine{{Component: "c", Container: "web", Stream: "stdout", LostBytes: 9}, line(9)}, 0},
		"lines that have no number": {[]wire.LogLine{{Component: "c", Container: "web", Stream: "stdout", Text: "x"}}, []wire.LogLine{{Component: "c", Container: "web", Stream: "stdout", Text: "x"}}, 1},
	} {
		b := newBacklog()
		b.now = append(b.now, waiting{line(1), time.Now()})
		if l, _ := b.next(); l.Number != 1 {
			t.Fatalf("%s: next is %+v", name, l)
		}
		for _, l := range c.out {
			b.leaveOut(waiting{l, time.Now()})
		}
		for _, l := range c.next {
			b.now = append(b.now, waiting{l, time.Now()})
		}
		if l, _ := b.next(); l.LostLines != c.want || l.LostBytes == 0 {
			t.Errorf("%s: %+v, want a gap of %d lines", name, l, c.want)
		}
	}
}
