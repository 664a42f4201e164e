package journal

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

func data(body string) Entry { return Entry{Class: Data, Body: []byte(body)} }

// TestAge drops what is too old, also while nothing is appended, and counts it.
func TestAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := Options{MaxAge: time.Hour}
		j, err := Open(dir, o)
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, j, event("keep me"))
		for range 90 { // 90 minutes
			mustAppend(t, j, data("x"))
			<-time.After(time.Minute)
		}
		lost := losses(t, all(t, j))
		if lost.Records < 20 || lost.Records > 30 || j.Stats().Dropped != lost.Records {
			t.Errorf("after 90 minutes %d records are lost, stats %+v", lost.Records, j.Stats())
		}
		if got := all(t, j); string(got[0].Body) != "keep me" {
			t.Errorf("the event is %q", got[0].Body)
		}
		mustTrim(t, j, 1)
		if age := j.Now().UnixMilli() - j.Stats().OldestUnixMillis; age < (59*time.Minute).Milliseconds() || age > (70*time.Minute).Milliseconds() {
			t.Errorf("the oldest record is %v old", time.Duration(age)*time.Millisecond)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Hour) // the site is off
		if j, err = Open(dir, o); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Minute) // and nothing is appended
		got := all(t, j)
		for _, r := range got {
			if r.Class == Data {
				t.Errorf("record %d of %v is still there", r.Seq, time.UnixMilli(r.UnixMillis))
			}
		}
		if lost := losses(t, got); lost.Records != 90 {
			t.Errorf("%d records are lost, want all 90", lost.Records)
		}
		var e protocol.Event
		var l protocol.Loss
		if err := protocol.Unmarshal(got[len(got)-1].Body, &e); err != nil {
			t.Fatal(err)
		}
		if err := protocol.Unmarshal(e.Body, &l); err != nil || l.Class != "age" {
			t.Errorf("the loss is %+v, %v", l, err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func mustTrim(t *testing.T, j *Journal, through uint64) {
	t.Helper()
	if err := j.Trim(through); err != nil {
		t.Fatal(err)
	}
}

// TestSmallQueue overflows a queue of 1 MiB fifty times over without a reader: it
// accepts everything, keeps the newest, and the announcements do not fill it.
func TestSmallQueue(t *testing.T) {
	t.Parallel()
	j := open(t, t.TempDir(), Options{MaxBytes: 1 << 20})
	body := make([]byte, 1000)
	const groups, each = 1000, 50
	done := make(chan error)
	for range 10 {
		go func() {
			for range groups / 10 {
				entries := make([]Entry, each)
				for i := range entries {
					entries[i] = Entry{Class: Data, Body: body}
				}
				if _, err := j.Append(context.Background(), entries...); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 10 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	retained, announced := uint64(0), 0
	got := all(t, j)
	for _, r := range got {
		switch {
		case r.Class == Data:
			retained++
		case !r.Superseded && isLoss(r.Body):
			announced++
		}
	}
	l := losses(t, got)
	if l.Records+retained != groups*each || retained < 600 {
		t.Errorf("lost %d + kept %d of %d", l.Records, retained, groups*each)
	}
	s := j.Stats()
	if announced > 20 || s.Segments > 20 {
		t.Errorf("%d announcements, %d segments", announced, s.Segments)
	}
	if s.Bytes > s.MaxBytes {
		t.Errorf("%d bytes", s.Bytes)
	}
	oldest := int64(0)
	for _, r := range got {
		if r.UnixMillis > 0 {
			oldest = r.UnixMillis
			break
		}
	}
	if s.OldestUnixMillis != oldest {
		t.Errorf("the oldest is of %d, the stats say %d", oldest, s.OldestUnixMillis)
	}
}

// TestClock sets the machine's clock back while the journal is closed: with records
// in it, its clock goes on from the newest.
func TestClock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var wall atomic.Int64
	o := Options{Now: func() time.Time { return time.UnixMilli(wall.Load()) }}
	wall.Store(1_000_000)
	j, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, j, data("a"))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	wall.Store(5_000) // such as after a power cut, without a battery
	if j, err = Open(dir, o); err != nil {
		t.Fatal(err)
	}
	if got := j.Now().UnixMilli(); got != 1_000_000 {
		t.Errorf("the clock says %d, the newest record is of 1000000", got)
	}
	wall.Add(10_000)
	mustAppend(t, j, data("b"))
	if got := all(t, j)[1].UnixMillis; got != 1_010_000 {
		t.Errorf("10 s later the stamp is %d", got)
	}
	mustTrim(t, j, 2)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = open(t, dir, o) // nothing is left that the clock must not fall behind
	if got := j.Now().UnixMilli(); got != 15_000 {
		t.Errorf("the clock of an empty journal says %d, the machine's 15000", got)
	}
}
