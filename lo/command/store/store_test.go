package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/lo/command/members"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

func id(n int) command.ID { return command.ID(fmt.Sprintf("%032x", n)) }

func result(n int, node string, state command.State) command.Result {
	return command.Result{V: 1, ID: id(n), Node: protocol.NodeID(node), State: state, Output: strings.Repeat(node, 10)}
}

func open(t *testing.T, d *simdisk.Disk) (*Store, []members.Held, int) {
	t.Helper()
	s, held, damaged, err := Open(d, "/commands")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // closed already by some tests
	return s, held, len(damaged)
}

// TestPower writes commands and results, and cuts the power: what was acknowledged is there, and can be read where it was said to be.
func TestPower(t *testing.T) {
	t.Parallel()
	d := simdisk.New(1)
	s, held, _ := open(t, d)
	if len(held) != 0 {
		t.Fatalf("a new store holds %+v", held)
	}
	record := members.Record{ID: id(1), Kind: command.Restart, IssuedMillis: 1, DeadlineMillis: 2, Envelope: []byte{1, 2}, Nodes: []protocol.NodeID{"a", "b"}}
	if err := s.Create(&record); err != nil {
		t.Fatal(err)
	}
	first, err := s.Append(id(1), []command.Result{result(1, "a", command.Running), result(1, "b", command.Done)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Release(id(1)); err != nil { // it is opened again
		t.Fatal(err)
	}
	second, err := s.Append(id(1), []command.Result{result(1, "a", command.Done)})
	if err != nil {
		t.Fatal(err)
	}
	d.Restart(true)
	s, held, damaged := open(t, d)
	if len(held) != 1 || damaged != 0 {
		t.Fatalf("%d commands, %d damaged", len(held), damaged)
	}
	if diff := cmp.Diff(record, held[0].Record); diff != "" {
		t.Error(diff)
	}
	want := []command.Result{result(1, "a", command.Running), result(1, "b", command.Done), result(1, "a", command.Done)}
	for i, w := range append(first, second...) {
		if got := held[0].Results[i]; got.Where != w || cmp.Diff(want[i], got.Result) != "" {
			t.Errorf("result %d: %+v at %+v, want %+v at %+v", i, got.Result, got.Where, want[i], w)
		}
		got, err := s.Read(id(1), []members.Where{w})
		if err != nil || len(got) != 1 || cmp.Diff(want[i], got[0]) != "" {
			t.Errorf("read again: %+v, %v", got, err)
		}
	}
	if err := s.Remove(id(1)); err != nil {
		t.Fatal(err)
	}
	d.Restart(true)
	if _, held, _ := open(t, d); len(held) != 0 {
		t.Error("a command that was removed is there")
	}
}

// TestDamage flips a bit of each part: a command whose record is damaged is not held, and what is left of the others is.
func TestDamage(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]struct{ held, results int }{"record": {0, 0}, "result": {1, 1}} {
		d := simdisk.New(1)
		s, _, _ := open(t, d)
		if err := s.Create(&members.Record{ID: id(1), Kind: "record-of-it", Nodes: []protocol.NodeID{"a", "b"}}); err != nil {
			t.Fatal(err)
		}
		broken := result(1, "a", command.Done)
		broken.Output = "result-of-it"
		if _, err := s.Append(id(1), []command.Result{broken, result(1, "b", command.Done)}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := d.Edit("/commands/"+string(id(1))+suffix, func(b []byte) []byte {
			b[strings.Index(string(b), at+"-of-it")] ^= 1
			return b
		}); err != nil {
			t.Fatal(err)
		}
		s, held, damaged := open(t, d)
		if damaged != 1 || len(held) != want.held {
			t.Fatalf("%s: %d held, %d damaged", at, len(held), damaged)
		}
		if want.held == 0 {
			if err := s.Create(&members.Record{ID: id(1)}); err != nil { // it is received anew
				t.Error(err)
			}
			continue
		}
		if got := held[0].Results; len(got) != want.results || got[0].Node != "b" {
			t.Fatalf("%s: results %+v", at, got)
		}
		if got, err := s.Read(id(1), []members.Where{held[0].Results[0].Where}); err != nil || got[0].Node != "b" {
			t.Errorf("%s: read again: %+v, %v", at, got, err)
		}
		if _, err := s.Append(id(1), []command.Result{result(1, "a", command.Done)}); err != nil {
			t.Errorf("%s: append: %v", at, err)
		}
	}
}

// TestMany holds a command for ten thousand nodes.
func TestMany(t *testing.T) {
	t.Parallel()
	d := simdisk.New(1)
	s, _, _ := open(t, d)
	r := members.Record{ID: id(1)}
	var results []command.Result
	for n := range 10_000 {
		r.Nodes = append(r.Nodes, protocol.NodeID(fmt.Sprintf("n%05d", n)))
		results = append(results, result(1, fmt.Sprintf("n%05d", n), command.Done))
	}
	if err := s.Create(&r); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(id(1), results); err != nil {
		t.Fatal(err)
	}
	d.Restart(true)
	if _, held, _ := open(t, d); len(held) != 1 || len(held[0].Record.Nodes) != 10_000 || len(held[0].Results) != 10_000 {
		t.Error("not all of it is there")
	}
}

// TestOpenLogs has more commands than logs may be open: what each has is there.
func TestOpenLogs(t *testing.T) {
	t.Parallel()
	d := simdisk.New(1)
	s, _, _ := open(t, d)
	const commands = 3 * maxOpen
	for n := range commands {
		if err := s.Create(&members.Record{ID: id(n), Kind: command.Restart, IssuedMillis: 1, DeadlineMillis: 2, Envelope: []byte{1}, Nodes: []protocol.NodeID{"a"}}); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 2 {
		for n := range commands {
			if _, err := s.Append(id(n), []command.Result{result(n, "a", command.Running)}); err != nil {
				t.Fatal(err)
			}
			if len(s.logs) > maxOpen || len(s.used) != len(s.logs) {
				t.Fatalf("%d logs are open, %d are noted: want %d at most", len(s.logs), len(s.used), maxOpen)
			}
		}
		s, held, damaged := open(t, d)
		if len(held) != commands || damaged > 0 || len(s.logs) > 0 {
			t.Fatalf("%d commands, %d damaged, %d logs open", len(held), damaged, len(s.logs))
		}
		for _, h := range held {
			if len(h.Results) != round+1 {
				t.Errorf("command %s has %d results, want %d", h.Record.ID, len(h.Results), round+1)
			}
		}
		_ = s.Close()
	}
}
