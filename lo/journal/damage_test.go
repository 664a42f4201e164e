package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

// damaged returns a closed journal of 100 events in several segments, and the
// paths of these.
func damaged(t *testing.T, dir string) (o Options, segments []string) {
	t.Helper()
	o = Options{SegmentBytes: 2 << 10}
	j, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		mustAppend(t, j, event(fmt.Sprintf("%0100d", i+1)))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err = filepath.Glob(filepath.Join(dir, "*"+ondisk.SegmentExt))
	if err != nil || len(segments) < 4 {
		t.Fatal(segments, err)
	}
	return o, segments
}

func flip(t *testing.T, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

func TestCorruptSealedSegment(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*testing.T, string){
		"bit":     func(t *testing.T, p string) { flip(t, p, 700) },
		"cut":     func(t *testing.T, p string) { check(t, os.Truncate(p, 700)) },
		"missing": func(t *testing.T, p string) { check(t, os.Remove(p)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			o, segments := damaged(t, dir)
			damage(t, segments[1])
			j := open(t, dir, o)
			var after uint64
			var err error
			for err == nil {
				var got []Record
				if got, err = j.Read(after, 10, 1<<20); len(got) > 0 {
					after = got[len(got)-1].Seq
				}
			}
			c, ok := errors.AsType[*CorruptError](err)
			if !ok || protocol.KindOf(err) != protocol.Internal {
				t.Fatalf("read over damage: %v", err)
			}
			if c.Seq != after+1 || name != "missing" && !strings.Contains(err.Error(), segments[1]) {
				t.Errorf("%v, after %d", err, after)
			}
			lost, err := j.Salvage()
			if err != nil {
				t.Fatal(err)
			}
			got := all(t, j)
			blank := uint64(0)
			for _, r := range got {
				if r.Superseded {
					blank++
				} else if r.Seq <= 100 && string(r.Body) != fmt.Sprintf("%0100d", r.Seq) {
					t.Errorf("record %d is %q", r.Seq, r.Body)
				}
			}
			if l := losses(t, got); lost == 0 || blank != lost || l.Records != lost || len(got) != 101 {
				t.Errorf("salvage says %d, %d are blank, the event says %d, %d records", lost, blank, l.Records, len(got))
			}
			if again, err := j.Salvage(); again != 0 || err != nil {
				t.Errorf("second salvage = %d, %v", again, err)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestTornTail cuts the last segment at each byte of its last records.
func TestTornTail(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	j, err := Open(dir, Options{})
	check(t, err)
	mustAppend(t, j, event("one"), event("two"))
	path := filepath.Join(dir, ondisk.SegmentName(1))
	check(t, j.Close())
	whole, err := os.ReadFile(path)
	check(t, err)
	meta, err := os.ReadFile(filepath.Join(dir, ondisk.MetaName))
	check(t, err)
	size := ondisk.RecordHeadSize + 3
	for cut := ondisk.HeadSize; cut < len(whole); cut++ {
		// The mark says that two records were durable, and so would report a loss.
		check(t, errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, ondisk.MetaName), meta, 0o600)))
		check(t, os.WriteFile(path, whole[:cut], 0o600))
		j, err := Open(dir, Options{})
		check(t, err)
		if want := uint64((cut - ondisk.HeadSize) / size); j.Last() != want {
			t.Errorf("cut at %d: last = %d, want %d", cut, j.Last(), want)
		}
		want := j.Last() + 1
		if got := mustAppend(t, j, event("new")); got != want {
			t.Errorf("cut at %d: next = %d, want %d", cut, got, want)
		}
		if got := bodies(all(t, j)); got[len(got)-1] != "new" {
			t.Errorf("cut at %d: %q", cut, got)
		}
		check(t, j.Close())
	}
}

// epochOf returns the epoch of a closed journal.
func epochOf(dir string) (string, error) {
	epoch, _, err := ondisk.ReadEpoch(ondisk.Dir{FS: disk.OS, Path: dir}, dir)
	return epoch, err
}

// TestEpoch checks when a new epoch begins.
func TestEpoch(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		damage func(t *testing.T, dir string, segments []string)
		fresh  bool // a new epoch
		last   uint64
	}{
		"nothing":   {func(*testing.T, string, []string) {}, false, 100},
		"meta lost": {func(t *testing.T, dir string, _ []string) { check(t, os.Remove(filepath.Join(dir, ondisk.MetaName))) }, true, 100},
		"meta torn": {func(t *testing.T, dir string, _ []string) {
			check(t, os.Truncate(filepath.Join(dir, ondisk.MetaName), 9))
		}, true, 100},
		"segments lost": {func(t *testing.T, _ string, s []string) {
			for _, p := range s {
				check(t, os.Remove(p))
			}
		}, true, 0},
		"head of the last": {func(t *testing.T, _ string, s []string) { flip(t, s[len(s)-1], 9) }, false, 100},
		"trim mark lost":   {func(t *testing.T, dir string, _ []string) { check(t, os.Remove(filepath.Join(dir, ondisk.TrimName))) }, true, 100},
		"one slot zeroed":  {zeroTrim(0), false, 100},
		"the other zeroed": {zeroTrim(1), false, 100},
		"both zeroed":      {zeroTrim(0, 1), true, 100},
		"mark of the epoch before": {func(t *testing.T, dir string, _ []string) {
			check(t, os.WriteFile(filepath.Join(dir, ondisk.TrimName), ondisk.TrimMark(strings.Repeat("ab", 16), 7, 9), 0o600))
		}, false, 100},
		"both zeroed, and the end cut": {func(t *testing.T, dir string, s []string) {
			zeroTrim(0, 1)(t, dir, s)
			check(t, os.Truncate(s[len(s)-1], ondisk.HeadSize))
		}, true, 96},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			o, segments := damaged(t, dir)
			before, noEpoch := epochOf(dir)
			check(t, noEpoch)
			tt.damage(t, dir, segments)
			j := open(t, dir, o)
			if got := j.Epoch() != before; got != tt.fresh {
				t.Errorf("new epoch: %v, want %v", got, tt.fresh)
			}
			if noMark := strings.Contains(name, "trim mark lost") || strings.Contains(name, "both"); (j.Damage() != nil) != noMark {
				t.Errorf("damage %v, want some: %t", j.Damage(), noMark)
			}
			if previous, want := j.Previous(), (protocol.PreviousEpoch{Epoch: before, Through: tt.last}); strings.Contains(name, "trim mark lost") || strings.Contains(name, "both") {
				if previous != want {
					t.Errorf("previous = %+v, want %+v", previous, want)
				}
				check(t, j.Close())
				if j = open(t, dir, o); j.Previous() != want {
					t.Errorf("previous after a restart = %+v, want %+v", j.Previous(), want)
				}
			} else if previous != (protocol.PreviousEpoch{}) {
				t.Errorf("previous = %+v, want none", previous)
			}
			if j.Last() != tt.last {
				t.Errorf("last = %d, want %d", j.Last(), tt.last)
			}
			if got := mustAppend(t, j, event("x")); got != tt.last+1 {
				t.Errorf("next = %d", got)
			}
		})
	}
	t.Run("a later format is left alone", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		o, _ := damaged(t, dir)
		later := statefile.Identity{Role: "lo/journal", Name: filepath.Base(dir)}.Seal([]byte(`{"version":9}`))
		check(t, os.WriteFile(filepath.Join(dir, ondisk.MetaName), later, 0o600))
		if _, err := Open(dir, o); err == nil {
			t.Error("opened")
		}
	})
}

// zeroTrim returns what overwrites slots of the trim mark.
func zeroTrim(slots ...int64) func(*testing.T, string, []string) {
	return func(t *testing.T, dir string, _ []string) {
		f, err := os.OpenFile(filepath.Join(dir, ondisk.TrimName), os.O_RDWR, 0)
		check(t, err)
		for _, slot := range slots {
			if _, err := f.WriteAt(make([]byte, 64), slot*ondisk.TrimSlotSize); err != nil {
				t.Error(err)
			}
		}
		check(t, f.Close())
	}
}

// TestTrimMarkAhead has the disk lose records that the CO already has: their
// numbers are not given again.
func TestTrimMarkAhead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o, _ := damaged(t, dir)
	j, err := Open(dir, o)
	check(t, err)
	check(t, j.Trim(100))
	check(t, j.Close())
	path := filepath.Join(dir, ondisk.SegmentName(97))
	check(t, os.Truncate(path, ondisk.HeadSize+5))
	j = open(t, dir, o)
	if j.Last() != 100 || j.Trimmed() != 100 {
		t.Errorf("last = %d, trimmed = %d, want 100", j.Last(), j.Trimmed())
	}
	if got := mustAppend(t, j, event("x")); got != 101 {
		t.Errorf("next = %d", got)
	}
	if got := all(t, j); len(got) != 1 || got[0].Seq != 101 {
		t.Errorf("records = %v", got)
	}
}

// TestRenew is for a journal that was put back from a copy.
func TestRenew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o, _ := damaged(t, dir)
	j, err := Open(dir, o)
	check(t, err)
	mustAppend(t, j, event("after the copy"))
	was := j.Epoch()
	check(t, j.Renew(5000))
	epoch, trimmed, last, opened := j.Position()
	if epoch == was || trimmed != 100 || last != 101 || opened != 100 {
		t.Errorf("position = %s %d %d %d", epoch, trimmed, last, opened)
	}
	check(t, j.Close())
	j = open(t, dir, o)
	if j.Epoch() != epoch || j.Trimmed() != 100 || j.Last() != 101 {
		t.Errorf("reopened: %s %d %d", j.Epoch(), j.Trimmed(), j.Last())
	}
}
