// Package store keeps the LO's records of its nodes on disk, a file each,
// and a file for the site. Every write replaces a whole file atomically and is
// durable when it returns.
//
// The journal is the truth towards the CO; these files are what the LO itself
// must find again after a crash. A damaged file counts as not held: it is set aside
// under a new name, and the next report of the node replaces it.
package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

const (
	suffix  = ".json"
	dirPerm = 0o700
)

// NodeRole is the Role of a damaged node record; its Name is the id of the node.
const NodeRole = nodes.StateRole

// A Store is the directory of the files. Its methods may be called concurrently,
// but for two Saves of one node, or of the site.
type Store struct {
	disk disk.FS
	dir  string
	log  *slog.Logger
}

// Open makes the directory where it does not exist and removes what a crash left.
func Open(d disk.FS, dir string, log *slog.Logger) (*Store, error) {
	s := &Store{disk: d, dir: dir, log: log}
	if err := d.MkdirAll(s.nodeDir(), dirPerm); err != nil {
		return nil, fmt.Errorf("create node store: %w", err)
	}
	for _, one := range []string{dir, s.nodeDir()} {
		if err := atomicfile.Clean(d, one); err != nil {
			return nil, fmt.Errorf("clean node store: %w", err)
		}
	}
	return s, nil
}

func (s *Store) nodeDir() string { return filepath.Join(s.dir, "nodes") }

func (s *Store) siteFile() statefile.File {
	return statefile.File{Disk: s.disk, Identity: statefile.Identity{Role: "lo/site"}, Path: filepath.Join(s.dir, "site"+suffix)}
}

func (s *Store) nodeFile(node protocol.NodeID) statefile.File {
	return statefile.File{
		Disk: s.disk, Identity: statefile.Identity{Role: NodeRole, Name: string(node)}, Path: filepath.Join(s.nodeDir(), string(node)+suffix),
	}
}

// Load reads everything. damaged are the files that do not hold what was stored in
// them. Load fails with a *statefile.NewerError where a later release wrote a file.
func (s *Store) Load() (site nodes.Site, records []*nodes.Record, damaged []*statefile.Damage, err error) {
	entries, err := s.disk.List(s.nodeDir())
	if err != nil {
		return site, nil, nil, fmt.Errorf("list node store: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			if !statefile.IsAside(e.Name()) {
				s.log.Warn("a file among the records of nodes is none of the LO and is left alone: remove it, or check the disk", "path", filepath.Join(s.nodeDir(), e.Name()))
			}
			continue
		}
		r := nodes.New(protocol.NodeID(name))
		found, err := load(s.nodeFile(protocol.NodeID(name)), &damaged, func(b []byte) error {
			if err := json.Unmarshal(b, r); err != nil {
				return err
			}
			if string(r.Node) != name {
				return fmt.Errorf("it names node %q", r.Node)
			}
			return nil
		})
		if err != nil {
			return site, nil, nil, err
		}
		if found {
			if r.Deployments == nil {
				r.Deployments = map[protocol.DeploymentName]*nodes.Deployment{}
			}
			records = append(records, r)
		}
	}
	found, err := load(s.siteFile(), &damaged, func(b []byte) error { return json.Unmarshal(b, &site) })
	if err != nil {
		return site, nil, nil, err
	}
	if !found {
		site = nodes.Site{}
	}
	return site, records, damaged, nil
}

// load reads a file, and adds it to damaged where it is.
func load(f statefile.File, damaged *[]*statefile.Damage, decode func([]byte) error) (found bool, err error) {
	found, err = f.Load(decode)
	if d, ok := errors.AsType[*statefile.Damage](err); ok {
		*damaged = append(*damaged, d)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read node store: %w", err)
	}
	return found, nil
}

// SaveSite stores s durably.
func (s *Store) SaveSite(site nodes.Site) error { return save(s.siteFile(), site) }

// SaveNode stores r durably.
func (s *Store) SaveNode(r *nodes.Record) error { return save(s.nodeFile(r.Node), r) }

// RemoveNode removes the record of a node durably; one that is not there stays away.
func (s *Store) RemoveNode(node protocol.NodeID) error {
	if err := atomicfile.Remove(s.disk, s.nodeFile(node).Path); err != nil {
		return fmt.Errorf("remove record of node %s: %w", node, err)
	}
	return nil
}

func save(f statefile.File, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", f.Identity, err)
	}
	if err := f.Save(b); err != nil {
		return fmt.Errorf("store %s: %w", f.Identity, err)
	}
	return nil
}
