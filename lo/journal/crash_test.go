package journal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/protocol"
)

// model is what a journal must hold: everything acknowledged.
type model struct {
	acked   map[uint64]Entry // by sequence
	trimmed uint64           // highest Trim that was asked for
	last    uint64           // highest sequence acknowledged
	epoch   string           // once a record was acknowledged
}

// check compares a freshly opened journal with the model. Records that were not
// acknowledged may be there or not.
func (m *model) check(t *testing.T, j *Journal, label string) {
	t.Helper()
	if m.epoch == "" && m.last > 0 {
		m.epoch = j.Epoch()
	}
	if m.epoch != "" && j.Epoch() != m.epoch {
		t.Fatalf("%s: the epoch is %s, was %s", label, j.Epoch(), m.epoch)
	}
	if j.Last() < m.last {
		t.Fatalf("%s: last is %d, %d was acknowledged", label, j.Last(), m.last)
	}
	if j.Trimmed() > m.trimmed {
		t.Fatalf("%s: trimmed %d, only %d was asked for", label, j.Trimmed(), m.trimmed)
	}
	records := all(t, j)
	newest := map[string]uint64{}
	for _, r := range records {
		if r.Class == State && !r.Superseded {
			newest[r.Key] = r.Seq
		}
	}
	lost := losses(t, records).Records
	for _, r := range records {
		want, ok := m.acked[r.Seq]
		if !ok {
			continue
		}
		switch {
		case !r.Superseded:
			if string(r.Body) != string(want.Body) || r.Class != want.Class || r.Key != want.Key {
				t.Fatalf("%s: record %d is %q, acknowledged was %q", label, r.Seq, r.Body, want.Body)
			}
		case want.Class == State && newest[want.Key] > r.Seq:
		case want.Class == Data && lost > 0:
			lost--
		case want.Class == Event && isLoss(want.Body): // a later one repeats it, and it is part of lost
		default:
			t.Fatalf("%s: record %d of class %d, key %q is missing", label, r.Seq, want.Class, want.Key)
		}
	}
	if got := uint64(len(records)); got != j.Last()-j.Trimmed() {
		t.Fatalf("%s: %d records between %d and %d", label, got, j.Trimmed(), j.Last())
	}
}

// play appends and trims at random until the disk fails.
func (m *model) play(t *testing.T, j *Journal, rng *rand.Rand) {
	for range 400 {
		if rng.IntN(12) == 0 {
			through := m.trimmed + rng.Uint64N(j.Last()-m.trimmed+1)
			m.trimmed = max(m.trimmed, through)
			if j.Trim(through) != nil {
				return
			}
			continue
		}
		entries := make([]Entry, 1+rng.IntN(3))
		for i := range entries {
			body := fmt.Appendf(nil, "%x ", rng.Uint64())
			body = append(body, make([]byte, rng.IntN(200))...)
			switch rng.IntN(3) {
			case 0:
				entries[i] = Entry{Class: State, Key: fmt.Sprint(rng.IntN(4)), Body: body}
			case 1:
				entries[i] = Entry{Class: Event, Body: body}
			case 2:
				entries[i] = Entry{Class: Data, Body: body}
			}
		}
		last, err := j.Append(context.Background(), entries...)
		if err != nil {
			if j.opts.Disk.(*simdisk.Disk).Off() {
				return
			}
			if protocol.KindOf(err) != protocol.Unavailable {
				t.Fatal(err)
			}
			// The bound is reached: only a Trim helps.
			m.trimmed = j.Last()
			if j.Trim(m.trimmed) != nil {
				return
			}
			continue
		}
		m.last, m.epoch = last, j.Epoch()
		for i := range entries {
			m.acked[last-uint64(len(entries)-1-i)] = entries[i]
		}
	}
}

// TestPowerCut cuts the power, or kills the process, at each kind of operation in
// turn, over and over on the same disk, and checks that everything acknowledged
// is there.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	runs := 1500
	if testing.Short() {
		runs = 60
	}
	cuts := map[string]int{}
	for seed := range uint64(runs) {
		rng := rand.New(rand.NewPCG(seed, 11))
		d := simdisk.New(seed)
		m := &model{acked: map[uint64]Entry{}}
		o := Options{MaxBytes: 16 << 10, SegmentBytes: 2 << 10, Disk: d}
		for round := range 6 {
			d.CutAt(1 + rng.IntN(400))
			label := fmt.Sprintf("seed %d, round %d", seed, round)
			j, err := Open("sim", o)
			if err == nil {
				m.play(t, j, rng)
				_ = j.Close()
			} else if !errors.Is(err, simdisk.ErrPower) {
				t.Fatalf("%s: %v", label, err)
			}
			if d.Off() {
				var op string
				_, _ = fmt.Sscan(d.CutOn(), &op)
				cuts[op]++
			}
			d.Restart(rng.IntN(3) > 0)
			j, err = Open("sim", o)
			if err != nil {
				t.Fatalf("%s, cut at %s: %v", label, d.CutOn(), err)
			}
			m.check(t, j, label+", cut at "+d.CutOn())
			if st := j.Stats(); st.Lost != 0 || st.Salvaged != 0 {
				t.Fatalf("%s, cut at %s: what a power cut leaves counts as damage: %d records, %d segments", label, d.CutOn(), st.Lost, st.Salvaged)
			}
			// What survived unacknowledged is part of the journal from now on.
			m.last, m.trimmed = j.Last(), max(m.trimmed, j.Trimmed())
			for _, r := range all(t, j) {
				if _, ok := m.acked[r.Seq]; !ok && !r.Superseded {
					m.acked[r.Seq] = r.Entry
				}
			}
			power := rng.IntN(2) == 0 // what was read must be durable
			if power {
				d.Cut()
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			d.Restart(power)
		}
	}
	for _, op := range []string{"create", "write", "sync", "rename", "remove", "syncdir"} {
		if cuts[op] == 0 {
			t.Errorf("no cut at %s: %v", op, cuts)
		}
	}
}

// TestDiskFull fills the disk in the middle of a record and frees it again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	d := simdisk.New(3)
	j, err := Open("sim", Options{SegmentBytes: 1 << 10, Disk: d})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	mustAppend(t, j, event("before"))
	d.Space(500)
	refused := 0
	for i := range 20 {
		_, err := j.Append(t.Context(), event(fmt.Sprintf("%0100d", i)))
		if err == nil {
			continue
		}
		if protocol.KindOf(err) != protocol.Unavailable || !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		refused++
	}
	if refused < 15 {
		t.Errorf("%d appends were refused", refused)
	}
	before := j.Last()
	d.Space(-1)
	if got := mustAppend(t, j, event("after")); got != before+1 {
		t.Errorf("sequence %d after %d", got, before)
	}
	got := all(t, j)
	if string(got[len(got)-1].Body) != "after" || uint64(len(got)) != before+1 {
		t.Errorf("%d records, the last is %q", len(got), got[len(got)-1].Body)
	}
}

// TestFailedSync checks that what a failed sync left is not treated as durable,
// and that the journal goes on when the disk does.
func TestFailedSync(t *testing.T) {
	t.Parallel()
	d := simdisk.New(4)
	o := Options{Disk: d}
	j, err := Open("sim", o)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, j, event("a"))
	d.Fail(func(op, _ string) error {
		if op == "sync" || op == "truncate" {
			return syscall.EIO
		}
		return nil
	})
	for range 3 {
		if _, err := j.Append(t.Context(), event("lost")); protocol.KindOf(err) != protocol.Unavailable {
			t.Fatalf("append on a broken disk: %v", err)
		}
	}
	d.Fail(nil)
	if got := mustAppend(t, j, event("b")); got != 2 {
		t.Errorf("sequence %d", got)
	}
	if got := bodies(all(t, j)); len(got) != 2 || got[1] != "b" {
		t.Errorf("records = %q", got)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	d.Restart(true)
	j, err = Open("sim", o)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if got := bodies(all(t, j)); len(got) != 2 || got[1] != "b" {
		t.Errorf("records after a power cut = %q", got)
	}
}

// simFail makes the disk fail operations until the returned function is called.
func simFail(d *simdisk.Disk, fails func(op, name string) bool) (end func()) {
	d.Fail(func(op, path string) error {
		if fails(op, filepath.Base(path)) {
			return syscall.EIO
		}
		return nil
	})
	return func() { d.Fail(nil) }
}

// TestDropIsCarriedOut has the drop fail after it was announced: at the next try,
// or at the next open, it is done, and counted once.
func TestDropIsCarriedOut(t *testing.T) {
	t.Parallel()
	for _, reopen := range []bool{false, true} {
		d := simdisk.New(5)
		o := Options{MaxBytes: 16 << 10, SegmentBytes: 2 << 10, Disk: d}
		j, err := Open("sim", o)
		if err != nil {
			t.Fatal(err)
		}
		data := Entry{Class: Data, Body: make([]byte, 200)}
		end := simFail(d, func(op, _ string) bool { return op == "rename" })
		accepted := uint64(0)
		for err == nil {
			if _, err = j.Append(t.Context(), data); err == nil {
				accepted++
			}
		}
		if protocol.KindOf(err) != protocol.Unavailable {
			t.Fatal(err)
		}
		end()
		if reopen {
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			d.Restart(true)
			if j, err = Open("sim", o); err != nil {
				t.Fatal(err)
			}
		} else {
			mustAppend(t, j, data)
			accepted++
		}
		retained := uint64(0)
		got := all(t, j)
		for _, r := range got {
			if r.Class == Data {
				retained++
			}
		}
		if l := losses(t, got); l.Records == 0 || l.Records+retained != accepted {
			t.Errorf("reopen %v: %d announced as lost + %d kept of %d", reopen, l.Records, retained, accepted)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMergeIsFinished has the merging of two segments stop before the second is
// removed.
func TestMergeIsFinished(t *testing.T) {
	t.Parallel()
	d := simdisk.New(6)
	o := Options{MaxBytes: 1 << 20, SegmentBytes: 128 << 10, Disk: d}
	j, err := Open("sim", o)
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	end := simFail(d, func(op, name string) bool {
		if op == "remove" {
			left++
		}
		return op == "remove"
	})
	mustAppend(t, j, event("first"))
	for range 6 * 128 {
		mustAppend(t, j, Entry{Class: State, Key: "k", Body: make([]byte, 1000)})
	}
	want := bodies(all(t, j))
	if left == 0 {
		t.Fatal("no merge")
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	end()
	if j, err = Open("sim", o); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if got := bodies(all(t, j)); len(got) != len(want) || got[0] != "first" || got[len(got)-1] != want[len(want)-1] {
		t.Errorf("%d records, want %d", len(got), len(want))
	}
}

// TestBegunSegment has the next segment fail so that its name stays on disk: what
// is appended after must not be overlooked at the next open.
func TestBegunSegment(t *testing.T) {
	t.Parallel()
	d := simdisk.New(7)
	o := Options{MaxBytes: 8 << 10, SegmentBytes: 1 << 20, Disk: d} // the bound comes before the size
	j, err := Open("sim", o)
	if err != nil {
		t.Fatal(err)
	}
	state := Entry{Class: State, Key: "k", Body: make([]byte, 500)}
	// Reclaiming has to seal the active segment, which fails.
	end := simFail(d, func(op, _ string) bool { return op == "syncdir" || op == "remove" })
	for err == nil {
		_, err = j.Append(t.Context(), state)
	}
	end()
	if err := j.Trim(j.Last()); err != nil {
		t.Fatal(err)
	}
	last := mustAppend(t, j, event("after"))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err = Open("sim", o); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if got := all(t, j); j.Last() != last || len(got) == 0 || string(got[len(got)-1].Body) != "after" {
		t.Errorf("last is %d, want %d: %q", j.Last(), last, bodies(got))
	}
}

// TestRenewIsDurable cuts the power after Renew.
func TestRenewIsDurable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		d := simdisk.New(seed)
		o := Options{Disk: d}
		j, err := Open("sim", o)
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, j, event("a"))
		if err := j.Renew(0); err != nil {
			t.Fatal(err)
		}
		epoch := j.Epoch()
		d.Cut()
		_ = j.Close()
		d.Restart(true)
		if j, err = Open("sim", o); err != nil {
			t.Fatal(err)
		}
		if j.Epoch() != epoch || j.Last() != 1 {
			t.Errorf("seed %d: epoch %s, want %s; last %d", seed, j.Epoch(), epoch, j.Last())
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
