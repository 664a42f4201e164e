package journal

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/lo/journal/ondisk"
)

// image is the content of a journal's directory, by name.
type image map[string][]byte

// imageOf makes a journal with n events and returns its files.
func imageOf(t *testing.T, dir string, o Options, n int) image {
	t.Helper()
	j, err := Open(dir, o)
	check(t, err)
	entries := make([]Entry, n)
	for i := range entries {
		entries[i] = event(fmt.Sprintf("event %d %s", i+1, strings.Repeat("x", i%50)))
	}
	for part := range slices.Chunk(entries, 5) {
		mustAppend(t, j, part...)
	}
	check(t, j.Close())
	img := image{}
	check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != ondisk.LockName {
			img[d.Name()], err = os.ReadFile(path)
		}
		return err
	}))
	return img
}

func (img image) write(t *testing.T, dir string) {
	t.Helper()
	check(t, errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)))
	for name, b := range img {
		check(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
}

// with returns the image with other content in a file.
func (img image) with(name string, b []byte) image {
	out := maps.Clone(img)
	out[name] = b
	return out
}

// wantRot opens a damaged journal that n events were put into, in the epoch was, and
// reads it as the uplink does. What it gives was put in; what is missing is counted in
// DataLost; no number is given twice. It returns what is lost.
func wantRot(t *testing.T, dir, what string, n uint64, was string) (lost uint64) {
	t.Helper()
	j, err := Open(dir, Options{SegmentBytes: 4 << 10})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer j.Close() //nolint:errcheck // of the test
	next, err := j.Append(t.Context(), event("next"))
	if err != nil || j.Epoch() == was && next <= n {
		t.Fatalf("%s: the next event gets the number %d, %d were given: %v", what, next, n, err)
	}
	if _, err := j.Salvage(); err != nil { // as the uplink does at a CorruptError
		t.Fatalf("%s: salvage: %v", what, err)
	}
	records := all(t, j)
	have := uint64(0)
	for _, r := range records {
		if r.Superseded || r.Seq > n || j.Epoch() != was {
			continue
		}
		have++
		if !strings.HasPrefix(string(r.Body), fmt.Sprintf("event %d ", r.Seq)) {
			t.Fatalf("%s: event %d is %q", what, r.Seq, r.Body)
		}
	}
	lost = losses(t, records).Records
	if j.Epoch() == was && have+lost != n {
		t.Fatalf("%s: %d events, %d reported as lost, of %d", what, have, lost, n)
	}
	return lost
}

// TestOneBit flips a bit at the twentieth part of the active segment.
func TestOneBit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	img := imageOf(t, dir, Options{}, 1000)
	was, err := epochOf(dir)
	check(t, err)
	flip(t, filepath.Join(dir, ondisk.SegmentName(1)), int64(len(img[ondisk.SegmentName(1)])/20))
	if lost := wantRot(t, dir, "bit", 1000, was); lost != 1 {
		t.Errorf("%d events are lost, want 1", lost)
	}
	aside, err := filepath.Glob(filepath.Join(dir, "*.damaged-*"))
	if err != nil || len(aside) != 1 {
		t.Errorf("kept aside: %q, %v", aside, err)
	}
}

// TestEveryBit flips each bit of each file of a small journal.
func TestEveryBit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	img := imageOf(t, dir, Options{}, 6)
	was, err := epochOf(dir)
	check(t, err)
	step := 1
	if testing.Short() {
		step = 13
	}
	for name, whole := range img {
		for bit := 0; bit < 8*len(whole); bit += step {
			b := bytes.Clone(whole)
			b[bit/8] ^= 1 << (bit % 8)
			img.with(name, b).write(t, dir)
			if lost := wantRot(t, dir, fmt.Sprintf("%s bit %d", name, bit), 6, was); lost > 1 {
				t.Fatalf("%s bit %d: %d events are lost", name, bit, lost)
			}
		}
	}
}

var damages = flag.Int("damages", 400, "how often TestRot damages a journal")

// TestRot damages a journal of several segments at random.
func TestRot(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	other := imageOf(t, filepath.Join(t.TempDir(), "other"), Options{SegmentBytes: 4 << 10}, 300)
	img := imageOf(t, dir, Options{SegmentBytes: 4 << 10}, 300)
	was, err := epochOf(dir)
	check(t, err)
	names := slices.Sorted(maps.Keys(img))
	rounds := *damages
	if testing.Short() {
		rounds = 40
	}
	rng := rand.New(rand.NewPCG(8, 9))
	for i := range rounds {
		name := names[rng.IntN(len(names))]
		b := bytes.Clone(img[name])
		at := rng.IntN(len(b))
		kind := [...]string{"flip", "zeros", "cut", "swap", "other journal"}[i%5]
		switch kind {
		case "flip":
			for range 1 + rng.IntN(4) {
				b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
			}
		case "zeros":
			clear(b[at&^511 : min(at&^511+512, len(b))])
		case "cut":
			b = b[:at]
		case "swap":
			b = img[names[rng.IntN(len(names))]]
		case "other journal":
			if b = other[name]; b == nil {
				continue
			}
		}
		img.with(name, b).write(t, dir)
		wantRot(t, dir, fmt.Sprintf("%s of %s, round %d", kind, name, i), 300, was)
	}
}

// TestLostEnd cuts the last segment where a record ends: the mark knows that there
// were more.
func TestLostEnd(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	img := imageOf(t, dir, Options{}, 10)
	was, err := epochOf(dir)
	check(t, err)
	img.with(ondisk.SegmentName(1), img[ondisk.SegmentName(1)][:ondisk.HeadSize]).write(t, dir)
	if lost := wantRot(t, dir, "cut", 10, was); lost != 10 {
		t.Errorf("%d events are lost, want 10", lost)
	}
}
