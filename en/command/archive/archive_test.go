package archive_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/colonyfleet/colony/en/command/archive"
	"github.com/colonyfleet/colony/en/command/archive/archivetest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestArchive(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := archive.New(&b, "gw-1", time.Unix(1_700_000_000, 0))
	must(t, w.Add("a.txt", []byte("whole")))
	must(t, w.Close())
	if got, want := archivetest.Read(t, b.Bytes()), (map[string]string{"gw-1/a.txt": "whole"}); !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A file that became shorter while it was read, or cannot be read to its end, is in the archive as far as it was, and said to be so.
func TestShortFiles(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := archive.New(&b, "gw-1", time.Unix(1_700_000_000, 0))
	must(t, w.Copy("short", time.Unix(1, 0), 8, strings.NewReader("four")))
	must(t, w.Copy("broken", time.Unix(1, 0), 4, io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(errors.New("input/output error")))))
	w.Fault("absent", errors.New("no such file"))
	must(t, w.Close())
	got := archivetest.Read(t, b.Bytes())
	if got["gw-1/short"] != "four\x00\x00\x00\x00" || got["gw-1/broken"] != "ab\x00\x00" {
		t.Errorf("got %q", got)
	}
	for _, want := range []string{"short: it has 4 of 8 bytes", "broken: it has 2 of 4 bytes, and zeros behind them: input/output error", "absent: no such file"} {
		if !strings.Contains(got["gw-1/"+archive.Faults], want) {
			t.Errorf("%q is not among the faults:\n%s", want, got["gw-1/"+archive.Faults])
		}
	}
}

// An archive that cannot be written says so.
func TestBrokenWriter(t *testing.T) {
	t.Parallel()
	w := archive.New(writer(func([]byte) (int, error) { return 0, io.ErrClosedPipe }), "gw-1", time.Unix(1, 0))
	if err := errors.Join(w.Add("a", make([]byte, 1<<20)), w.Close()); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
