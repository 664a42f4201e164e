// Package refusals bounds what the log of a broker has of refused clients: of each kind and each client account so many
// lines a minute, and then how many there were more. Counters of the broker are not bounded by it.
package refusals

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// window is for how long lines are counted, linesEach how many of one kind and account are shown in it.
	window    = time.Minute
	linesEach = 10
	// mostAccounts is how many kinds and accounts are counted each for itself in a window; further ones count together.
	mostAccounts = 1000
	// others stands for them.
	others = "others"
	// mostText is how many bytes of a topic or a filter are shown, mostReason how many of a reason are kept.
	mostText   = 200
	mostReason = 1000
)

// A key is whose lines are counted together.
type key struct{ what, whom string }

// A count is how many lines of a key there were.
type count struct {
	lines int
	last  string
}

// A Log says which refusals are shown. Its methods may be called concurrently.
type Log struct {
	log *slog.Logger

	mu     sync.Mutex // protects what follows
	begun  time.Time  // of the window; zero: nothing was refused since the last
	counts map[key]*count
}

// New returns a Log that says in log what is not shown.
func New(log *slog.Logger) *Log {
	return &Log{log: log, counts: make(map[key]*count)}
}

// Show reports whether a line of a kind is to be shown, which is about an account: an identity, or a network address. why is
// what the summary shows of the last one.
func (l *Log) Show(what, whom, why string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := key{what, whom}
	c := l.counts[k]
	if c == nil && len(l.counts) >= mostAccounts {
		k.whom = others
		c = l.counts[k]
	}
	if c == nil {
		c = &count{}
		l.counts[k] = c
	}
	c.lines++
	c.last = shortened(why, mostReason)
	return c.lines <= linesEach
}

// Shortened is a topic or a filter as the log and reason strings show it.
func Shortened(text string) string { return shortened(text, mostText) }

func shortened(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(text[:most], ""), len(text))
}

// Warn logs a line where Show reports so.
func (l *Log) Warn(what, whom, why, line string, args ...any) {
	if l.Show(what, whom, why) {
		l.log.Warn(line, args...)
	}
}

// Summarise logs what was not shown, where a window is over or end is set. It is called about once a second.
func (l *Log) Summarise(now time.Time, end bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.counts) == 0 {
		return
	}
	if l.begun.IsZero() {
		l.begun = now
	}
	if now.Sub(l.begun) < window && !end {
		return
	}
	for k, c := range l.counts {
		if hidden := c.lines - linesEach; hidden > 0 {
			l.log.Warn("more was refused than the log shows", "what", k.what, "of", k.whom, "not_shown", hidden, "within", now.Sub(l.begun).Round(time.Second), "last", c.last)
		}
	}
	l.counts, l.begun = make(map[key]*count), time.Time{}
}
