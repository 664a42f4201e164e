package state

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func open(t *testing.T, dir string) (*Store, *Contents) {
	t.Helper()
	s, c, err := Open(dir, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // closed already by some tests
	return s, c
}

func record(name string) plan.Record {
	return plan.Record{
		Deployment: protocol.DeploymentName(name), State: lifecycle.Installed, Digest: protocol.DigestOf([]byte(name)),
		Spec: []byte{1, 2}, Attempt: 2, Generation: 7, Epoch: "e",
		Reports: []protocol.DeploymentStatus{{V: 1, Seq: 9, State: lifecycle.Installed, Actor: lifecycle.EN}},
	}
}

func TestStateSurvives(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "state")
	s, c := open(t, dir)
	if c.Agent == "" || c.Desired != nil || c.Records != nil || c.Counter != 0 {
		t.Fatalf("new directory holds %+v", c)
	}
	desired := protocol.Marshal(protocol.NodeDesired{V: 1, Node: "n", Generation: 3, Epoch: "e"})
	for _, err := range []error{
		s.SaveRecord(record("a")), s.SaveRecord(record("b")), s.SaveRecord(record("a")), s.RemoveRecord("b"), s.RemoveRecord("b"),
		s.SaveDesired(desired), s.SaveCounter(1 << 40), s.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, again := open(t, dir)
	want := &Contents{Agent: c.Agent, Desired: desired, Records: []plan.Record{record("a")}, Counter: 1 << 40}
	if diff := cmp.Diff(want, again); diff != "" {
		t.Error(diff)
	}
}

func TestDamagedFilesAreSetAside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := open(t, dir)
	if err := s.SaveRecord(record("good")); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		desiredFile: "not cbor", recordPath("torn"): "\xa1", recordPath("other"): string(protocol.Marshal(record("good"))),
		filepath.Join(recordDir, ".tmp-x.cbor-1"): "half",
	} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, c := open(t, dir)
	if c.Desired != nil || len(c.Records) != 1 || c.Records[0].Deployment != "good" {
		t.Errorf("read %+v, want the one good record only", c)
	}
	bad, err := filepath.Glob(filepath.Join(dir, recordDir, "*.bad"))
	if err != nil || len(bad) != 2 {
		t.Errorf("kept aside: %q, %v; want 2 records", bad, err)
	}
}

func TestDamagedCounterIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, counterFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(dir, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a damaged counter was taken for 0")
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := open(t, dir)
	if _, _, err := Open(dir, slog.New(slog.DiscardHandler)); protocol.KindOf(err) != protocol.Conflict {
		t.Fatalf("second Open: %v, want a conflict", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

// A child process holds the lock's file from its fork until its exec.
func TestCloseFreesTheDirectoryWhileAChildIsForked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := open(t, dir)
	child, err := syscall.Dup(openFile(t, filepath.Join(dir, lockFile)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(child) }() // nothing was written to it
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

// openFile returns the descriptor under which this process has a file open.
func openFile(t *testing.T, path string) int {
	t.Helper()
	const own = "/proc/self/fd"
	entries, err := os.ReadDir(own)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(own, e.Name())); err != nil || to != path {
			continue
		}
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	t.Fatalf("%s is not open", path)
	return -1
}
