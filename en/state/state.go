// Package state keeps what a node must know after a crash on its disk: one small
// file per deployment, the desired state as it was received, the agent's id and
// the counter of its reports. Each file is replaced whole, so that a crash or a
// power cut at any moment leaves the old or the new content.
package state

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/protocol"
)

const (
	agentFile   = "agent-id"
	desiredFile = "desired.cbor"
	counterFile = "report-counter"
	lockFile    = "lock"
	recordDir   = "deployments"
	recordExt   = ".cbor"
)

// A Store is the state directory of one agent. It is held exclusively: a second
// Open of the same directory is refused, also by another process. Writes of
// different files may be concurrent, writes of one file may not.
type Store struct {
	dir  string
	lock *filelock.Lock
}

// Contents is all that a Store held when it was opened.
type Contents struct {
	// Agent is the random id of the state directory.
	Agent string
	// Desired is the last NodeDesired as it was received; nil if there is none.
	Desired []byte
	Records []plan.Record
	// Counter is the last value given to SaveCounter.
	Counter uint64
}

// Open makes the directory if it is not there, takes it, and reads it. A file
// that cannot be read as what it should be is kept aside with the ending .bad and
// logged: the desired state, or the LO, brings its content back.
func Open(dir string, log *slog.Logger) (*Store, *Contents, error) {
	records := filepath.Join(dir, recordDir)
	if err := os.MkdirAll(records, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make state directory: %w", err)
	}
	s := &Store{dir: dir}
	if err := s.claim(); err != nil {
		return nil, nil, err
	}
	c, err := s.load(log)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, c, nil
}

// Close gives the directory free.
func (s *Store) Close() error {
	return s.lock.Close()
}

func (s *Store) claim() error {
	lock, err := filelock.Acquire(filepath.Join(s.dir, lockFile))
	if errors.Is(err, filelock.ErrHeld) {
		return protocol.Errorf(protocol.Conflict,
			"state directory %s is in use by another agent: stop that one, or give this one a directory of its own: %w", s.dir, err)
	}
	if err != nil {
		return fmt.Errorf("lock state directory: %w", err)
	}
	s.lock = lock
	return nil
}

func (s *Store) load(log *slog.Logger) (*Contents, error) {
	c := &Contents{}
	if err := errors.Join(atomicfile.Clean(s.dir), atomicfile.Clean(filepath.Join(s.dir, recordDir))); err != nil {
		return nil, fmt.Errorf("clean state directory: %w", err)
	}
	id, err := s.read(agentFile)
	if err != nil {
		return nil, err
	}
	if c.Agent = strings.TrimSpace(string(id)); c.Agent == "" {
		c.Agent = rand.Text()
		if err := s.write(agentFile, []byte(c.Agent+"\n")); err != nil {
			return nil, fmt.Errorf("save agent id: %w", err)
		}
	}
	if err := s.loadDesired(c, log); err != nil {
		return nil, err
	}
	if err := s.loadCounter(c); err != nil {
		return nil, err
	}
	return c, s.loadRecords(c, log)
}

func (s *Store) loadDesired(c *Contents, log *slog.Logger) error {
	b, err := s.read(desiredFile)
	if err != nil || b == nil {
		return err
	}
	if err := protocol.Unmarshal(b, &protocol.NodeDesired{}); err != nil {
		return s.setAside(desiredFile, err, log)
	}
	c.Desired = b
	return nil
}

func (s *Store) loadCounter(c *Contents) error {
	b, err := s.read(counterFile)
	if err != nil || b == nil {
		return err
	}
	// A counter that began again would make the LO take new reports for old ones.
	if c.Counter, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err != nil {
		return fmt.Errorf("read %s: %w: remove the state directory to begin as a new agent", filepath.Join(s.dir, counterFile), err)
	}
	return nil
}

func (s *Store) loadRecords(c *Contents, log *slog.Logger) error {
	entries, err := os.ReadDir(filepath.Join(s.dir, recordDir))
	if err != nil {
		return fmt.Errorf("read deployment records: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordExt)
		if !ok {
			continue
		}
		path := filepath.Join(recordDir, e.Name())
		b, err := s.read(path)
		if err != nil {
			return err
		}
		var r plan.Record
		err = protocol.Unmarshal(b, &r)
		if err == nil && (string(r.Deployment) != name || !r.State.Valid()) {
			err = fmt.Errorf("record of deployment %q in state %q", r.Deployment, r.State)
		}
		if err != nil {
			if err := s.setAside(path, err, log); err != nil {
				return err
			}
			continue
		}
		c.Records = append(c.Records, r)
	}
	return nil
}

// SaveRecord writes the record of one deployment.
func (s *Store) SaveRecord(r plan.Record) error {
	if err := s.write(recordPath(r.Deployment), protocol.Marshal(r)); err != nil {
		return fmt.Errorf("save record of %s: %w", r.Deployment, err)
	}
	return nil
}

// RemoveRecord forgets a deployment.
func (s *Store) RemoveRecord(name protocol.DeploymentName) error {
	if err := atomicfile.Remove(filepath.Join(s.dir, recordPath(name))); err != nil {
		return fmt.Errorf("remove record of %s: %w", name, err)
	}
	return nil
}

// SaveDesired writes the desired state as it was received.
func (s *Store) SaveDesired(b []byte) error {
	if err := s.write(desiredFile, b); err != nil {
		return fmt.Errorf("save desired state: %w", err)
	}
	return nil
}

// SaveCounter writes a number that no report of this agent has reached yet.
func (s *Store) SaveCounter(n uint64) error {
	if err := s.write(counterFile, strconv.AppendUint(nil, n, 10)); err != nil {
		return fmt.Errorf("save report counter: %w", err)
	}
	return nil
}

func recordPath(name protocol.DeploymentName) string {
	return filepath.Join(recordDir, string(name)+recordExt)
}

func (s *Store) write(name string, b []byte) error {
	return atomicfile.Write(filepath.Join(s.dir, name), b, 0o600)
}

// read returns nil for a file that does not exist.
func (s *Store) read(name string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return b, nil
}

func (s *Store) setAside(name string, why error, log *slog.Logger) error {
	path := filepath.Join(s.dir, name)
	log.Error("state file damaged, kept aside", "path", path+".bad", "err", why)
	if err := os.Rename(path, path+".bad"); err != nil {
		return fmt.Errorf("set damaged file aside: %w", err)
	}
	return nil
}
