// Package followed keeps, beside volumes and containers, up to which position each deployment was followed. It says so also where the
// files of the agent are of before.
package followed

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// A Store has a file for each deployment in a directory. Its methods may be called concurrently.
type Store struct {
	dir     string
	damaged func(*statefile.Damage)
	mu      sync.Mutex // of the files
}

// New returns the store in a directory, which is made by the first Raise. damaged is called with what was set aside as damaged.
func New(dir string, damaged func(*statefile.Damage)) *Store {
	return &Store{dir: dir, damaged: damaged}
}

// All returns the positions. One whose file is damaged, or of a later release, is not known.
func (s *Store) All() (map[protocol.DeploymentName]protocol.Position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list what was followed: %w", err)
	}
	all := map[protocol.DeploymentName]protocol.Position{}
	for _, e := range entries {
		name, err := protocol.ParseDeploymentName(e.Name())
		if err != nil {
			continue // set aside, or half written
		}
		at, err := s.load(name)
		if err != nil {
			return nil, err
		}
		if !at.IsZero() {
			all[name] = at
		}
	}
	return all, nil
}

// Raise stores a position of a deployment, durably, where it is later than the one that is stored.
func (s *Store) Raise(name protocol.DeploymentName, at protocol.Position) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, err := s.load(name)
	if err != nil || !at.After(have) {
		return err
	}
	b, err := json.Marshal(at)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o711); err != nil {
		return fmt.Errorf("store what was followed of %s: %w", name, err)
	}
	return s.file(name).Save(b)
}

// Remove removes the position of a deployment.
func (s *Store) Remove(name protocol.DeploymentName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file(name).Remove()
}

func (s *Store) file(name protocol.DeploymentName) statefile.File {
	return statefile.File{Identity: statefile.Identity{Role: "en/followed", Name: string(name)}, Path: filepath.Join(s.dir, string(name)), Sealed: true}
}

func (s *Store) load(name protocol.DeploymentName) (at protocol.Position, err error) {
	_, err = s.file(name).Load(func(content []byte) error { return json.Unmarshal(content, &at) })
	if damage, ok := errors.AsType[*statefile.Damage](err); ok {
		s.damaged(damage)
		return protocol.Position{}, nil
	}
	if _, ok := errors.AsType[*statefile.NewerError](err); ok {
		return protocol.Position{}, nil
	}
	return at, err
}
