package store

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/command/once"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/protocol/command"
)

func entry(n int) once.Entry {
	return once.Entry{ID: command.ID(fmt.Sprintf("%032x", n)), IssuedMillis: int64(n), Begun: true}
}

func open(t *testing.T, d *simdisk.Disk) (s *Store, meta once.Meta, entries []once.Entry, damaged bool) {
	t.Helper()
	if err := d.MkdirAll("/state", 0o700); err != nil {
		t.Fatal(err)
	}
	s, meta, entries, damage, err := Open(d, "/state")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // closed already by some tests
	return s, meta, entries, damage != nil
}

// TestPower saves entries, and cuts the power: what Save returned for is there, also after the log was replaced.
func TestPower(t *testing.T) {
	t.Parallel()
	d := simdisk.New(1)
	s, _, _, _ := open(t, d)
	meta := once.Meta{Agent: "a", BornMillis: 7}
	if err := s.Save(&meta, entry(1), entry(2)); err != nil {
		t.Fatal(err)
	}
	if err := s.Note(once.Entry{ID: entry(1).ID, Acked: true}); err != nil {
		t.Fatal(err)
	}
	d.Restart(true)
	s, got, entries, _ := open(t, d)
	if cmp.Diff(meta, got) != "" || len(entries) < 2 || cmp.Diff(entries[:2], []once.Entry{entry(1), entry(2)}) != "" {
		t.Errorf("after a power cut: %+v, %+v", got, entries)
	}
	big := entry(3)
	big.Command = bytes.Repeat([]byte{1}, command.MaxArgs)
	for !s.Large() {
		if err := s.Save(nil, big); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Replace(meta, []once.Entry{entry(2)}); err != nil || s.Large() {
		t.Errorf("replaced: %v, large %t", err, s.Large())
	}
	d.Restart(true)
	if _, got, entries, _ := open(t, d); cmp.Diff(meta, got) != "" || cmp.Diff(entries, []once.Entry{entry(2)}) != "" {
		t.Errorf("after it was replaced: %+v, %+v", got, entries)
	}
}

// TestDamage flips a bit: what is left counts, and the agent begins to remember anew.
func TestDamage(t *testing.T) {
	t.Parallel()
	d := simdisk.New(1)
	s, _, _, _ := open(t, d)
	if err := s.Save(&once.Meta{Agent: "a", BornMillis: 7}, entry(1), entry(2)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Edit("/state/"+file, func(b []byte) []byte {
		b[bytes.Index(b, []byte(entry(1).ID))] ^= 1
		return b
	}); err != nil {
		t.Fatal(err)
	}
	s, meta, entries, damaged := open(t, d)
	if !damaged || meta.BornMillis != 0 || meta.Agent != "a" || len(entries) != 1 || entries[0].ID != entry(2).ID {
		t.Errorf("damaged %t: %+v, %+v", damaged, meta, entries)
	}
	if !s.Large() {
		t.Error("a damaged log is not to be replaced")
	}
}
