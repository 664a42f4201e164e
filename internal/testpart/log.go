package testpart

import (
	"bytes"
	"log/slog"
	"os"
	"testing"

	"github.com/colonyfleet/colony/internal/logfile"
)

// shown is how much of the end of a part's log is shown where the test has failed, in bytes.
const shown = 16 << 10

// Logger returns a logger for a part of a test, whose last lines are shown where the test fails. With the environment variable
// COLONY_TEST_LOG each line is shown when it is written. It may be used after the test has ended.
func Logger(t testing.TB) *slog.Logger {
	t.Helper()
	if os.Getenv("COLONY_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	end := &logfile.Tail{Max: shown}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of a part's log:\n%s", whole(end))
		}
	})
	return slog.New(slog.NewTextHandler(end, nil))
}

// whole returns the lines that a log ends with, without the first where the log may have a part of it alone.
func whole(end *logfile.Tail) []byte {
	b := end.Bytes()
	if len(b) == end.Max {
		_, b, _ = bytes.Cut(b, []byte("\n"))
	}
	return b
}
