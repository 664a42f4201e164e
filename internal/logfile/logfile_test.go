package logfile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestBoundAndLastLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := Bound(path, 10); err != nil || LastLine(path, 10) != "" {
		t.Errorf("a log that is not there: %v, %q", err, LastLine(path, 10))
	}
	write(t, path, "one\ntwo\xff\n\n")
	if got := LastLine(path, 10); got != "two" {
		t.Errorf("last line %q, want two", got)
	}
	if err := Bound(path, 5); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		t.Errorf("%v %v, want it emptied in place", info, err)
	}
	if got := LastLine(path, 10); got != "wo" {
		t.Errorf("last line %q, want that of the file before", got)
	}
}

func TestKeepIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, kept := filepath.Join(dir, "log"), filepath.Join(dir, "kept")
	if err := Keep(path, kept, "none", 3); err != nil {
		t.Fatalf("no log: %v", err)
	}
	write(t, path, "")
	if err := Keep(path, kept, "empty", 3); err != nil {
		t.Fatalf("empty log: %v", err)
	}
	for i := range 5 {
		write(t, path, "text")
		if i == 4 {
			write(t, path+".1", "before")
		}
		at := time.Unix(int64(1000+i), 0)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		if err := Keep(path, kept, fmt.Sprint("c", i), 3); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(kept)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"c3", "c4", "c4.1"}, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}
