package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		runChild(dir)
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, dir string, o Options) *Journal {
	t.Helper()
	j, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func event(body string) Entry { return Entry{Class: Event, Body: []byte(body)} }

func mustAppend(t *testing.T, j *Journal, entries ...Entry) uint64 {
	t.Helper()
	last, err := j.Append(t.Context(), entries...)
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// all reads the whole journal in small bites.
func all(t *testing.T, j *Journal) []Record {
	t.Helper()
	var out []Record
	after := j.Trimmed()
	for {
		got, err := j.Read(after, 7, 1<<12)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			return out
		}
		for _, r := range got {
			if r.Seq != after+1 {
				t.Fatalf("record %d follows %d", r.Seq, after)
			}
			after = r.Seq
		}
		out = append(out, got...)
	}
}

// bodies shows records shortly: superseded ones as a dash.
func bodies(records []Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		if out[i] = string(r.Body); r.Superseded {
			out[i] = "-"
		}
	}
	return out
}

// isLoss reports that body is an event that announces a loss.
func isLoss(body []byte) bool {
	var e protocol.Event
	return protocol.Unmarshal(body, &e) == nil && e.Kind == protocol.DataLost
}

func losses(t *testing.T, records []Record) (n protocol.Loss) {
	t.Helper()
	for _, r := range records {
		var e protocol.Event
		if r.Superseded || protocol.Unmarshal(r.Body, &e) != nil || e.Kind != protocol.DataLost {
			continue
		}
		var l protocol.Loss
		if err := protocol.Unmarshal(e.Body, &l); err != nil {
			t.Fatal(err)
		}
		n.Records += l.Records
		n.Bytes += l.Bytes
	}
	return n
}

func TestAppendReadTrimReopen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.UnixMilli(1_000)
	j, err := Open(dir, Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	if got := mustAppend(t, j, event("a"), Entry{Class: State, Key: "k", Body: []byte("b")}); got != 2 {
		t.Errorf("last = %d, want 2", got)
	}
	mustAppend(t, j, event("c"))
	want := []Record{
		{Entry: Entry{Class: Event, Body: []byte("a")}, Seq: 1, UnixMillis: 1000},
		{Entry: Entry{Class: State, Key: "k", Body: []byte("b")}, Seq: 2, UnixMillis: 1000},
		{Entry: Entry{Class: Event, Body: []byte("c")}, Seq: 3, UnixMillis: 1000},
	}
	if diff := cmp.Diff(want, all(t, j)); diff != "" {
		t.Error(diff)
	}
	if err := j.Trim(1); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[1:], all(t, j)); diff != "" {
		t.Error(diff)
	}
	if s := j.Stats(); s.Depth != 2 || s.OldestUnixMillis != 1000 {
		t.Errorf("stats = %+v", s)
	}
	epoch := j.Epoch()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(t.Context(), event("x")); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("append after close: %v", err)
	}

	j = open(t, dir, Options{})
	if j.Epoch() != epoch || j.Last() != 3 || j.Trimmed() != 1 {
		t.Errorf("reopened: epoch %s, last %d, trimmed %d", j.Epoch(), j.Last(), j.Trimmed())
	}
	if diff := cmp.Diff(want[1:], all(t, j)); diff != "" {
		t.Error(diff)
	}
	if got := mustAppend(t, j, event("d")); got != 4 {
		t.Errorf("last = %d, want 4", got)
	}
}

func TestReadLimits(t *testing.T) {
	t.Parallel()
	j := open(t, t.TempDir(), Options{})
	mustAppend(t, j, event("aaaa"), event("bbbb"), event("cccc"))
	for _, tt := range []struct {
		records, bytes int
		want           []string
	}{
		{10, 100, []string{"aaaa", "bbbb", "cccc"}},
		{2, 100, []string{"aaaa", "bbbb"}},
		{10, 8, []string{"aaaa", "bbbb"}},
		{10, 1, []string{"aaaa"}}, // one at least
		{0, 0, []string{"aaaa"}},
	} {
		got, err := j.Read(0, tt.records, tt.bytes)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, bodies(got)); diff != "" {
			t.Errorf("Read(0, %d, %d): %s", tt.records, tt.bytes, diff)
		}
	}
	if got, err := j.Read(3, 10, 100); err != nil || len(got) != 0 {
		t.Errorf("read at the end = %v, %v", got, err)
	}
}

func TestInvalidEntries(t *testing.T) {
	t.Parallel()
	j := open(t, t.TempDir(), Options{MaxBytes: 1 << 20})
	for name, e := range map[string]Entry{
		"class": {Class: 9, Body: []byte("x")},
		"key":   {Class: State, Key: string(make([]byte, ondisk.MaxKey+1))},
		"body":  {Class: Event, Body: make([]byte, MaxBody+1)},
		"bound": {Class: Event, Body: make([]byte, 2<<20)},
	} {
		if _, err := j.Append(t.Context(), e); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if j.Last() != 0 {
		t.Errorf("last = %d", j.Last())
	}
}

func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open(t, dir, Options{})
	if _, err := Open(dir, Options{}); err == nil {
		t.Error("the second open succeeded")
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	j := open(t, t.TempDir(), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Wait(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("wait on an empty journal: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- j.Wait(context.Background(), 1) }()
	mustAppend(t, j, event("a"))
	mustAppend(t, j, event("b"))
	if err := <-done; err != nil {
		t.Error(err)
	}
	go func() { done <- j.Wait(context.Background(), 2) }()
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("wait on a closed journal: %v", err)
	}
}

// TestGroupCommit holds one fsync until many Appends wait, and counts.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	d := simdisk.New(1)
	j, err := Open("sim", Options{Disk: d})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	const n = 100
	first := make(chan struct{})
	release := make(chan struct{})
	var once sync.Once
	d.Fail(func(op, _ string) error {
		if op == "sync" {
			once.Do(func() { close(first); <-release })
		}
		return nil
	})
	before := j.Stats().Syncs
	var wg sync.WaitGroup
	wg.Go(func() { mustAppend(t, j, event("first")) })
	<-first
	for i := range n {
		wg.Go(func() { mustAppend(t, j, event(fmt.Sprint(i))) })
	}
	for len(j.requests) < n { // the writer is held, so that they pile up
		waitABit(t)
	}
	close(release)
	wg.Wait()
	if got := j.Stats().Syncs - before; got != 2 {
		t.Errorf("%d appends made %d syncs, want 2", n+1, got)
	}
	if got := len(all(t, j)); got != n+1 {
		t.Errorf("%d records", got)
	}
}

// waitABit yields until other goroutines had a chance to run.
func waitABit(t *testing.T) {
	t.Helper()
	select {
	case <-time.After(time.Millisecond):
	case <-t.Context().Done():
		t.Fatal("test ended")
	}
}

func TestSegmentsAreFreed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir, Options{SegmentBytes: 4 << 10})
	for i := range 200 {
		mustAppend(t, j, event(fmt.Sprintf("%0200d", i)))
	}
	if s := j.Stats(); s.Segments < 8 {
		t.Fatalf("%d segments", s.Segments)
	}
	if err := j.Trim(150); err != nil {
		t.Fatal(err)
	}
	if got := all(t, j); len(got) != 50 || got[0].Seq != 151 {
		t.Errorf("%d records from %d", len(got), got[0].Seq)
	}
	if err := j.Trim(1 << 60); err != nil {
		t.Fatal(err)
	}
	if s := j.Stats(); s.Segments != 1 || s.Depth != 0 || j.Trimmed() != 200 {
		t.Errorf("after trim: %+v", s)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"+ondisk.SegmentExt))
	if err != nil || len(files) != 1 {
		t.Errorf("files = %v, %v", files, err)
	}
	if got := mustAppend(t, j, event("x")); got != 201 {
		t.Errorf("next = %d", got)
	}
}

func TestCompaction(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const rounds, keys = 200, 10
	pad := bytes.Repeat([]byte("x"), 300)
	j := open(t, dir, Options{SegmentBytes: 64 << 10})
	mustAppend(t, j, event("begin"))
	for r := range rounds {
		for k := range keys {
			mustAppend(t, j, Entry{Class: State, Key: fmt.Sprint(k), Body: append(fmt.Appendf(nil, "%d/%d ", k, r), pad...)})
		}
	}
	mustAppend(t, j, event("end"))
	check := func(j *Journal) {
		t.Helper()
		got := all(t, j)
		if len(got) != rounds*keys+2 {
			t.Fatalf("%d records, want %d", len(got), rounds*keys+2)
		}
		live := 0
		for _, r := range got {
			if !r.Superseded {
				live++
			}
		}
		if live != keys+2 {
			t.Errorf("%d live records, want %d", live, keys+2)
		}
		if string(got[0].Body) != "begin" || string(got[len(got)-1].Body) != "end" {
			t.Error("events are missing")
		}
	}
	check(j)
	s := j.Stats()
	if want := int64(rounds * keys * 300 / 3); s.Bytes > want || s.Compactions == 0 {
		t.Errorf("%d bytes on disk after %d compactions, want less than %d", s.Bytes, s.Compactions, want)
	}
	var e protocol.Event
	if err := protocol.Unmarshal(all(t, j)[1].Body, &e); err != nil || e.Kind != protocol.Superseded {
		t.Errorf("superseded record reads as %+v, %v", e, err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	// The keys of sealed segments are not read at open; what was rewritten stays so.
	j = open(t, dir, Options{SegmentBytes: 64 << 10})
	if got := j.Stats().Bytes; got != s.Bytes {
		t.Errorf("%d bytes after reopening, want %d", got, s.Bytes)
	}
	if got := all(t, j); len(got) != rounds*keys+2 {
		t.Errorf("%d records after reopening", len(got))
	}
}

// TestBound checks the policy of each class.
func TestBound(t *testing.T) {
	t.Parallel()
	pad := make([]byte, 1000)
	fill := func(t *testing.T, j *Journal, e Entry) (n int) {
		for {
			_, err := j.Append(t.Context(), e)
			if protocol.KindOf(err) == protocol.Unavailable && err != nil {
				return n
			}
			if err != nil {
				t.Fatal(err)
			}
			if n++; n >= 2000 {
				return n
			}
		}
	}
	o := Options{MaxBytes: 256 << 10, SegmentBytes: 16 << 10}

	t.Run("events are refused, and taken again when there is room", func(t *testing.T) {
		t.Parallel()
		j := open(t, t.TempDir(), o)
		n := fill(t, j, Entry{Class: Event, Body: pad})
		if n < 240 || n > 256 {
			t.Errorf("%d events of 1 kB in 256 KiB", n)
		}
		if s := j.Stats(); s.Bytes > o.MaxBytes || s.Refused != 1 || s.Dropped != 0 {
			t.Errorf("stats = %+v", s)
		}
		if _, err := j.AppendState(t.Context(), "snapshot", pad); err != nil {
			t.Errorf("the reserve is not there: %v", err)
		}
		if err := j.Trim(100); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, j, Entry{Class: Event, Body: pad})
	})
	t.Run("state of few keys never fills it", func(t *testing.T) {
		t.Parallel()
		j := open(t, t.TempDir(), o)
		if n := fill(t, j, Entry{Class: State, Key: "k", Body: pad}); n < 2000 {
			t.Errorf("refused after %d", n)
		}
	})
	t.Run("data gives way, oldest first, and is counted", func(t *testing.T) {
		t.Parallel()
		j := open(t, t.TempDir(), o)
		mustAppend(t, j, event("keep me"))
		if n := fill(t, j, Entry{Class: Data, Body: pad}); n < 2000 {
			t.Errorf("refused after %d", n)
		}
		got := all(t, j)
		if string(got[0].Body) != "keep me" {
			t.Errorf("first = %q", got[0].Body)
		}
		retained, gap := uint64(0), false
		for _, r := range got[1:] {
			if r.Class == Data {
				retained++
				gap = true
			} else if gap && r.Superseded {
				t.Fatalf("record %d was dropped after a newer one", r.Seq)
			}
		}
		if l := losses(t, got); l.Records+retained != 2000 || l.Records != j.Stats().Dropped {
			t.Errorf("lost %d + kept %d of 2000, stats %+v", l.Records, retained, j.Stats())
		}
		if s := j.Stats(); s.Bytes > o.MaxBytes+o.SegmentBytes {
			t.Errorf("%d bytes", s.Bytes)
		}
	})
	t.Run("events push data out", func(t *testing.T) {
		t.Parallel()
		j := open(t, t.TempDir(), o)
		fill(t, j, Entry{Class: Data, Body: pad})
		if n := fill(t, j, Entry{Class: Event, Body: pad}); n < 200 {
			t.Errorf("only %d events were accepted", n)
		}
		if _, err := j.Append(t.Context(), Entry{Class: Data, Body: pad}); protocol.KindOf(err) != protocol.Unavailable {
			t.Errorf("data with no older data to drop: %v", err)
		}
	})
}

func TestBoundAfterReopen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := Options{MaxBytes: 256 << 10, SegmentBytes: 16 << 10}
	j, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		mustAppend(t, j, Entry{Class: Data, Body: make([]byte, 1000)})
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = open(t, dir, o)
	for range 300 {
		mustAppend(t, j, Entry{Class: Data, Body: make([]byte, 1000)})
	}
	retained := uint64(0)
	got := all(t, j)
	for _, r := range got {
		if r.Class == Data {
			retained++
		}
	}
	if l := losses(t, got); l.Records+retained != 500 {
		t.Errorf("lost %d + kept %d of 500", l.Records, retained)
	}
}
