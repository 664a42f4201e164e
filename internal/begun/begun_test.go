package begun

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
)

var stores = []Store{{Role: "a file", Path: "down/positions"}, {Role: "a directory", Path: "sessions"}, {Role: "never begun", Path: "other"}}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// begin makes a disk with two stores of which nothing is durable yet.
func begin(t *testing.T, seed uint64) *simdisk.Disk {
	t.Helper()
	d := simdisk.New(seed)
	for _, dir := range []string{"/s/state", "/s/down", "/s/sessions"} {
		must(t, d.MkdirAll(dir, 0o700))
	}
	for _, path := range []string{"/s/down/positions", "/s/sessions/segment"} {
		f, err := d.Open(path, os.O_CREATE|os.O_RDWR, 0o600)
		must(t, err)
		must(t, f.Close())
	}
	return d
}

// open returns the note and the roles of what is damaged.
func open(t *testing.T, d disk.FS) (n *Note, damaged []string) {
	t.Helper()
	n, found, err := Open(Options{Disk: d, Dir: "/s", File: File{Role: "lo/begun", Path: "state/begun.json"}, Logger: slog.New(slog.DiscardHandler)}, stores...)
	must(t, err)
	for _, one := range found {
		damaged = append(damaged, one.Role)
	}
	return n, damaged
}

func TestWhatWasBegunIsMissed(t *testing.T) {
	t.Parallel()
	d := begin(t, 1)
	n, damaged := open(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.Run(ctx)
	must(t, d.Remove("/s/down/positions"))
	must(t, d.Remove("/s/sessions/segment")) // the directory alone is no store
	n.Run(ctx)                               // it was removed while the site ran
	n, again := open(t, d)
	if want := []string{"a file", "a directory"}; len(damaged) > 0 || !slices.Equal(again, want) {
		t.Errorf("missing are %q before there was a note, and then %q, want %q", damaged, again, want)
	}
	n.Run(ctx) // what was not reported stays to be
	if n, damaged = open(t, d); len(damaged) != 2 {
		t.Errorf("missing are %q at a start after one that could not report them", damaged)
	}
	must(t, n.Reported())
	if _, damaged = open(t, d); len(damaged) > 0 {
		t.Errorf("missing are %q at a start after one that came no further than its report", damaged)
	}
	n.Run(ctx)
	if _, damaged = open(t, d); len(damaged) > 0 {
		t.Errorf("missing a second time are %q", damaged)
	}
}

// A store that is begun anew before its loss is reported is reported all the same, even where nothing but Open ran.
func TestBegunAnew(t *testing.T) {
	t.Parallel()
	d := begin(t, 1)
	n, _ := open(t, d)
	must(t, n.save())
	must(t, d.Remove("/s/down/positions"))
	n, damaged := open(t, d)
	if !slices.Equal(damaged, []string{"a file"}) {
		t.Fatalf("missing are %q", damaged)
	}
	f, err := d.Open("/s/down/positions", os.O_CREATE|os.O_RDWR, 0o600)
	must(t, errors.Join(err, f.Close()))
	for _, run := range []func(){func() {}, func() { must(t, n.save()) }} {
		run()
		if n, damaged = open(t, d); !slices.Equal(damaged, []string{"a file"}) {
			t.Errorf("missing are %q at a start after one that was killed before its report", damaged)
		}
	}
	must(t, n.Reported())
	if _, damaged = open(t, d); len(damaged) > 0 {
		t.Errorf("missing are %q after the report", damaged)
	}
}

// A store is missing where a file has the place of its folder.
func TestFileForFolder(t *testing.T) {
	t.Parallel()
	n := &Note{disk: disk.OS, dir: t.TempDir()}
	must(t, os.WriteFile(filepath.Join(n.dir, "down"), []byte("no folder"), 0o600))
	if n.there(stores[0]) {
		t.Error("a store is there whose folder is a file")
	}
}

// noSync is a disk that makes no names of one directory durable.
type noSync struct {
	disk.FS
	dir string
}

func (d noSync) SyncDir(path string) error {
	if path == d.dir {
		return errors.New("input/output error")
	}
	return d.FS.SyncDir(path)
}

// A store whose names are not durable keeps no other one from being noted.
func TestOthersAreNoted(t *testing.T) {
	t.Parallel()
	d := begin(t, 1)
	n, _ := open(t, noSync{d, "/s/down"})
	if err := n.save(); err == nil {
		t.Error("names were not made durable, and nothing says so")
	}
	must(t, d.Remove("/s/sessions/segment"))
	if _, damaged := open(t, d); !slices.Equal(damaged, []string{"a directory"}) {
		t.Errorf("missing are %q", damaged)
	}
}

// A note that is damaged is reported, and nothing else.
func TestDamagedNote(t *testing.T) {
	t.Parallel()
	d := begin(t, 1)
	n, _ := open(t, d)
	must(t, n.save())
	f, err := d.Open("/s/"+"state/begun.json", os.O_RDWR, 0)
	must(t, err)
	must(t, errors.Join(f.Truncate(9), f.Close()))
	must(t, d.Remove("/s/down/positions"))
	if _, damaged := open(t, d); !slices.Equal(damaged, []string{"lo/begun"}) {
		t.Errorf("damaged are %q", damaged)
	}
}

// A power cut at each operation of a save leaves no note of a store that it took away.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		for cut, whole := 1, false; !whole; cut++ {
			d := begin(t, seed)
			n, _ := open(t, d)
			d.CutAt(cut)
			whole = n.save() == nil && !d.Off()
			d.Restart(true)
			_, err := d.Stat("/s/" + "state/begun.json")
			if err != nil && !errors.Is(err, fs.ErrNotExist) || whole && err != nil {
				t.Fatal(err)
			}
			if _, damaged := open(t, d); len(damaged) > 0 {
				t.Errorf("seed %d, a cut at operation %d: missing are %s", seed, cut, strings.Join(damaged, ", "))
			}
		}
	}
}
