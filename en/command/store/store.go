// Package store keeps on disk what a node remembers of the commands that it received: a log whose last record of a command counts.
package store

import (
	"fmt"
	"path/filepath"

	"github.com/colonyfleet/colony/en/command/once"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/recordlog"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

const (
	file = "commands.log"
	role = "en/commands"
	// maxRecord bounds a record: a command that is executed again after a crash, or a result.
	maxRecord = command.MaxArgs + command.MaxOutput + 256<<10
	// large is the size from which on the log is replaced by one without history, in bytes.
	large = 2 << 20
)

// record is one of the log.
type record struct {
	Meta  *once.Meta  `cbor:"1,keyasint,omitempty"`
	Entry *once.Entry `cbor:"2,keyasint,omitempty"`
}

// A Store is the log. Its methods are called one at a time.
type Store struct {
	log  *recordlog.Log
	size int64 // after it was replaced last
}

// Open opens the log in the directory, and returns what it has. Where it was damaged, something that was executed may be missing: the agent
// then begins to remember anew, and what is left counts all the same.
func Open(d disk.FS, dir string) (s *Store, meta once.Meta, entries []once.Entry, damage *statefile.Damage, err error) {
	l, found, err := recordlog.Open(recordlog.Options{
		Identity: statefile.Identity{Role: role}, Path: filepath.Join(dir, file), Disk: d, MaxRecord: maxRecord,
	}, func(body []byte, _ uint64) error {
		var r record
		if err := protocol.Unmarshal(body, &r); err != nil {
			return err
		}
		if r.Meta != nil {
			meta = *r.Meta
		}
		if r.Entry != nil {
			entries = append(entries, *r.Entry)
		}
		return nil
	})
	if err != nil {
		return nil, meta, nil, nil, fmt.Errorf("open record of commands: %w", err)
	}
	if found.Damage != nil {
		meta.BornMillis = 0
	}
	return &Store{log: l, size: l.Size()}, meta, entries, found.Damage, nil
}

// Save writes entries, durably, and meta where it is not nil.
func (s *Store) Save(meta *once.Meta, entries ...once.Entry) error {
	if err := s.append(meta, entries...); err != nil {
		return err
	}
	if err := s.log.Sync(); err != nil {
		return fmt.Errorf("save commands: %w", err)
	}
	return nil
}

// Note writes an entry that may be lost in a crash: its result is sent once more then.
func (s *Store) Note(e once.Entry) error { return s.append(nil, e) }

func (s *Store) append(meta *once.Meta, entries ...once.Entry) error {
	var bodies [][]byte
	if meta != nil {
		bodies = append(bodies, protocol.Marshal(record{Meta: meta}))
	}
	for i := range entries {
		bodies = append(bodies, protocol.Marshal(record{Entry: &entries[i]}))
	}
	if err := s.log.Append(bodies...); err != nil {
		return fmt.Errorf("save commands: %w", err)
	}
	return nil
}

// Large reports whether the log is to be replaced by one without history: it has grown, or an earlier write failed.
func (s *Store) Large() bool { return s.log.Broken() || s.log.Size() > s.size+large }

// Replace replaces the log by one that has these alone.
func (s *Store) Replace(meta once.Meta, entries []once.Entry) error {
	bodies := [][]byte{protocol.Marshal(record{Meta: &meta})}
	for i := range entries {
		bodies = append(bodies, protocol.Marshal(record{Entry: &entries[i]}))
	}
	if err := s.log.Replace(bodies); err != nil {
		return fmt.Errorf("save commands: %w", err)
	}
	s.size = s.log.Size()
	return nil
}

// Close closes the log.
func (s *Store) Close() error { return s.log.Close() }
