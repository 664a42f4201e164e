package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

// lossOf sums the losses of one class that the records announce.
func lossOf(t *testing.T, records []Record, class string) (lost uint64) {
	t.Helper()
	for _, r := range records {
		var e protocol.Event
		var l protocol.Loss
		if r.Superseded || protocol.Unmarshal(r.Body, &e) != nil || e.Kind != protocol.DataLost {
			continue
		}
		check(t, protocol.Unmarshal(e.Body, &l))
		if l.Class == class {
			lost += l.Records
		}
	}
	return lost
}

// TestFullJournalPassesDamage damages old segments of a journal at its bound while no
// uplink reads it: it accepts new records, and each lost one is counted once.
func TestFullJournalPassesDamage(t *testing.T) {
	t.Parallel()
	for name, offset := range map[string]int64{
		"the first record": ondisk.HeadSize + 3,
		"a later record":   700,
	} {
		for _, reopened := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reopened %t", name, reopened), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				o := Options{MaxBytes: 16 << 10, SegmentBytes: 2 << 10}
				j, err := Open(dir, o)
				check(t, err)
				payload := string(make([]byte, 200))
				appended := uint64(0)
				for range 60 { // less than the bound
					mustAppend(t, j, data(payload))
					appended++
				}
				segments, err := filepath.Glob(filepath.Join(dir, "*"+ondisk.SegmentExt))
				check(t, err)
				for _, s := range segments[:len(segments)-2] {
					flip(t, s, offset)
				}
				if reopened {
					check(t, j.Close())
					j, err = Open(dir, o)
					check(t, err)
				}
				defer j.Close() //nolint:errcheck // of the test
				for range 200 {
					mustAppend(t, j, data(payload))
					appended++
				}
				records := all(t, j)
				held := uint64(0)
				for _, r := range records {
					if r.Class == Data {
						held++
					}
				}
				corrupt, dropped := lossOf(t, records, lossCorrupt), lossOf(t, records, lossBytes)
				if want := uint64(len(segments) - 2); corrupt != want {
					t.Errorf("%d records are announced as damaged, want %d", corrupt, want)
				}
				if held+corrupt+dropped != appended {
					t.Errorf("%d held, %d damaged, %d dropped, of %d that were appended", held, corrupt, dropped, appended)
				}
				if st := j.Stats(); st.Lost != corrupt {
					t.Errorf("Stats().Lost = %d, want %d", st.Lost, corrupt)
				}
			})
		}
	}
}

// TestAgePassesDamage damages a segment whose records are too old: those of later
// segments are dropped all the same.
func TestAgePassesDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now()
	o := Options{SegmentBytes: 2 << 10, MaxAge: time.Hour, Now: func() time.Time { return now }}
	j, err := Open(dir, o)
	check(t, err)
	defer j.Close() //nolint:errcheck // of the test
	const n = 30
	for range n {
		mustAppend(t, j, data(string(make([]byte, 200))))
	}
	flip(t, filepath.Join(dir, ondisk.SegmentName(1)), 700)
	_, err = j.do(t.Context(), &request{done: make(chan struct{}), control: func(w *writer) error {
		now = now.Add(3 * time.Hour)
		return w.expire()
	}})
	check(t, err)
	records := all(t, j)
	for _, r := range records {
		if r.Class == Data {
			t.Errorf("record %d is older than the bound and still there", r.Seq)
		}
	}
	if corrupt, aged := lossOf(t, records, lossCorrupt), lossOf(t, records, lossAge); corrupt != 1 || aged != n-1 {
		t.Errorf("%d records are announced as damaged and %d as too old, want 1 and %d", corrupt, aged, n-1)
	}
}

// TestSalvageCountsOnce ends a salvage between the announcement of the loss and the
// replacement of the segment, several times: the loss is announced once.
func TestSalvageCountsOnce(t *testing.T) {
	t.Parallel()
	for _, power := range []bool{false, true} {
		d := simdisk.New(8)
		o := Options{SegmentBytes: 2 << 10, Disk: d}
		j, err := Open("sim", o)
		check(t, err)
		for i := range 100 {
			mustAppend(t, j, event(fmt.Sprintf("%0100d", i+1)))
		}
		check(t, flipOn(d, ondisk.SegmentName(1), 700))
		for range 3 {
			end := simFail(d, func(op, _ string) bool { return op == "rename" })
			for range 2 { // also without a restart
				if _, err := j.Salvage(); protocol.KindOf(err) != protocol.Unavailable {
					t.Fatalf("salvage without the replacement of the segment: %v", err)
				}
			}
			end()
			mustAppend(t, j, event("between")) // so that the announcement is not the last record
			check(t, j.Close())
			d.Restart(power)
			j, err = Open("sim", o)
			check(t, err)
		}
		if lost, err := j.Salvage(); lost != 1 || err != nil {
			t.Errorf("power cut %t: the last salvage = %d, %v, want 1", power, lost, err)
		}
		if lost := lossOf(t, all(t, j), lossCorrupt); lost != 1 {
			t.Errorf("power cut %t: %d records are announced as lost, want 1", power, lost)
		}
		// Later damage of the same segment is announced.
		check(t, flipOn(d, ondisk.SegmentName(1), -1))
		if lost, err := j.Salvage(); lost != 1 || err != nil {
			t.Errorf("power cut %t: salvage of later damage = %d, %v, want 1", power, lost, err)
		}
		if lost := lossOf(t, all(t, j), lossCorrupt); lost != 2 {
			t.Errorf("power cut %t: %d records are announced as lost, want 2", power, lost)
		}
		check(t, j.Close())
	}
}

// TestTornGroup has a power cut keep some records of a group commit and not the ones
// before them: nothing of it was acknowledged, so nothing counts as lost.
func TestTornGroup(t *testing.T) {
	t.Parallel()
	const size = ondisk.RecordHeadSize + 100
	for name, hole := range map[string]struct{ record, from, to int }{
		"the first record":               {0, 0, size},
		"the head of the second record":  {1, 0, ondisk.RecordHeadSize},
		"the body of the first record":   {0, 40, 90},
		"the body of the last record":    {3, 40, 90},
		"the second and third record":    {1, 0, 2 * size},
		"the length of the first record": {0, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := simdisk.New(9)
			o := Options{Disk: d}
			j, err := Open("sim", o)
			check(t, err)
			mustAppend(t, j, event("acknowledged"), event("too"))
			begin := j.st.segments[0].Size
			// The mark is not synced, so that after a power cut it is of before the group.
			mark, err := disk.ReadFile(d, filepath.Join("sim", ondisk.TrimName))
			check(t, err)
			group := make([]Entry, 4)
			for i := range group {
				group[i] = event(fmt.Sprintf("%0100d", i))
			}
			mustAppend(t, j, group...)
			check(t, j.Close())
			at := int(begin) + hole.record*size
			check(t, edit(d, ondisk.TrimName, func([]byte) []byte { return mark }))
			check(t, edit(d, ondisk.SegmentName(1), func(b []byte) []byte {
				clear(b[at+hole.from : at+hole.to])
				return b
			}))
			d.Restart(false)
			j, err = Open("sim", o)
			check(t, err)
			if st := j.Stats(); st.Lost != 0 || st.Salvaged != 0 {
				t.Errorf("%d records count as lost, %d segments as damaged, want none", st.Lost, st.Salvaged)
			}
			if want := uint64(2 + hole.record); j.Last() != want {
				t.Errorf("Last() = %d, want %d", j.Last(), want)
			}
			last := j.Last()
			if got := mustAppend(t, j, event("next")); got != last+1 {
				t.Errorf("the next record has the number %d, want %d", got, last+1)
			}
			check(t, errors.Join(j.Close()))
		})
	}
}

// TestDamageBeforeADurableGroup damages a record that a later group commit followed,
// and forgets the mark: the later group proves that the record was durable.
func TestDamageBeforeADurableGroup(t *testing.T) {
	t.Parallel()
	d := simdisk.New(10)
	o := Options{Disk: d}
	j, err := Open("sim", o)
	check(t, err)
	mark, err := disk.ReadFile(d, filepath.Join("sim", ondisk.TrimName))
	check(t, err)
	mustAppend(t, j, event("one"), event("two"))
	mustAppend(t, j, event("three"), event("four"))
	check(t, j.Close())
	check(t, edit(d, ondisk.TrimName, func([]byte) []byte { return mark }))
	check(t, flipOn(d, ondisk.SegmentName(1), ondisk.HeadSize+ondisk.RecordHeadSize))
	d.Restart(false)
	j, err = Open("sim", o)
	check(t, err)
	if st := j.Stats(); st.Lost != 1 {
		t.Errorf("%d records count as lost, want 1", st.Lost)
	}
	check(t, j.Close())
}

// edit damages a file of the journal "sim".
func edit(d *simdisk.Disk, name string, do func([]byte) []byte) error {
	return d.Edit(filepath.Join("sim", name), do)
}

// flipOn flips a bit of a file of the journal "sim"; at is counted from the end where it is
// negative.
func flipOn(d *simdisk.Disk, name string, at int) error {
	return edit(d, name, func(b []byte) []byte {
		if at < 0 {
			at += len(b)
		}
		b[at] ^= 1
		return b
	})
}
