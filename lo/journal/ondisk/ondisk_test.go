package ondisk

import (
	"errors"
	"os"
	"testing"

	"github.com/colonyfleet/colony/internal/disk"
)

// FuzzParseFrame checks that whatever ParseFrame accepts lies within its input and has the
// sequence that was asked for.
func FuzzParseFrame(f *testing.F) {
	f.Add(AppendFrame(nil, &Frame{Seq: 7, Class: State, Key: []byte("k"), Body: []byte("body")}, 3))
	f.Add(AppendRun(nil, 7, 100, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, short, err := ParseFrame(b, 7, 3)
		if err != nil {
			return
		}
		if short {
			t.Errorf("a whole record of %x is reported as short", b)
		}
		if fr.Size > len(b) {
			t.Errorf("Size = %d of %d bytes: %x", fr.Size, len(b), b)
		}
		if fr.Seq != 7 || fr.Last() < 7 {
			t.Errorf("Seq = %d, Last = %d of %x: want 7 and no less", fr.Seq, fr.Last(), b)
		}
	})
}

// segmentOf writes a segment of n records with a body of 100 bytes each and returns it open.
func segmentOf(t *testing.T, n uint64, damage func([]byte)) (disk.File, *Segment) {
	t.Helper()
	const seed = 3
	b := SegmentHeader(1, 0, seed)
	for seq := uint64(1); seq <= n; seq++ {
		b = AppendFrame(b, &Frame{Seq: seq, Class: Event, Body: make([]byte, 100)}, seed)
	}
	damage(b)
	f, err := Dir{disk.OS, t.TempDir()}.Open(SegmentName(1), os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return f, &Segment{First: 1, Last: n, Size: int64(len(b)), Seed: seed}
}

// TestScannerGoesOnBehindDamage checks that damage of one record costs that record only.
func TestScannerGoesOnBehindDamage(t *testing.T) {
	t.Parallel()
	const size = RecordHeadSize + 100
	for name, tt := range map[string]struct {
		offset int
		lost   uint64
	}{
		"the head of the first record": {HeadSize + 8, 1},
		"the length of the fourth":     {HeadSize + 3*size, 4},
		"the body of the last but one": {HeadSize + 8*size + RecordHeadSize, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, s := segmentOf(t, 10, func(b []byte) { b[tt.offset] ^= 0x40 })
			sc := NewScanner(f, s, Mark{1, HeadSize}, s.Size)
			read := map[uint64]bool{}
			for {
				fr, more, err := sc.Next()
				if errors.Is(err, ErrTorn) {
					if sc.At.Seq != tt.lost {
						t.Fatalf("damage at sequence %d, want %d", sc.At.Seq, tt.lost)
					}
					if !sc.Resync(s.Last) {
						t.Fatalf("no record found behind sequence %d", sc.At.Seq)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if !more {
					break
				}
				read[fr.Seq] = true
			}
			for seq := uint64(1); seq <= s.Last; seq++ {
				if read[seq] == (seq == tt.lost) {
					t.Errorf("sequence %d read: %t", seq, read[seq])
				}
			}
		})
	}
}

// TestTornIsTheEndOfACrash distinguishes what a crash leaves of the last write from damage: a
// record behind it that begins a group was written after it was durable.
func TestTornIsTheEndOfACrash(t *testing.T) {
	t.Parallel()
	const size = RecordHeadSize + 100
	for name, tt := range map[string]struct {
		damaged   int             // record, from 0
		continues map[uint64]bool // sequences that continue a group
		cut       int64
		torn      bool
	}{
		"a part of the last record":           {damaged: 2, cut: 30, torn: true},
		"the last record":                     {damaged: 2, torn: true},
		"the first of a group":                {damaged: 1, continues: map[uint64]bool{3: true}, torn: true},
		"within a group":                      {damaged: 1, continues: map[uint64]bool{2: true, 3: true}, torn: true},
		"a record before another":             {damaged: 1, torn: false},
		"the end of a group before a record":  {damaged: 1, continues: map[uint64]bool{2: true}, torn: false},
		"a record before the end of a group":  {damaged: 0, continues: map[uint64]bool{3: true}, torn: false},
		"the first record of the whole group": {damaged: 0, continues: map[uint64]bool{2: true, 3: true}, torn: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, s := segmentOf(t, 3, func(b []byte) {
				c := b[:HeadSize]
				for seq := uint64(1); seq <= 3; seq++ {
					fr := Frame{Seq: seq, Class: Event, Body: make([]byte, 100)}
					if tt.continues[seq] {
						fr.Flags = FlagContinues
					}
					c = AppendFrame(c, &fr, 3)
				}
				clear(b[HeadSize+tt.damaged*size+RecordHeadSize-20 : HeadSize+(tt.damaged+1)*size])
			})
			sc := NewScanner(f, s, Mark{uint64(tt.damaged) + 1, int64(HeadSize + tt.damaged*size)}, s.Size-tt.cut)
			if _, _, err := sc.Next(); !errors.Is(err, ErrTorn) {
				t.Fatalf("Next: %v, want ErrTorn", err)
			}
			if got := sc.Torn(); got != tt.torn {
				t.Errorf("Torn() = %t, want %t", got, tt.torn)
			}
			if want := (Mark{uint64(tt.damaged) + 1, int64(HeadSize + tt.damaged*size)}); sc.At != want {
				t.Errorf("At = %v after Torn, want %v", sc.At, want)
			}
		})
	}
}
