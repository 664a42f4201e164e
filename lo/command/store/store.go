// Package store keeps on disk which commands a site has, and what its nodes have reported of them: a log for each command. It begins with
// what the LO wrote down when it took the command, and goes on with results.
//
// A log whose beginning is damaged counts as not held: it is set aside, and the CO publishes the command again. Results that are lost the
// nodes report again.
package store

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/recordlog"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/command/members"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

const (
	suffix  = ".log"
	dirPerm = 0o700
	// maxRecord bounds a record: the names of 60,000 nodes, of any length.
	maxRecord = 8 << 20
	role      = "lo/command"
)

// A Store is the directory of the logs. Its methods may be called concurrently.
type Store struct {
	disk disk.FS
	dir  string

	mu   sync.Mutex // protects what follows, and the logs
	logs map[command.ID]*recordlog.Log
	used []command.ID // those of logs, the one that was needed last at the end
}

// maxOpen bounds the logs that are open at a time, and with them file descriptors: a site may remember any number of commands.
const maxOpen = 32

// Open makes the directory where it does not exist, and reads what it has. damaged are the files that do not hold all that was stored
// in them. It fails with a *statefile.NewerError where a later release wrote a file.
func Open(d disk.FS, dir string) (s *Store, held []members.Held, damaged []*statefile.Damage, err error) {
	s = &Store{disk: d, dir: dir, logs: map[command.ID]*recordlog.Log{}}
	if err := d.MkdirAll(dir, dirPerm); err != nil {
		return nil, nil, nil, fmt.Errorf("create store of commands: %w", err)
	}
	if err := atomicfile.Clean(d, dir); err != nil {
		return nil, nil, nil, fmt.Errorf("clean store of commands: %w", err)
	}
	entries, err := d.List(dir)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("list store of commands: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		one, damage, err := s.load(command.ID(name))
		if err != nil {
			return nil, nil, nil, errors.Join(err, s.Close())
		}
		if damage != nil {
			damaged = append(damaged, damage)
		}
		if err := s.Release(command.ID(name)); err != nil {
			return nil, nil, nil, errors.Join(err, s.Close())
		}
		if one == nil {
			if err := s.Remove(command.ID(name)); err != nil {
				return nil, nil, nil, errors.Join(err, s.Close())
			}
			continue
		}
		held = append(held, *one)
	}
	return s, held, damaged, nil
}

func (s *Store) options(id command.ID) recordlog.Options {
	return recordlog.Options{
		Identity: statefile.Identity{Role: role, Name: string(id)}, Path: filepath.Join(s.dir, string(id)+suffix), Disk: s.disk, MaxRecord: maxRecord,
	}
}

// load reads the log of a command; nil: it does not say what the command is.
func (s *Store) load(id command.ID) (held *members.Held, damage *statefile.Damage, err error) {
	var bodies [][]byte
	one := &members.Held{}
	l, found, err := recordlog.OpenAt(s.options(id), func(body []byte, at int64, lost uint64) error {
		if len(bodies) == 0 {
			var r members.Record
			if err := protocol.Unmarshal(body, &r); err != nil {
				return err
			}
			if r.ID != id || lost > 0 {
				return fmt.Errorf("it does not begin with command %q", id)
			}
			one.Record, bodies = r, append(bodies, body)
			return nil
		}
		r := members.Result{Where: members.Where{At: at, Size: len(body)}}
		if err := command.Unmarshal(body, &r.Result); err != nil {
			return err
		}
		one.Results, bodies = append(one.Results, r), append(bodies, body)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	s.keep(id, l)
	if one.Record.ID != id {
		return nil, found.Damage, nil
	}
	if l.Broken() { // what is left of it goes into a file without damage
		if err := l.Replace(bodies); err != nil && !disk.IsFull(err) {
			return nil, found.Damage, err
		}
		at := recordlog.Start
		for i, body := range bodies {
			if i > 0 && i <= len(one.Results) {
				one.Results[i-1].Where.At = at
			}
			at += int64(len(body)) + recordlog.RecordHead
		}
	}
	return one, found.Damage, nil
}

// Create writes down a command. It is durable when it returns nil.
func (s *Store) Create(r *members.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, found, err := recordlog.Open(s.options(r.ID), func([]byte, uint64) error { return nil })
	if err != nil {
		return err
	}
	s.keep(r.ID, l)
	if !found.New {
		return errors.Join(fmt.Errorf("write down command %s: there is a log of it", r.ID), s.remove(r.ID))
	}
	if err := l.Append(protocol.Marshal(r)); err != nil {
		return errors.Join(err, s.remove(r.ID))
	}
	if err := l.Sync(); err != nil {
		return errors.Join(err, s.remove(r.ID))
	}
	return nil
}

// Append writes down results of one command, and returns where they are. They are durable when it returns nil.
func (s *Store) Append(id command.ID, results []command.Result) ([]members.Where, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[id]
	if l == nil {
		var err error
		if l, _, err = recordlog.Open(s.options(id), func([]byte, uint64) error { return nil }); err != nil {
			return nil, err
		}
	}
	s.keep(id, l)
	at := l.Size()
	var where []members.Where
	var bodies [][]byte
	for i := range results {
		body := protocol.Marshal(&results[i])
		bodies = append(bodies, body)
		where = append(where, members.Where{At: at, Size: len(body)})
		at += int64(len(body)) + recordlog.RecordHead
	}
	if err := l.Append(bodies...); err != nil {
		return nil, errors.Join(err, s.reopen(id))
	}
	if err := l.Sync(); err != nil {
		return nil, errors.Join(err, s.reopen(id))
	}
	return where, nil
}

// reopen has a log that failed opened again, with what is durable, before the next result.
func (s *Store) reopen(id command.ID) error {
	if !s.logs[id].Broken() {
		return nil
	}
	return s.release(id)
}

// Read returns the results that are at those positions of one command.
func (s *Store) Read(id command.ID, at []members.Where) ([]command.Result, error) {
	r, err := recordlog.OpenReader(s.options(id))
	if err != nil {
		return nil, err
	}
	var out []command.Result
	for _, w := range at {
		body, err := r.ReadAt(w.At, w.Size)
		if err != nil {
			return out, errors.Join(err, r.Close())
		}
		var m command.Result
		if err := command.Unmarshal(body, &m); err != nil {
			return out, errors.Join(err, r.Close())
		}
		out = append(out, m)
	}
	return out, r.Close()
}

// keep notes that a log is open, and was needed just now, and closes the one that was not for the longest time where there are too many.
func (s *Store) keep(id command.ID, l *recordlog.Log) {
	s.logs[id] = l
	s.used = append(slices.DeleteFunc(s.used, func(other command.ID) bool { return other == id }), id)
	if len(s.used) > maxOpen {
		_ = s.release(s.used[0]) // what it holds is durable
	}
}

// Release closes the log of a command that has ended, until it is needed again.
func (s *Store) Release(id command.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.release(id)
}

func (s *Store) release(id command.ID) error {
	l := s.logs[id]
	delete(s.logs, id)
	s.used = slices.DeleteFunc(s.used, func(other command.ID) bool { return other == id })
	if l == nil {
		return nil
	}
	return l.Close()
}

// Remove forgets a command durably.
func (s *Store) Remove(id command.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(id)
}

func (s *Store) remove(id command.ID) error {
	return errors.Join(s.release(id), atomicfile.Remove(s.disk, s.options(id).Path))
}

// Close closes all logs.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(s.logs)) {
		errs = append(errs, s.release(id))
	}
	return errors.Join(errs...)
}
