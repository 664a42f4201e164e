package recordlog

import (
	"bytes"
	"os"
	"testing"
)

// TestReader reads each record again by the offset that it was opened with, and gives
// back nothing of a damaged one.
func TestReader(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	whole, want := written(t, o, 20)
	var offsets []int64
	l, found, err := OpenAt(o, func(body []byte, at int64, _ uint64) error {
		offsets = append(offsets, at)
		return nil
	})
	if err != nil || found != (Found{}) {
		t.Fatal(found, err)
	}
	next := l.Size()
	if err := l.Append([]byte("later")); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, err := OpenReader(o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if offsets[0] != Start {
		t.Errorf("the first record is at %d, want %d", offsets[0], Start)
	}
	for i, at := range append(offsets, next) {
		record := "later"
		if i < len(want) {
			record = want[i]
		}
		for _, size := range []int{0, len(record)} {
			if got, err := r.ReadAt(at, size); err != nil || string(got) != record {
				t.Errorf("record %d of size %d: %q, %v", i, size, got, err)
			}
		}
		if got, err := r.ReadAt(at, len(record)+1); err == nil {
			t.Errorf("record %d with a wrong size: %q", i, got)
		}
	}
	damaged := bytes.Clone(whole)
	damaged[offsets[3]+RecordHead] ^= 1
	if err := os.WriteFile(o.Path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{offsets[3], offsets[3] + 1, int64(len(whole)), 1 << 40} {
		if got, err := r.ReadAt(at, 0); err == nil {
			t.Errorf("offset %d: %q, want an error", at, got)
		}
	}
}
