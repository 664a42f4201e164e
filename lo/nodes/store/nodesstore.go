// Package nodesstore keeps the LO's records of its nodes on disk, a file each,
// and a file for the site. Every write replaces a whole file atomically and is
// durable when it returns.
//
// The journal is the truth towards the CO; these files are what the LO itself
// must find again after a crash. A file that cannot be read is set aside under a
// new name, and what it said is learnt anew from the node.
package store

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

const (
	suffix   = ".json"
	aside    = ".corrupt"
	filePerm = 0o600
	dirPerm  = 0o700
)

// A Site is what the LO keeps of the site itself.
type Site struct {
	// Epoch names this state: it counts the generations of every NodeDesired.
	Epoch string `json:"epoch"`
	// JournalEpoch and Checkpoint say up to which record of which journal every
	// event is folded into the files of the nodes.
	JournalEpoch string `json:"journalEpoch,omitempty"`
	Checkpoint   uint64 `json:"checkpoint,omitempty"`
	// Reported are the digests of the placement reports that the journal holds.
	Reported map[protocol.DeploymentName]protocol.Digest `json:"reported,omitempty"`
	// AdoptedEpoch and AdoptedGeneration name the site's desired state that the
	// journal reports as adopted.
	AdoptedEpoch      string `json:"adoptedEpoch,omitempty"`
	AdoptedGeneration uint64 `json:"adoptedGeneration,omitempty"`
	// RefusedEpoch and RefusedGeneration name the one of which the journal reports
	// that its data rules are not wholly in force.
	RefusedEpoch      string `json:"refusedEpoch,omitempty"`
	RefusedGeneration uint64 `json:"refusedGeneration,omitempty"`
}

// A Store is the directory of the files. Its methods may be called concurrently,
// but for two Saves of one node, or of the site.
type Store struct{ dir string }

// Open makes the directory where it does not exist and removes what a crash left.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir}
	if err := os.MkdirAll(s.nodeDir(), dirPerm); err != nil {
		return nil, fmt.Errorf("create node store: %w", err)
	}
	for _, d := range []string{dir, s.nodeDir()} {
		if err := atomicfile.Clean(d); err != nil {
			return nil, fmt.Errorf("clean node store: %w", err)
		}
	}
	return s, nil
}

func (s *Store) nodeDir() string  { return filepath.Join(s.dir, "nodes") }
func (s *Store) sitePath() string { return filepath.Join(s.dir, "site"+suffix) }
func (s *Store) nodePath(node protocol.NodeID) string {
	return filepath.Join(s.nodeDir(), string(node)+suffix)
}

// Load reads everything. Where a file was set aside, faults says so and Site has
// a new Epoch, so that nodes accept orders that are counted anew.
func (s *Store) Load() (site Site, records []*nodes.Record, faults []error, err error) {
	entries, err := os.ReadDir(s.nodeDir())
	if err != nil {
		return site, nil, nil, fmt.Errorf("list node store: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		r := nodes.New(protocol.NodeID(name))
		found, fault, err := read(s.nodePath(r.Node), r)
		if err != nil {
			return site, nil, nil, err
		}
		if fault == nil && string(r.Node) != name {
			fault = setAside(s.nodePath(protocol.NodeID(name)), fmt.Errorf("it names node %q", r.Node))
		}
		if fault != nil {
			faults = append(faults, fault)
			continue
		}
		if found {
			if r.Deployments == nil {
				r.Deployments = map[protocol.DeploymentName]*nodes.Deployment{}
			}
			records = append(records, r)
		}
	}
	_, fault, err := read(s.sitePath(), &site)
	if err != nil {
		return site, nil, nil, err
	}
	if fault != nil {
		faults = append(faults, fault)
		site = Site{}
	}
	if len(faults) > 0 || site.Epoch == "" {
		site.Epoch = rand.Text()
		if err := s.SaveSite(site); err != nil {
			return site, nil, nil, err
		}
	}
	return site, records, faults, nil
}

// read decodes a file into v. A missing file is not found and no error; one that
// cannot be decoded is set aside and described by fault.
func read(path string, v any) (found bool, fault, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, fmt.Errorf("read node store: %w", err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return false, setAside(path, err), nil
	}
	return true, nil, nil
}

// setAside renames a file that cannot be used and returns why, for people.
func setAside(path string, cause error) error {
	if err := os.Rename(path, path+aside); err != nil {
		return fmt.Errorf("set aside %s: %w", path, errors.Join(cause, err))
	}
	return fmt.Errorf("%s is damaged and was renamed to %s: %w", path, path+aside, cause)
}

// SaveSite stores s durably.
func (s *Store) SaveSite(site Site) error { return save(s.sitePath(), site) }

// SaveNode stores r durably.
func (s *Store) SaveNode(r *nodes.Record) error { return save(s.nodePath(r.Node), r) }

func save(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	if err := atomicfile.Write(path, b, filePerm); err != nil {
		return fmt.Errorf("store %s: %w", filepath.Base(path), err)
	}
	return nil
}
