package recordlog

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/internal/statefile"
)

func options(dir string) Options {
	return Options{Identity: statefile.Identity{Role: "test", Name: "a"}, Path: filepath.Join(dir, "log"), MaxRecord: 1 << 10}
}

// reopen opens the log and returns what is in it.
func reopen(t *testing.T, o Options) (l *Log, records []string, found Found) {
	t.Helper()
	l, found, err := Open(o, func(b []byte, _ uint64) error {
		records = append(records, string(b))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, records, found
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// written returns the bytes of a log of n records, and these.
func written(t *testing.T, o Options, n int) (b []byte, records []string) {
	t.Helper()
	l, _, found := reopen(t, o)
	if !found.New {
		t.Fatal("the log is not new")
	}
	for i := range n {
		records = append(records, fmt.Sprintf("record %d %s", i+1, strings.Repeat("x", i%40)))
		if err := l.Append([]byte(records[i])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.Sync(), l.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	return b, records
}

func TestAppendAndReplace(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	_, want := written(t, o, 3)
	l, got, found := reopen(t, o)
	if !slices.Equal(got, want) || found != (Found{}) {
		t.Fatalf("records %q, %+v", got, found)
	}
	if err := l.Replace([][]byte{[]byte("new")}); err != nil {
		t.Fatal(err)
	}
	if err := l.Append([]byte("b"), []byte("c")); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(make([]byte, 1025)); err == nil {
		t.Error("a record over the limit was appended")
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
	if _, got, _ := reopen(t, o); !slices.Equal(got, []string{"new", "b", "c"}) {
		t.Errorf("records %q", got)
	}
}

// subsequence reports that each of got is in want, in order.
func subsequence(got, want []string) bool {
	for _, w := range want {
		if len(got) > 0 && got[0] == w {
			got = got[1:]
		}
	}
	return len(got) == 0
}

// TestEveryBit flips each bit of a log: at most one record is lost, each loss is
// counted, and the damaged file is kept.
func TestEveryBit(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	whole, want := written(t, o, 6)
	for bit := range 8 * len(whole) {
		b := bytes.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		write(t, o.Path, b)
		l, got, found := reopen(t, o)
		if bit/8 >= len(whole)-recordHead { // the seal holds no record
			if found.Damage != nil || found.Torn != recordHead || !slices.Equal(got, want) {
				t.Fatalf("bit %d of the seal: %q, %+v", bit, got, found)
			}
			continue
		}
		if found.Damage == nil || found.Damage.Aside == "" || !l.Broken() {
			t.Fatalf("bit %d: %+v", bit, found)
		}
		if missing := uint64(len(want) - len(got)); !subsequence(got, want) || missing > 1 || missing != found.Damage.Lost {
			t.Fatalf("bit %d: %d of %d records, %d are counted as lost", bit, len(got), len(want), found.Damage.Lost)
		}
		if bit%64 == 0 { // each costs two flushes of the disk
			if err := l.Replace(nil); err != nil {
				t.Fatal(err)
			}
		}
		if kept, err := os.ReadFile(found.Damage.Aside); err != nil || !bytes.Equal(kept, b) {
			t.Fatalf("bit %d: aside: %v", bit, err)
		}
	}
}

// TestCut cuts a log at each length: only the record that is cut is a torn tail. A log that has no whole record is
// to be replaced, so that no crash leaves a header alone: that is damage.
func TestCut(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	whole, want := written(t, o, 4)
	for n := headSize; n < len(whole); n++ {
		write(t, o.Path, whole[:n])
		l, got, found := reopen(t, o)
		if (found.Damage != nil) != (n == headSize) || found.Unsealed != (n > headSize) || !slices.Equal(got, want[:len(got)]) || l.Broken() != (len(got) == 0) {
			t.Fatalf("cut to %d: %q, broken %t, %+v", n, got, l.Broken(), found)
		}
		if l.Broken() {
			if err := l.Replace(nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Append([]byte("next")); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, again, found := reopen(t, o); !slices.Equal(again, append(got, "next")) || found != (Found{}) {
			t.Fatalf("cut to %d and appended to: %q, %+v", n, again, found)
		}
	}
}

var damages = flag.Int("damages", 1500, "how often TestRandomDamage damages a log")

// TestRandomDamage damages a larger log: what is given back was appended, in order,
// and at least what is missing is reported.
func TestRandomDamage(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	whole, want := written(t, o, 400)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range *damages {
		b := bytes.Clone(whole)
		at := rng.IntN(len(b))
		switch i % 4 {
		case 0:
			b[at] ^= 1 << rng.IntN(8)
		case 1:
			clear(b[at&^511 : min(at&^511+512, len(b))])
		case 2: // a block in the place of another
			copy(b[at&^511:min(at&^511+512, len(b))], whole[rng.IntN(len(b))&^511:])
		case 3: // a piece is missing
			b = append(b[:at], b[min(at+rng.IntN(300), len(b)):]...)
		}
		write(t, o.Path, b)
		l, got, found := reopen(t, o)
		if !subsequence(got, want) {
			t.Fatalf("damage %d: other content", i)
		}
		if len(got) < len(want) && found.Damage == nil && found.Torn == 0 && i%4 != 3 {
			t.Fatalf("damage %d at %d: %d of %d records, and no Damage", i, at, len(got), len(want))
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSwapped puts one log in the place of another: nothing of it is given back.
func TestSwapped(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	written(t, o, 5)
	o.Name = "b"
	l, got, found := reopen(t, o)
	if len(got) > 0 || found.Damage == nil || !l.Broken() {
		t.Errorf("%q, %+v", got, found)
	}
	if err := l.Append([]byte("x")); err == nil {
		t.Error("a broken log was appended to")
	}
}

// TestTornAppends damages records that were never flushed, in any way: nothing of it
// counts as lost. The same damage does once a flush followed.
func TestTornAppends(t *testing.T) {
	t.Parallel()
	for name, appends := range map[string][]int{
		"one append of four":  {4},
		"four appends":        {1, 1, 1, 1},
		"two appends of two":  {2, 2},
		"an append of a part": {1, 3},
	} {
		for damaged := range 4 {
			for _, flushed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, record %d, flushed %t", name, damaged, flushed), func(t *testing.T) {
					t.Parallel()
					o := options(t.TempDir())
					_, want := written(t, o, 2)
					l, _, _ := reopen(t, o)
					var ends []int64
					for _, n := range appends {
						var bodies [][]byte
						for range n {
							want = append(want, fmt.Sprintf("%030d", len(want)))
							bodies = append(bodies, []byte(want[len(want)-1]))
						}
						if err := l.Append(bodies...); err != nil {
							t.Fatal(err)
						}
					}
					for i := range 4 {
						ends = append(ends, l.Size()-int64(3-i)*(recordHead+30))
					}
					if flushed {
						if err := l.Sync(); err != nil {
							t.Fatal(err)
						}
					}
					b, err := os.ReadFile(o.Path)
					if err != nil {
						t.Fatal(err)
					}
					clear(b[ends[damaged]-20 : ends[damaged]])
					write(t, o.Path, b)
					_, got, found := reopen(t, o)
					if !flushed {
						if found.Damage != nil || found.Torn == 0 || !slices.Equal(got, want[:2+damaged]) {
							t.Errorf("never flushed: %d records, %+v, want the %d before the damage and no Damage", len(got), found, 2+damaged)
						}
						return
					}
					if found.Damage == nil || found.Damage.Lost != 1 || len(got) != len(want)-1 || !subsequence(got, want) {
						t.Errorf("flushed: %d of %d records, %+v, want one lost", len(got), len(want), found)
					}
				})
			}
		}
	}
}

// TestAppendAfterTear goes on behind a torn tail: what was cut off does not come back.
func TestAppendAfterTear(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	_, want := written(t, o, 2)
	l, _, _ := reopen(t, o)
	if err := l.Append([]byte("never flushed"), []byte("nor this")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	clear(b[len(b)-recordHead-20 : len(b)-recordHead-10])
	write(t, o.Path, b)
	l, _, _ = reopen(t, o)
	if err := errors.Join(l.Append([]byte("x")), l.Sync(), l.Append([]byte("y")), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, got, found := reopen(t, o); !slices.Equal(got, append(want, "x", "y")) || found != (Found{}) {
		t.Errorf("records %q, %+v, want %q and nothing else", got, found, append(want, "x", "y"))
	}
}

func TestUndecodable(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	written(t, o, 3)
	l, found, err := Open(o, func(b []byte, _ uint64) error {
		if bytes.HasPrefix(b, []byte("record 2")) {
			return errors.New("not this one")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if found.Damage == nil || found.Damage.Lost != 1 {
		t.Errorf("%+v", found)
	}
}

func TestNewerFormatIsUntouched(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	l := &Log{o: o, seed: seedOf(o.Identity)}
	b := l.head(format+1, "7.8.9")
	write(t, o.Path, b)
	_, _, err := Open(o, func([]byte, uint64) error { return nil })
	if _, ok := errors.AsType[*statefile.NewerError](err); !ok || !strings.Contains(err.Error(), "7.8.9") {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(o.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("the file changed: %v", err)
	}
}

// TestDurableElsewhere opens logs without their end with the number of a record that was durable: what is missing up to it
// is damage, and what is missing behind it is not.
func TestDurableElsewhere(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	b, want := written(t, o, 3)
	for what, c := range map[string]struct {
		content []byte
		durable uint64
		lost    uint64
		damaged bool
	}{
		"the third is missing and was durable":     {b[:bytes.Index(b, []byte("record 3"))-recordHead], 3, 1, true},
		"the third is missing":                     {b[:bytes.Index(b, []byte("record 3"))-recordHead], 2, 0, false},
		"the third is torn and was durable":        {b[:bytes.Index(b, []byte("record 3"))+4], 3, 1, true},
		"the second and third are zeroes":          {slices.Concat(b[:bytes.Index(b, []byte("record 2"))], make([]byte, 200)), 3, 2, true},
		"everything is missing but the header":     {b[:headSize], 3, 3, true},
		"nothing is missing":                       {b, 3, 0, false},
		"nothing is missing but the seal":          {b[:len(b)-recordHead], 3, 0, false},
		"nothing is known, and the end is missing": {b[:bytes.Index(b, []byte("record 3"))+4], 0, 0, false},
	} {
		write(t, o.Path, c.content)
		o.Durable = c.durable
		_, got, found := reopen(t, o)
		if (found.Damage != nil) != c.damaged || c.damaged && (found.Damage.Lost != c.lost || found.Damage.Kept) || !subsequence(got, want) {
			t.Errorf("%s: read %d records, damage %v; want %d lost", what, len(got), found.Damage, c.lost)
		}
	}
}

// TestKept damages nothing but the header of a log: nothing is lost, as far as its seal says so.
func TestKept(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	b, _ := written(t, o, 3)
	b[3] ^= 1
	for _, content := range [][]byte{b, b[:len(b)-recordHead]} {
		write(t, o.Path, content)
		_, got, found := reopen(t, o)
		if sealed := len(content) == len(b); len(got) != 3 || found.Damage == nil || found.Damage.Kept != sealed || found.Damage.Lost != 0 {
			t.Errorf("sealed %v: %d records, %+v", sealed, len(got), found.Damage)
		}
	}
}

// An append that finds the disk full takes the place of the seal: the program may end right behind it.
func TestAnAppendThatFindsTheDiskFullLeavesNoDamage(t *testing.T) {
	for records := range 2 {
		for room := range int64(40) {
			d := simdisk.New(1)
			if err := d.MkdirAll("/l", 0o700); err != nil {
				t.Fatal(err)
			}
			o := options("/l")
			o.Disk = d
			l, _, _ := reopen(t, o)
			for range records {
				if err := errors.Join(l.Append([]byte("first")), l.Sync()); err != nil {
					t.Fatal(err)
				}
			}
			d.Space(room)
			if err := l.Append(make([]byte, 200)); !disk.IsFull(err) {
				t.Fatalf("an append with room for %d bytes: %v", room, err)
			}
			d.Restart(false)
			d.Space(-1)
			if _, got, found := reopen(t, o); found.Damage != nil || found.Torn > 0 || len(got) != records {
				t.Errorf("%d records, room for %d bytes: %+v, and %q is there", records, room, found, got)
			}
		}
	}
}
