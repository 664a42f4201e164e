package sessionlog

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/broker/sessions/state"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
)

// filled is a log of three segments, the second with a checkpoint, as a kill of the program leaves it.
func filled(t *testing.T) (dir string) {
	t.Helper()
	from := t.TempDir()
	l, _, _, _ := read(t, from)
	add(t, l, "one")
	must(t, l.Roll())
	must(t, l.Checkpoint(2, []byte("one"), func(uint32) bool { return true }))
	add(t, l, "two")
	must(t, l.Roll())
	add(t, l, "three", "four")
	must(t, l.Sync())
	add(t, l, "five") // its storing was not confirmed
	dir = filepath.Join(t.TempDir(), "log")
	must(t, os.CopyFS(dir, os.DirFS(from)))
	return dir
}

// TestLostFiles removes files, and cuts or zeroes the end of the last segment: each loss is found, with what is known of it.
func TestLostFiles(t *testing.T) {
	t.Parallel()
	const last = "segment-00000003"
	for what, c := range map[string]struct {
		damage  func(t *testing.T, dir string)
		records []string
		path    string // of the damage
		lost    uint64
	}{
		"nothing":          {func(*testing.T, string) {}, []string{"two", "three", "four", "five"}, "", 0},
		"the last segment": {remove(last), []string{"two"}, last, 2},
		"all segments": {func(t *testing.T, dir string) {
			remove("segment-00000001", "segment-00000002", last)(t, dir)
		}, nil, "segment-00000002", 0},
		"the segments of the checkpoint, and the mark": {remove("segment-00000002", last, markFile), nil, "segment-00000002", 0},
		"a segment before the last":                    {remove("segment-00000002"), []string{"three", "four", "five"}, "segment-00000002", 0},
		"the checkpoint and the first segment": {
			remove("checkpoint-00000002", "segment-00000001"), []string{"two", "three", "four", "five"}, "segment-00000001", 0,
		},
		"all of the last but its beginning": {cut(last, func(string, int) int { return 40 }), []string{"two"}, last, 3},
		"the last to its header":            {cut(last, func(string, int) int { return 32 }), []string{"two"}, last, 3},
		"the last from a flushed record on": {cut(last, func(b string, _ int) int { return strings.Index(b, "four") }), []string{"two", "three"}, last, 1},
		"the last behind what was flushed":  {cut(last, func(b string, _ int) int { return strings.Index(b, "five") }), []string{"two", "three", "four"}, "", 0},
		"zeroes from a flushed record on":   {zero(last, "four"), []string{"two", "three"}, last, 1},
		"zeroes behind what was flushed":    {zero(last, "five"), []string{"two", "three", "four"}, "", 0},
		"the mark":                          {remove(markFile), []string{"two", "three", "four", "five"}, "", 0},
		"a damaged mark, and nothing else":  {zero(markFile, ""), []string{"two", "three", "four", "five"}, markFile, 0},
		"one place of the mark, and a record": {func(t *testing.T, dir string) {
			cut(markFile, func(string, int) int { return markPlace })(t, dir)
			cut(last, func(b string, _ int) int { return strings.Index(b, "three") })(t, dir)
		}, []string{"two"}, last, 2},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := filled(t)
			c.damage(t, dir)
			l, _, records, found := read(t, dir)
			if !slices.Equal(records, c.records) {
				t.Errorf("read %q, want %q", records, c.records)
			}
			switch {
			case c.path == "" && len(found.Damage) > 0:
				t.Errorf("damage %v, want none", found.Damage)
			case c.path != "" && (len(found.Damage) == 0 || filepath.Base(found.Damage[0].Path) != c.path || found.Damage[0].Lost != c.lost):
				t.Errorf("damage %v, want %d records of %s", found.Damage, c.lost, c.path)
			}
			add(t, l, "new")
			must(t, l.Checkpoint(l.Number(), nil, func(uint32) bool { return true }))
			must(t, l.Close())
			if _, _, records, found := read(t, dir); len(found.Damage) > 0 || !slices.Contains(records, "new") {
				t.Errorf("after the next checkpoint: %q, damage %v; want the new record, and no damage", records, found.Damage)
			}
		})
	}
}

func remove(names ...string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		for _, name := range names {
			must(t, os.Remove(filepath.Join(dir, name)))
		}
	}
}

func cut(name string, at func(content string, size int) int) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		must(t, os.Truncate(filepath.Join(dir, name), int64(at(string(b), len(b)))))
	}
}

func zero(name, from string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		clear(b[strings.Index(string(b), from):])
		must(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
}

// TestPowerCuts cuts the power at any operation, which leaves of what was not flushed any part: everything that was
// flushed is read, and nothing counts as damage.
func TestPowerCuts(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 3))
		d := simdisk.New(seed)
		must(t, d.MkdirAll("/log", 0o700))
		var flushed []string // in order
		next := 0
		for range 4 {
			checkpoint, records := "", []string(nil)
			open := func() (*Log, Found, error) {
				checkpoint, records = "", nil
				return Open(d, "/log", func(b []byte) error { checkpoint = string(b); return nil }, func(b []byte, _ state.Ref) error {
					records = append(records, string(b))
					return nil
				})
			}
			l, found, err := open()
			must(t, err)
			all := append(strings.Fields(checkpoint), records...)
			if len(found.Damage) > 0 || len(all) < len(flushed) || !slices.Equal(all[:len(flushed)], flushed) {
				t.Fatalf("seed %d: after a power cut %v, damage %v; want %v and no damage", seed, all, found.Damage, flushed)
			}
			flushed = all
			d.CutAt(1 + rng.IntN(40))
			flushed = work(l, d, rng, flushed, &next)
			d.Restart(true)
		}
	}
}

// work appends, flushes, rolls and makes checkpoints until the power is cut, and returns what was flushed.
func work(l *Log, d *simdisk.Disk, rng *rand.Rand, flushed []string, next *int) []string {
	all := slices.Clone(flushed)
	for !d.Off() {
		var list [][]byte
		for range 1 + rng.IntN(3) {
			*next++
			list = append(list, []byte(fmt.Sprint("r", *next)))
		}
		if _, err := l.Append(list); err != nil {
			return flushed
		}
		for _, b := range list {
			all = append(all, string(b))
		}
		if rng.IntN(3) > 0 {
			if l.Sync() != nil {
				return flushed
			}
			flushed = slices.Clone(all)
		}
		if rng.IntN(4) == 0 {
			if l.Sync() != nil || l.Roll() != nil {
				return flushed
			}
			flushed = slices.Clone(all)
			if rng.IntN(2) == 0 {
				_ = l.Checkpoint(l.Number(), []byte(strings.Join(all, " ")), func(uint32) bool { return false }) // or the power is off
			}
		}
	}
	return flushed
}

// TestTrimmedIsNoDamage removes segments without a checkpoint, as on a full disk: the next start knows that they are
// not lost, until no checkpoint names them any more.
func TestTrimmedIsNoDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _, _ := read(t, dir)
	all := func(uint32) bool { return true }
	checkpoint := func() {
		t.Helper()
		must(t, l.Roll())
		must(t, l.Checkpoint(l.Number(), []byte("c"), all))
	}
	for range 3 {
		add(t, l, "x")
		checkpoint()
	}
	must(t, l.Trim(func(n uint32) bool { return n == 2 }))
	must(t, l.Close())
	l, _, _, found := read(t, dir)
	if len(found.Damage) > 0 || !l.Trimmed(1) || l.Has(1) || l.Trimmed(2) || !l.Has(2) {
		t.Errorf("damage %v; trimmed 1: %v, 2: %v", found.Damage, l.Trimmed(1), l.Trimmed(2))
	}
	if st, err := disk.OS.Stat(l.trimmedPath(1)); err != nil || st.Size() > 0 {
		t.Errorf("of the trimmed segment there is %v, %v", st, err)
	}
	for range 3 {
		checkpoint()
	}
	if l.Trimmed(1) {
		t.Error("a trimmed segment is known although no checkpoint can name it")
	}
}

// TestTrimmedOverACrash ends the program between the steps of a trim, or cuts the power there: whatever is not needed then gives back its room
// at the next start, and nothing counts as damaged.
func TestTrimmedOverACrash(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		at := int(seed % 5)
		power := at != 1 && at != 2 && seed%2 == 1 // of a rename that is not flushed this disk leaves one name without the other, as no real one does
		d := simdisk.New(seed)
		open := func() (*Log, Found) {
			t.Helper()
			l, found, err := Open(d, "/log", func([]byte) error { return nil }, func([]byte, state.Ref) error { return nil })
			must(t, err)
			return l, found
		}
		l, _ := open()
		all := func(uint32) bool { return true }
		for range 3 {
			add(t, l, strings.Repeat("x", 1000))
			must(t, l.Roll())
			must(t, l.Checkpoint(l.Number(), []byte("c"), all))
		}
		d.CutAt(at)
		err := l.Trim(func(n uint32) bool { return n == 2 })
		d.Cut()
		_ = l.Close() // the power is off
		d.Restart(power)
		l, found := open()
		trimmed := err == nil || l.Trimmed(1)
		if len(found.Damage) > 0 || l.Has(1) == trimmed {
			t.Errorf("seed %d: damage %v; trimmed with %v, known %t, there %t", seed, found.Damage, err, l.Trimmed(1), l.Has(1))
		}
		if info, err := d.Stat(l.trimmedPath(1)); err == nil && info.Size() > 0 && !l.Has(1) {
			t.Errorf("seed %d: what was trimmed takes %d bytes after a restart", seed, info.Size())
		}
		must(t, l.Close())
	}
}

// unopened is a disk that does not open the mark now.
type unopened struct {
	disk.FS
	cause error
}

func (d unopened) Open(path string, flag int, perm fs.FileMode) (disk.File, error) {
	if filepath.Base(path) == markFile {
		return nil, d.cause
	}
	return d.FS.Open(path, flag, perm)
}

// TestMarkThatCannotBeReadNow does not open the mark, as without a free descriptor: that is no damage, and it stays.
func TestMarkThatCannotBeReadNow(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	for _, cause := range []error{syscall.EMFILE, syscall.EACCES} {
		_, found, err := Open(unopened{disk.OS, cause}, dir, func([]byte) error { return nil }, func([]byte, state.Ref) error { return nil })
		if !errors.Is(err, cause) || len(found.Damage) > 0 {
			t.Errorf("%v: damage %v, error %v", cause, found.Damage, err)
		}
		if _, err := os.Stat(filepath.Join(dir, markFile)); err != nil {
			t.Errorf("after %v: %v", cause, err)
		}
	}
}
