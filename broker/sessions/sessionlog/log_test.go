package sessionlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/colonyfleet/colony/broker/sessions/state"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/recordlog"
	"github.com/colonyfleet/colony/internal/smalldisk"
)

// read opens the log and returns the checkpoint and the records that it holds.
func read(t *testing.T, dir string) (l *Log, checkpoint string, records []string, found Found) {
	t.Helper()
	l, found, err := Open(disk.OS, dir, func(b []byte) error {
		if string(b) == "refuse" {
			return errors.New("refused")
		}
		checkpoint = string(b)
		return nil
	}, func(b []byte, _ state.Ref) error {
		records = append(records, string(b))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, checkpoint, records, found
}

func add(t *testing.T, l *Log, bodies ...string) []state.Ref {
	t.Helper()
	var list [][]byte
	for _, b := range bodies {
		list = append(list, []byte(b))
	}
	refs, err := l.Append(list)
	if err != nil {
		t.Fatal(err)
	}
	return refs
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRecordsOverSegments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _, _ := read(t, dir)
	refs := add(t, l, "a", "bb")
	must(t, l.Roll())
	refs = append(refs, add(t, l, "ccc")...)
	for i, want := range []string{"a", "bb", "ccc"} {
		if got, err := l.Read(refs[i]); err != nil || string(got) != want {
			t.Errorf("record %d: %q, %v", i, got, err)
		}
	}
	must(t, l.Close())
	l, _, got, found := read(t, dir)
	if !slices.Equal(got, []string{"a", "bb", "ccc"}) || len(found.Damage) > 0 {
		t.Errorf("%q, %+v", got, found)
	}
	add(t, l, "d")
	must(t, l.Close())
	if _, _, got, _ := read(t, dir); len(got) != 4 || l.Number() != 2 {
		t.Errorf("%q in segment %d: want 4 records, in the segment that there was", got, l.Number())
	}
}

// TestGivenUp begins a segment after a flush has failed: what was not flushed before is not
// read again, though it is in the file.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _, _ := read(t, dir)
	add(t, l, "a")
	must(t, l.Sync())
	add(t, l, "refused")
	must(t, l.current.Close()) // stands for a disk that fails: a flush is an error now
	must(t, l.Roll())
	add(t, l, "b")
	must(t, l.Close())
	if _, _, got, found := read(t, dir); !slices.Equal(got, []string{"a", "b"}) || len(found.Damage) > 0 {
		t.Errorf("%q, %+v: want a and b", got, found)
	}
}

// TestCheckpoints stores checkpoints, and removes what the last two do not need.
func TestCheckpoints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _, _ := read(t, dir)
	for i := range 6 {
		add(t, l, fmt.Sprint("record ", i))
		must(t, l.Roll())
		must(t, l.Checkpoint(l.Number(), []byte(fmt.Sprint("up to ", i)), func(segment uint32) bool { return segment == 2 }))
	}
	add(t, l, "last")
	must(t, l.Close())
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	for i := range names {
		names[i] = filepath.Base(names[i])
	}
	if want := []string{"checkpoint-00000006", "checkpoint-00000007", "complete", "durable", "segment-00000002", "segment-00000006", "segment-00000007"}; !slices.Equal(names, want) {
		t.Errorf("files %v, want %v", names, want)
	}
	l, checkpoint, got, _ := read(t, dir)
	if checkpoint != "up to 5" || !slices.Equal(got, []string{"last"}) {
		t.Errorf("%q and %q", checkpoint, got)
	}
	must(t, l.Close())
	must(t, os.WriteFile(filepath.Join(dir, names[1]), []byte("?"), 0o600))
	l, checkpoint, got, found := read(t, dir)
	if checkpoint != "up to 4" || !slices.Equal(got, []string{"record 5", "last"}) || len(found.Damage) != 1 {
		t.Errorf("with a damaged one: %q, %q, %+v", checkpoint, got, found)
	}
	must(t, l.Close())
	must(t, os.WriteFile(filepath.Join(dir, names[0]), []byte("?"), 0o600))
	for _, n := range []string{"segment-00000006", "segment-00000007", "segment-00000002", "durable"} {
		must(t, os.Remove(filepath.Join(dir, n)))
	}
	l, checkpoint, got, found = read(t, dir)
	if checkpoint != "" || len(got) > 0 || len(found.Damage) != 1 {
		t.Errorf("without anything: %q, %q, %+v", checkpoint, got, found)
	}
	add(t, l, "new")
}

// TestNumberBehindCheckpoint begins a segment that a later start reads, though segments are lost.
func TestNumberBehindCheckpoint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _, _ := read(t, dir)
	must(t, l.Roll())
	must(t, l.Roll())
	must(t, l.Checkpoint(3, []byte("c"), func(uint32) bool { return false }))
	must(t, l.Close())
	names, err := filepath.Glob(filepath.Join(dir, "segment-*"))
	must(t, err)
	for _, n := range names {
		must(t, os.Remove(n))
	}
	l, _, _, _ = read(t, dir)
	add(t, l, "new")
	must(t, l.Close())
	if _, checkpoint, got, _ := read(t, dir); checkpoint != "c" || !slices.Equal(got, []string{"new"}) {
		t.Errorf("%q, %q: want what was appended after the loss", checkpoint, got)
	}
}

// TestRefusedCheckpoint tries the checkpoint before one that its reader refuses.
func TestRefusedCheckpoint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _, _ := read(t, dir)
	for _, content := range []string{"good", "refuse"} {
		must(t, l.Roll())
		must(t, l.Checkpoint(l.Number(), []byte(content), func(uint32) bool { return false }))
	}
	must(t, l.Close())
	if _, checkpoint, _, found := read(t, dir); checkpoint != "good" || len(found.Damage) != 1 {
		t.Errorf("%q, %+v", checkpoint, found)
	}
}

// TestFullDisk opens a log on a disk without room, with nothing in it and with a damaged segment at the end:
// what was stored is read, and what is appended once there is room again is there at the next start.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"nothing", "a damaged segment", "a segment that was not begun"} {
		t.Run(before, func(t *testing.T) {
			t.Parallel()
			disk := smalldisk.New(t, 1<<20)
			dir := disk.Path("log")
			l, _, _, _ := read(t, dir)
			var want []string
			segment := filepath.Join(dir, "segment-00000001")
			if before != "nothing" {
				want = []string{"a", "b"}
				add(t, l, "a", "b", "damaged")
			}
			must(t, l.Close())
			switch before {
			case "nothing":
				must(t, os.RemoveAll(segment))
			case "a damaged segment":
				whole, err := os.ReadFile(segment)
				must(t, err)
				whole[bytes.Index(whole, []byte("damaged"))] ^= 1
				must(t, os.WriteFile(segment, whole, 0o600))
			default:
				want = append(want, "damaged")
				next, _, err := recordlog.Open(l.segment(2), func([]byte, uint64) error { return nil })
				must(t, err)
				must(t, next.Close())
			}
			disk.Fill()
			l, _, got, found := read(t, dir)
			if found.Full == nil || !slices.Equal(got, want) {
				t.Errorf("without room: read %q, want %q; and %v, want why nothing can be written", got, want, found.Full)
			}
			if _, err := l.Append([][]byte{make([]byte, 1<<20)}); err == nil {
				t.Error("a record was appended to a full disk")
			}
			if err := l.Sync(); err == nil {
				t.Error("a flush of nothing that can be appended to")
			}
			disk.Free()
			add(t, l, "c")
			must(t, l.Sync())
			must(t, l.Close())
			if _, _, got, _ := read(t, dir); !slices.Equal(got, append(want, "c")) {
				t.Errorf("with room: %q, want %q and c", got, want)
			}
		})
	}
}

// TestTrim removes the segments that are not needed any more without a new checkpoint.
func TestTrim(t *testing.T) {
	t.Parallel()
	disk := smalldisk.New(t, 1<<20)
	dir := disk.Path("log")
	l, _, _, _ := read(t, dir)
	for range 3 {
		add(t, l, "x")
		must(t, l.Roll())
		must(t, l.Checkpoint(l.Number(), []byte("c"), func(uint32) bool { return true }))
	}
	disk.Fill()
	must(t, l.Trim(func(n uint32) bool { return n == 2 }))
	for n, want := range []bool{false, false, true, true, true} {
		_, err := os.Stat(filepath.Join(dir, fmt.Sprintf("segment-%08d", n)))
		if l.Has(uint32(n)) != want || (err == nil) != want {
			t.Errorf("segment %d: %v, %v, want it to be there: %v", n, l.Has(uint32(n)), err, want)
		}
	}
}

// A log that ends behind a whole record, before others that were flushed, is no whole one: of the last segment the mark
// knows how many there were, of others the next segment.
func TestCutBehindARecord(t *testing.T) {
	t.Parallel()
	for _, rolled := range []bool{false, true} {
		dir := t.TempDir()
		l, _, _, _ := read(t, dir)
		add(t, l, "one", "two", "three")
		must(t, l.Sync())
		if rolled {
			must(t, l.Roll())
			add(t, l, "four")
		}
		must(t, l.Close())
		path := filepath.Join(dir, "segment-00000001")
		b, err := os.ReadFile(path)
		must(t, err)
		const frame = recordlog.RecordHead
		must(t, os.WriteFile(path, b[:len(b)-frame-frame-len("three")], 0o600)) // without the seal and the record
		_, _, records, found := read(t, dir)
		want := []string{"one", "two"}
		if rolled {
			want = append(want, "four")
		}
		if !slices.Equal(records, want) {
			t.Errorf("records %q, want %q", records, want)
		}
		if len(found.Damage) != 1 || found.Damage[0].Path != path || found.Damage[0].Lost != 1 || found.Unsealed != "" {
			t.Errorf("another segment follows: %v; damage %v, unsealed %q", rolled, found.Damage, found.Unsealed)
		}
	}
}
