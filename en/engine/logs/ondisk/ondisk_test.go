package ondisk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/en/engine/logs/ondisk/part"
	"github.com/colonyfleet/colony/internal/statefile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var web = engine.ID{Deployment: "shop", Component: "main", Name: "web"}

const webKey = "shop-web-1"

func open(t *testing.T, dir string, change func(*Options)) *Store {
	t.Helper()
	limits := DefaultLimits()
	limits.Stream = 64 << 10
	o := Options{
		Dir: dir, Limits: limits, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Damaged: func(d *statefile.Damage) { t.Errorf("damage: %v", d) },
	}
	change(&o)
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func same(*Options) {}

func unbounded(o *Options) { o.Stream, o.Node = 1<<40, 1<<50 }

// A shim appends what a container writes.
type shim struct {
	t        *testing.T
	out, err *os.File
}

func begin(t *testing.T, s *Store) *shim {
	t.Helper()
	out, errs, err := s.Begin(webKey, web)
	if err != nil {
		t.Fatal(err)
	}
	sh := &shim{t: t}
	for path, f := range map[string]**os.File{out: &sh.out, errs: &sh.err} {
		if *f, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*f).Close() })
	}
	return sh
}

func (sh *shim) write(f *os.File, text string) {
	sh.t.Helper()
	if _, err := f.WriteString(text); err != nil {
		sh.t.Fatal(err)
	}
}

// read returns what a request gives, as "stream run line text" and "stream gap bytes lines".
func read(t *testing.T, s *Store, change func(*logs.Request)) []string {
	t.Helper()
	r := logs.Request{Deployment: "shop"}
	change(&r)
	var out []string
	for e, err := range s.Read(t.Context(), r) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, show(e))
	}
	return out
}

func show(e logs.Entry) string {
	if g := e.Gap; g != nil {
		return fmt.Sprintf("%s gap %d %d %v", e.Stream, g.Bytes, g.Lines, g.LinesUnknown)
	}
	s := fmt.Sprintf("%s %d %d %s", e.Stream, e.Run, e.Line, e.Text)
	if e.Partial {
		s += " (partial)"
	}
	if e.Cut > 0 {
		s += fmt.Sprintf(" (cut %d)", e.Cut)
	}
	return s
}

func all(*logs.Request) {}

// TestTailOfEach has a container that writes much, and one that has written little before: each gives its last lines.
func TestTailOfEach(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), same)
	quiet := web
	quiet.Name = "quiet"
	for _, c := range []struct {
		key   string
		id    engine.ID
		lines string
	}{{"shop-quiet-1", quiet, "q1\nq2\nq3\n"}, {webKey, web, "w1\nw2\nw3\nw4\nw5\n"}} {
		out, _, err := s.Begin(c.key, c.id)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(out, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(c.lines); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got := read(t, s, func(r *logs.Request) { r.Tail = 2 })
	slices.Sort(got)
	want(t, got, "stdout 0 2 q2", "stdout 0 3 q3", "stdout 0 4 w4", "stdout 0 5 w5")
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("entries (-want +got):\n%s", d)
	}
}

// await waits until something holds.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// The lines that are there and those that are counted as missing are all that were written, while the store
// drops the oldest, and after a kill between any two of its steps.
func TestNothingIsLostUncounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, same)
	sh := begin(t, s)
	n := 0
	for round := range 40 {
		var b strings.Builder
		for range 2000 {
			n++
			fmt.Fprintf(&b, "%d %s\n", n, strings.Repeat("x", n%60))
		}
		sh.write(sh.out, b.String())
		l := s.all()[0]
		l.work.Lock()
		l.look()
		if round%3 > 0 {
			if err := l.drop(stdout, 10_000); err != nil {
				t.Fatal(err)
			}
		}
		l.work.Unlock()
		if round%5 == 4 { // an agent that is killed closes nothing
			left := s
			t.Cleanup(func() { _ = left.Close() })
			s.cancel()
			<-s.stopped
			s = open(t, dir, same)
		}
		next := int64(1)
		for e, err := range s.Read(t.Context(), logs.Request{Deployment: "shop"}) {
			switch {
			case err != nil:
				t.Fatal(err)
			case e.Line != next:
				t.Fatalf("%s: want line %d", show(e), next)
			case e.Gap != nil:
				next += e.Gap.Lines
			case !strings.HasPrefix(e.Text, strconv.FormatInt(e.Line, 10)+" ") || e.Partial || e.Cut > 0:
				t.Fatalf("%s: it is another line", show(e))
			default:
				next++
			}
		}
		if next != int64(n)+1 {
			t.Fatalf("lines and gaps are %d, want the %d that were written", next-1, n)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "containers", webKey, "output", "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the file is within its limit on disk", func() bool { return onDisk(sh.out.Name()) <= 64<<10+2*part.Block })
	if info.Size() < 1<<20 {
		t.Errorf("the file has %d bytes: it was not dropped from at all", info.Size())
	}
}

// A reader that goes on while lines are dropped gets a gap with their number in their place.
func TestGapWhileReading(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), unbounded)
	sh := begin(t, s)
	for n := range 100_000 {
		sh.write(sh.out, fmt.Sprintf("line %d\n", n+1))
	}
	next, gaps := int64(1), 0
	for e, err := range s.Read(t.Context(), logs.Request{Deployment: "shop"}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Line == 10 {
			l := s.all()[0]
			l.work.Lock()
			if err := l.drop(stdout, 10_000); err != nil {
				t.Fatal(err)
			}
			l.work.Unlock()
		}
		if e.Line != next && !e.Partial {
			t.Fatalf("%s: want line %d", show(e), next)
		}
		next++
		if e.Gap != nil {
			next += e.Gap.Lines - 1
			gaps++
		} else if !e.Partial && e.Text != fmt.Sprint("line ", e.Line) {
			t.Fatalf("%s: it is another line", show(e))
		}
	}
	if gaps != 1 || next != 100_001 {
		t.Errorf("%d gaps and %d lines, want one gap and 100,000", gaps, next-1)
	}
}

// A reader that follows a container that writes faster than it is read gets each line, or its number in a gap, and its
// memory does not grow. It waits for the end of a line, and for the container's next version.
func TestFollowAtFullSpeed(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), same)
	sh := begin(t, s)
	const lines = 300_000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sh.write(sh.out, "1 beg")
	next, stop := iter.Pull2(s.Read(ctx, logs.Request{Deployment: "shop", Follow: true}))
	defer stop()
	wrote := make(chan error, 1)
	go func() {
		_, err := sh.out.WriteString("in\n")
		for n := 2; n <= lines && err == nil; n++ {
			_, err = fmt.Fprintf(sh.out, "%d %s\n", n, strings.Repeat("x", n%100))
		}
		wrote <- err
	}()
	gaps := int64(0)
	for at := int64(1); at <= lines; at++ {
		e, err, ok := next()
		if !ok || err != nil || e.Line != at {
			t.Fatalf("followed %+v %v, want line %d", e, err, at)
		}
		whole := fmt.Sprintf("%d %s", at, strings.Repeat("x", int(at)%100))
		if at == 1 {
			whole = "1 begin"
		}
		if e.Gap != nil {
			gaps += e.Gap.Lines
			at += e.Gap.Lines - 1
		} else if e.Text != whole && !(e.Partial && strings.HasPrefix(whole, e.Text)) { // its end was dropped while it was read
			t.Fatalf("%s: want %q", show(e), whole)
		}
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	sh.write(sh.out, "no end")
	if err := s.Keep(webKey); err != nil {
		t.Fatal(err)
	}
	sh = begin(t, s)
	sh.write(sh.err, "second\n")
	for _, want := range []string{"stdout 0 300001 no end (partial)", "stderr 0 1 second"} {
		if e, err, ok := next(); !ok || err != nil || show(e) != want {
			t.Fatalf("followed %+v %v, want %q", e, err, want)
		}
	}
}

// What was dropped is known by its size although the notes are lost.
func TestLostNotes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, same)
	sh := begin(t, s)
	sh.write(sh.out, strings.Repeat(strings.Repeat("x", 99)+"\n", 500))
	l := s.all()[0]
	l.work.Lock()
	l.look()
	if err := l.drop(stdout, 250); err != nil {
		t.Fatal(err)
	}
	l.work.Unlock()
	line := "stdout 0 500 " + strings.Repeat("x", 99)
	want(t, read(t, s, all), "stdout gap 49800 498 false", strings.Replace(line, "500", "499", 1), line)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "containers", webKey, outputDir, marksFile)); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, same)
	s.Name(webKey, web)
	got := read(t, s, all)
	if len(got) == 0 || !strings.HasPrefix(got[0], "stdout gap 49") || !strings.HasSuffix(got[0], " 0 true") {
		t.Errorf("after the notes were lost: %q, want a gap of bytes first, with lines unknown", got)
	}
}

// Damaged notes are reported, and what they said is not taken for something else: the lines are there, and what was dropped
// before them is known.
func TestDamagedNotes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, same)
	sh := begin(t, s)
	for n := range 1000 {
		sh.write(sh.out, fmt.Sprintf("%d %s\n", n+1, strings.Repeat("x", 50)))
	}
	l := s.all()[0]
	l.work.Lock()
	l.look()
	err := l.drop(stdout, 10_000)
	l.work.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	whole := read(t, s, all)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "containers", webKey, outputDir, marksFile)
	notes, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(notes); at += 7 {
		damaged := bytes.Clone(notes)
		damaged[at] ^= 1 << (at % 8)
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		reported := 0
		s := open(t, dir, func(o *Options) { o.Damaged = func(*statefile.Damage) { reported++ } })
		s.Name(webKey, web)
		got := read(t, s, all)
		if reported == 0 && !slices.Equal(got, whole) {
			t.Errorf("byte %d: not reported, and read is %q", at, got[0])
		}
		for _, line := range got {
			if n, text, _ := strings.Cut(strings.TrimPrefix(line, "stdout 0 "), " "); !strings.Contains(line, "gap") && strings.Contains(got[0], "false") && !strings.HasPrefix(text, n+" ") {
				t.Fatalf("byte %d: %q has another number than it says, after %q", at, line, got[0])
			}
		}
		if last := got[len(got)-1]; !strings.HasSuffix(last, whole[len(whole)-1][len("stdout 0 1000"):]) {
			t.Errorf("byte %d: the last line is %q", at, last)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The reason of a Go program with thousands of goroutines stands before more of their traces than are read at first, wherever the
// parts that are read have their borders. It is not sought before a line that is none of a trace, nor in another run.
func TestReasonOfManyGoroutines(t *testing.T) {
	t.Parallel()
	const panicked = "panic: no licence:\n\tnone was given\n\n" +
		"goroutine 1521 [running]:\nmain.main.func1()\n\t/tmp/gp/main.go:14 +0x25\ncreated by main.main in goroutine 1\n\t/tmp/gp/main.go:14 +0xa7\n"
	const each = "\ngoroutine 1504 [chan send]:\nmain.worker(...)\n\t/tmp/gp/main.go:5\ncreated by main.main in goroutine 1\n\t/tmp/gp/main.go:10 +0x37\n"
	const last = "/tmp/gp/main.go:10 +0x37"
	goroutines := func(bytes int) string { return strings.Repeat(each, bytes/len(each)) }
	cases := map[string]struct{ before, text, want string }{
		"the whole run":       {"", panicked + goroutines(3*part.Tail), "panic: no licence:"},
		"after other lines":   {"", "listening\n" + panicked + goroutines(part.Tail), "panic: no licence:"},
		"a fatal error":       {"", "fatal error: all goroutines are asleep - deadlock!\n" + goroutines(2*part.Tail), "fatal error: all goroutines are asleep - deadlock!"},
		"too long":            {"", panicked + goroutines(part.MostTraces+part.Tail), last},
		"in another run":      {panicked, goroutines(2 * part.Tail), last},
		"before other lines":  {"", "panic: recovered\n" + strings.Repeat("going on\n", 50) + goroutines(2*part.Tail), last},
		"nothing but a trace": {"", goroutines(2 * part.Tail), last},
	}
	for shift := range 10 { // the border of two parts moves over the first lines
		report := panicked + goroutines(2*part.Tail-2*len(panicked))
		report = strings.TrimSuffix(report, "\n") + strings.Repeat(" ", 2*part.Tail+shift+5-len(report)) + "\n"
		cases[fmt.Sprint("at a border, ", shift)] = struct{ before, text, want string }{"", strings.Repeat("going on\n", part.Tail/8) + report, "panic: no licence:"}
	}
	for name, c := range cases {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(c.before+c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := part.Reason(path, int64(len(c.before)), int64(len(c.before+c.text))); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Containers that agents before 0.3.0 started go on with one file.
func TestOneFileOfOlderAgents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	container := filepath.Join(dir, "containers", webKey)
	if err := os.MkdirAll(container, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"log.1": "oldest\n", "log": "old\n"} {
		if err := os.WriteFile(filepath.Join(container, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir, same)
	s.Name(webKey, web) // as the first look at the containers does
	want(t, read(t, s, all), "mixed 0 1 oldest", "mixed 0 1 old")
	if got := s.Reason(webKey, 100); got != "old" {
		t.Errorf("last line %q, want that of the one file", got)
	}
	f, err := os.OpenFile(filepath.Join(container, "log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for n := range 20_000 {
		fmt.Fprintln(f, "line", n)
	}
	await(t, "the one file is bounded", func() bool { return onDisk(f.Name()) <= 64<<10+2*part.Block })
	got := read(t, s, func(r *logs.Request) { r.Streams, r.Tail = []logs.Stream{logs.Stderr}, 1 })
	want(t, got, "mixed 0 20001 line 19999")
	sh := begin(t, s) // it is restarted
	sh.write(sh.err, "apart\n")
	want(t, read(t, s, func(r *logs.Request) { r.Tail = 1 }), "stderr 1 1 apart")
	if err := s.Keep(webKey); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(container); err != nil || len(left) > 0 {
		t.Errorf("left in the directory of the container: %v %v", left, err)
	}
	want(t, read(t, s, func(r *logs.Request) { r.Previous = true }), "stderr 1 1 apart")
}

// A line belongs to the run that wrote it, though it has no end, and the reason of an exit is of the last run.
func TestRuns(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), same)
	sh := begin(t, s)
	sh.write(sh.err, "panic: first")
	if got := s.Reason(webKey, 9); got != "panic: fi" {
		t.Errorf("last line %q", got)
	}
	begin(t, s)
	begin(t, s) // one that writes nothing is not counted
	if got := s.Reason(webKey, 100); got != "" {
		t.Errorf("last line %q of a run that wrote nothing", got)
	}
	want(t, read(t, s, func(r *logs.Request) { r.Previous = true }), "stderr 0 1 panic: first (partial)")
	sh.write(sh.out, "second\n")
	if got := s.Reason(webKey, 100); got != "second" {
		t.Errorf("last line %q", got)
	}
	sh.write(sh.err, "panic: second\n\n")
	if got := s.Reason(webKey, 100); got != "panic: second" {
		t.Errorf("last line %q, want that of stderr", got)
	}
	want(t, read(t, s, func(r *logs.Request) { r.Streams = []logs.Stream{logs.Stderr} }),
		"stderr 0 1 panic: first (partial)", "stderr 1 1 panic: second", "stderr 1 2 ")
	if err := s.Keep(webKey); err != nil {
		t.Fatal(err)
	}
	sh = begin(t, s)
	sh.write(sh.out, "third\n")
	want(t, read(t, s, func(r *logs.Request) { r.Previous, r.Grep = true, "s" }), "stdout 1 1 second", "stderr 1 1 panic: second")
	want(t, read(t, s, all), "stdout 0 1 third")
}

// TestRunsAreApart restarts a container at once, again and again: what a run wrote to either stream, also without an end of line, is given before
// what the next one wrote, to a later reader and to one that follows.
func TestRunsAreApart(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), same)
	const runs = 20
	var expected []string
	for n := range runs {
		sh := begin(t, s)
		sh.write(sh.err, fmt.Sprintf("error %d", n))
		sh.write(sh.out, fmt.Sprintf("line %d\n", n))
		coarse := time.Now().Add(-time.Second) // as where the clock of files is late
		if err := os.Chtimes(sh.out.Name(), coarse, coarse); err != nil {
			t.Fatal(err)
		}
		expected = append(expected, fmt.Sprintf("stdout %d %d line %d", n, n+1, n), fmt.Sprintf("stderr %d 1 error %d (partial)", n, n))
	}
	// Within a run the order of the streams is not known. That the last one has no end is not known to a reader
	// that follows.
	byRun := func(lines []string) []string {
		for n := 0; n+1 < len(lines); n += 2 {
			slices.Sort(lines[n : n+2])
			slices.Reverse(lines[n : n+2])
		}
		return lines
	}
	want(t, byRun(read(t, s, all)), expected...)
	var followed []string
	for e, err := range s.Read(t.Context(), logs.Request{Deployment: "shop", Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if followed = append(followed, show(e)); len(followed) == 2*runs-1 {
			break
		}
	}
	want(t, byRun(followed), expected[:2*runs-1]...)
}

// Lines of any length, and what is no text.
func TestHostileLines(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), unbounded)
	sh := begin(t, s)
	const head = "\x1b[31mred\x1b[0m\r\n\x1b]0;title\x07\xff\x00\tü\u202e\n"
	sh.write(sh.out, head)
	const size = 100 << 20
	if err := sh.out.Truncate(size); err != nil { // zeros
		t.Fatal(err)
	}
	sh.write(sh.out, "\nend\nno end")
	got := read(t, s, all)
	long := strings.Repeat(`\x00`, logs.MaxText/4)
	want(t, got, "stdout 0 1 red", `stdout 0 2 \x1b]0;title\x07\xff\x00`+"\t"+`ü\xe2\x80\xae`,
		fmt.Sprintf("stdout 0 3 %s (cut %d)", long, size-len(head)-logs.MaxText/4), "stdout 0 4 end", "stdout 0 5 no end (partial)")
	l := s.all()[0]
	l.work.Lock()
	err := l.drop(stdout, 1<<20)
	l.work.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	got = read(t, s, all)
	want(t, got, fmt.Sprintf("stdout gap %d 2 false", size+11-1<<20),
		fmt.Sprintf("stdout 0 3 %s (partial) (cut %d)", long, 1<<20-11-logs.MaxText/4), "stdout 0 4 end", "stdout 0 5 no end (partial)")
}

// Times are bounds, and what is asked for by time is never missing.
func TestTimes(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), same)
	sh := begin(t, s)
	before := time.Now()
	sh.write(sh.out, "one\n")
	l := s.all()[0]
	await(t, "the first line has a mark", func() bool {
		l.mu.RLock()
		defer l.mu.RUnlock()
		return l.marks[len(l.marks)-1].ends[stdout] == 4
	})
	since := time.Now()
	sh.write(sh.out, "two\n")
	after := time.Now()
	var got []logs.Entry
	for e, err := range s.Read(t.Context(), logs.Request{Deployment: "shop"}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	const coarse = 20 * time.Millisecond // of the clock of files
	one, two := got[0], got[1]
	if one.NotBefore.After(before) || one.Time.Before(before.Add(-coarse)) || one.Time.After(since) || two.NotBefore.Before(one.Time) || two.Time.Before(since.Add(-coarse)) || two.Time.After(after) {
		t.Errorf("times %v %v and %v %v, want them around %v and %v", one.NotBefore, one.Time, two.NotBefore, two.Time, before, since)
	}
	want(t, read(t, s, func(r *logs.Request) { r.Since = since.Add(-coarse) })[len(got)-2:], "stdout 0 2 two")
}

// Marks are bounded, and those that are left are right.
func TestMarksAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, unbounded)
	sh := begin(t, s)
	l := s.all()[0]
	l.work.Lock()
	for n := range 3 * maxMarks {
		sh.write(sh.out, "x\n")
		l.look()
		l.mark(time.Unix(int64(n), 0), n%1000 == 999)
	}
	l.work.Unlock()
	if len(l.marks) >= maxMarks {
		t.Errorf("%d marks, want less than %d", len(l.marks), maxMarks)
	}
	check := func(s *Store) {
		t.Helper()
		runs := map[uint32]int{}
		for e, err := range s.Read(t.Context(), logs.Request{Deployment: "shop"}) {
			if err != nil {
				t.Fatal(err)
			}
			at := time.Unix(e.Line-1, 0)
			if e.Time.Before(at) || e.Line > 1 && e.NotBefore.After(at) && e.NotBefore != e.Time {
				t.Fatalf("%s: times %v and %v, want them around %v", show(e), e.NotBefore, e.Time, at)
			}
			runs[e.Run]++
		}
		if runs[6] != 3*maxMarks-6000 || runs[5] != 1000 {
			t.Errorf("lines of runs: %v, want 1000 in the last but one", runs)
		}
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(open(t, dir, unbounded))
}

// The logs of removed containers are bounded by their number, their bytes and their age.
func TestRemovedLogsAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	retained := func(want int, change func(*Options)) *Store {
		t.Helper()
		s := open(t, dir, change)
		if err := s.trim(); err != nil {
			t.Fatal(err)
		}
		list, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, l := range list {
			if l.Removed {
				n++
			}
		}
		if n != want {
			t.Errorf("%d logs of removed containers, want %d", n, want)
		}
		return s
	}
	s := retained(0, func(o *Options) { o.Removed = 3 })
	for n := range 5 {
		sh := begin(t, s)
		if n != 3 { // an empty one is not retained
			sh.write(sh.out, strings.Repeat(fmt.Sprintf("%d\n", n), 10_000))
		}
		if err := s.Keep(webKey); err != nil {
			t.Fatal(err)
		}
	}
	retained(3, same)
	retained(2, func(o *Options) { o.Node = 60_000 })
	retained(0, func(o *Options) { o.Age = time.Nanosecond })
}

// TestIrregularFile puts a FIFO in the place of the file of a stream: the log is opened, says so, and goes on in a new file.
func TestIrregularFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, same)
	_, errs, err := s.Begin(webKey, web)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(errs), syscall.Mkfifo(errs, 0o600)); err != nil {
		t.Fatal(err)
	}
	var damaged []*statefile.Damage
	s = open(t, dir, func(o *Options) { o.Damaged = func(d *statefile.Damage) { damaged = append(damaged, d) } })
	_, errs, err = s.Begin(webKey, web)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(errs); err != nil || !st.Mode().IsRegular() || len(damaged) != 1 || damaged[0].Path != errs {
		t.Errorf("there is %v, %v; damaged %v", st, err, damaged)
	}
}
