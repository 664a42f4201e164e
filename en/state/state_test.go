package state

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func open(t *testing.T, dir string) (*Store, *Contents) {
	t.Helper()
	s, c, err := Open(disk.OS, dir, nil, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // closed already by some tests
	return s, c
}

func record(name string) plan.Record {
	return plan.Record{
		Deployment: protocol.DeploymentName(name), State: lifecycle.Installed, Digest: protocol.DigestOf([]byte{1, 2}),
		Spec: []byte{1, 2}, Attempt: 2, Position: protocol.Position{Epoch: 1, Generation: 7},
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
	desired := protocol.Marshal(protocol.NodeDesired{V: 1, Node: "n", Position: protocol.Position{Epoch: 1, Generation: 3}})
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

// TestLargestRecord keeps a version that may give way again to the one before it, both as long
// as a spec may be.
func TestLargestRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := open(t, dir)
	spec, earlier := make([]byte, protocol.MaxMessage*3/8), make([]byte, protocol.MaxMessage*3/8)
	earlier[0] = 1
	want := plan.Record{
		Deployment: "a", State: lifecycle.Installed, Digest: protocol.DigestOf(spec), Spec: spec, Active: protocol.DigestOf(spec), ActiveSpec: spec,
		Fallback: plan.Fallback{Healthy: protocol.DigestOf(spec), EarlierSpec: earlier},
	}
	if err := errors.Join(s.SaveRecord(want), s.Close()); err != nil {
		t.Fatal(err)
	}
	_, c := open(t, dir)
	if diff := cmp.Diff([]plan.Record{want}, c.Records); diff != "" || len(c.Damaged) > 0 {
		t.Errorf("damaged %v; %s", c.Damaged, diff[:min(len(diff), 500)])
	}
}

// contentsOf makes a state directory and returns its files and what is in them.
func contentsOf(t *testing.T, dir string) (files map[string][]byte, want *Contents) {
	t.Helper()
	s, c := open(t, dir)
	desired := protocol.Marshal(protocol.NodeDesired{V: 1, Node: "n", Position: protocol.Position{Epoch: 1, Generation: 3}})
	if err := errors.Join(s.SaveRecord(record("a")), s.SaveRecord(record("b")), s.SaveDesired(desired), s.SaveCounter(2048), s.Close()); err != nil {
		t.Fatal(err)
	}
	files = map[string][]byte{}
	for _, name := range []string{agentFile, counterFile, desiredFile, "deployments/a.cbor", "deployments/b.cbor"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = b
	}
	return files, &Contents{Agent: c.Agent, Desired: desired, Records: []plan.Record{record("a"), record("b")}, Counter: 2048}
}

// TestEveryBit flips bits of each file, cuts it, zeroes it and swaps it with another:
// the directory opens, each field is as stored or empty, the damage is reported, the id
// stays, and the counter never goes back.
func TestEveryBit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files, want := contentsOf(t, dir)
	check := func(what, damaged string, b []byte) {
		t.Helper()
		for name, whole := range files {
			if name == damaged {
				whole = b
			}
			if err := os.WriteFile(filepath.Join(dir, name), whole, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, c, err := Open(disk.OS, dir, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatalf("%s of %s: %v", what, damaged, err)
		}
		defer s.Close() //nolint:errcheck // of the test
		if len(c.Damaged) != 1 || filepath.Join(dir, damaged) != c.Damaged[0].Path || c.Damaged[0].Aside == "" {
			t.Fatalf("%s of %s: damaged %v", what, damaged, c.Damaged)
		}
		if c.Agent != want.Agent || c.Renewed || c.Counter < want.Counter {
			t.Fatalf("%s of %s: agent %s, want %s; counter %d, want %d at least", what, damaged, c.Agent, want.Agent, c.Counter, want.Counter)
		}
		if c.Desired != nil && !slices.Equal(c.Desired, want.Desired) || (c.Desired == nil) != (damaged == desiredFile) {
			t.Fatalf("%s of %s: desired state %x", what, damaged, c.Desired)
		}
		records := slices.DeleteFunc(slices.Clone(want.Records), func(r plan.Record) bool { return damaged == "deployments/"+string(r.Deployment)+".cbor" })
		if diff := cmp.Diff(records, c.Records); diff != "" {
			t.Fatalf("%s of %s: records (-want +got):\n%s", what, damaged, diff)
		}
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	for name, whole := range files {
		for bit := 0; bit < 8*len(whole); bit += step {
			b := slices.Clone(whole)
			b[bit/8] ^= 1 << (bit % 8)
			check(fmt.Sprintf("bit %d", bit), name, b)
		}
		for other, b := range files {
			if other != name {
				check("swap with "+other, name, b)
			}
		}
		check("zeros", name, make([]byte, len(whole)))
		check("half", name, whole[:len(whole)/2])
		check("nothing", name, nil)
	}
}

// TestLostCounter loses the counter again and again: each time it goes on above all
// that was given, also without a record of it.
func TestLostCounter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	given := uint64(0)
	for range 5 {
		s, c := open(t, dir)
		if c.Counter < given || c.Renewed {
			t.Fatalf("counter %d after %d, renewed %t", c.Counter, given, c.Renewed)
		}
		given = c.Counter + 5000
		if err := errors.Join(s.SaveCounter(given), s.Close(), os.Remove(filepath.Join(dir, counterFile))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostIdentity loses both files that hold the id.
func TestLostIdentity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, want := contentsOf(t, dir)
	for _, name := range []string{agentFile, counterFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, c := open(t, dir); c.Agent == want.Agent || !c.Renewed || len(c.Records) != 2 {
		t.Errorf("agent %s, renewed %t, %d records", c.Agent, c.Renewed, len(c.Records))
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := open(t, dir)
	if _, _, err := Open(disk.OS, dir, nil, slog.New(slog.DiscardHandler)); protocol.KindOf(err) != protocol.Conflict {
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

// A file that is none of the agent is reported at each start, and left alone; one that was set aside is not.
func TestFilesThatNobodyReads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := open(t, dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	foreign, aside := filepath.Join(dir, recordDir, "web.cbos"), filepath.Join(dir, recordDir, "web.cbor.damaged-1")
	if err := errors.Join(os.WriteFile(foreign, []byte("x"), 0o600), os.WriteFile(aside, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	s, c, err := Open(disk.OS, dir, nil, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if len(c.Damaged) != 0 || !strings.Contains(log.String(), foreign) || strings.Contains(log.String(), aside) {
		t.Errorf("damaged %v, log %s; want %s named alone", c.Damaged, log.String(), foreign)
	}
	for _, path := range []string{foreign, aside} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}
