// Package state keeps what a node must know after a crash on its disk: one small file per
// deployment, the desired state as it was received, the agent's id and the counter of its reports.
// Each file is replaced as a whole, so that a crash or a power cut at any moment leaves the old or
// the new content. Each has a checksum: a damaged file counts as absent, is set aside, and never
// stops the agent.
package state

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

const (
	agentFile   = "agent-id"
	desiredFile = "desired.cbor"
	counterFile = "report-counter"
	volumesFile = "volumes.cbor"
	trustFile   = "trust.cbor"
	lockFile    = "lock"
	recordDir   = "deployments"
	recordExt   = ".cbor"
)

// A Store is the state directory of one agent. It is held exclusively: a second
// Open of the same directory is refused, also by another process. Writes of
// different files may be concurrent, writes of one file may not.
type Store struct {
	disk  disk.FS
	dir   string
	agent string // set by Open
	lock  io.Closer
	// unsaved is the id if it could not be written yet because the disk is full. The functions that
	// write the counter use it.
	unsaved *identity
}

// Contents is all that a Store held when it was opened.
type Contents struct {
	// Agent is the random id of the state directory.
	Agent string
	// Desired is the last NodeDesired as it was received; nil if there is none.
	Desired []byte
	Records []plan.Record
	// Counter is at least the last value given to SaveCounter, and at least the number
	// of each report in Records.
	Counter uint64
	// Volumes are those that outlived their deployments.
	Volumes plan.Volumes
	// Trust is what the node remembers of what the CO signed.
	Trust trust.State
	// Damaged are the files that do not hold what was stored in them: what they held is
	// in none of the other fields.
	Damaged []*statefile.Damage
	// Renewed says that the id is new although there was state: an LO that knows the agent by its
	// previous id does not know this one.
	Renewed bool
}

// RecordRole is the Role of a damaged record, whose Name is that of its deployment;
// DesiredRole is that of a damaged desired state.
const (
	RecordRole  = "en/deployment"
	DesiredRole = "en/desired"
)

// Open makes the directory of a disk if there is none, locks it, and reads it. An agent without a
// name yet gets one from names. A damaged file is set aside, logged, and named in Contents: the
// desired state, or the LO, brings its content back. Open fails with a *statefile.NewerError if a
// later release wrote a file.
func Open(d disk.FS, dir string, names *random.Source, log *slog.Logger) (*Store, *Contents, error) {
	records := filepath.Join(dir, recordDir)
	if err := d.MkdirAll(records, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make state directory: %w", err)
	}
	s := &Store{disk: d, dir: dir}
	if err := s.claim(); err != nil {
		return nil, nil, err
	}
	c, err := s.load(names, log)
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
	lock, err := statefile.Lock(s.disk, filepath.Join(s.dir, lockFile))
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

func (s *Store) load(names *random.Source, log *slog.Logger) (*Contents, error) {
	c := &Contents{}
	if err := errors.Join(atomicfile.Clean(s.disk, s.dir), atomicfile.Clean(s.disk, filepath.Join(s.dir, recordDir))); err != nil {
		return nil, fmt.Errorf("clean state directory: %w", err)
	}
	l := loading{store: s, c: c, log: log}
	if err := errors.Join(l.desired(), l.records(), l.volumes(), l.trust()); err != nil {
		return nil, err
	}
	return c, l.identity(names)
}

// loading is one reading of a Store.
type loading struct {
	store *Store
	c     *Contents
	log   *slog.Logger
}

// file reads a file; a damaged one is noted, and not found.
func (l loading) file(f statefile.File, decode func([]byte) error) (found bool, err error) {
	found, err = f.Load(decode)
	if d, ok := errors.AsType[*statefile.Damage](err); ok {
		l.log.Error("state of the agent is damaged; it counts as not held", "err", d)
		l.c.Damaged = append(l.c.Damaged, d)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read state: %w", err)
	}
	return found, nil
}

func (l loading) desired() error {
	var raw []byte
	found, err := l.file(l.store.file(desiredFile, DesiredRole, ""), func(b []byte) error {
		raw = b
		return protocol.Unmarshal(b, &protocol.NodeDesired{})
	})
	if found {
		l.c.Desired = raw
	}
	return err
}

// volumes reads which volumes are retained. Where that is lost they are retained anew,
// for the whole time.
func (l loading) volumes() error {
	var v plan.Volumes
	found, err := l.file(l.store.volumesFile(), func(b []byte) error { return protocol.Unmarshal(b, &v) })
	if found {
		l.c.Volumes = v
	}
	return err
}

// trust reads the key set and the floors. Where they are lost the key set comes with the next
// desired state, and what is signed counts once more, however old it is.
func (l loading) trust() error {
	var s trust.State
	found, err := l.file(l.store.trustFile(), func(b []byte) error { return protocol.Unmarshal(b, &s) })
	if found {
		l.c.Trust = s
	}
	return err
}

func (l loading) records() error {
	entries, err := l.store.disk.List(filepath.Join(l.store.dir, recordDir))
	if err != nil {
		return fmt.Errorf("read deployment records: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordExt)
		if !ok {
			if !statefile.IsAside(e.Name()) {
				l.log.Warn("a file among the deployments is none of the agent and is left alone: remove it, or check the disk", "path", filepath.Join(l.store.dir, recordDir, e.Name()))
			}
			continue
		}
		var r plan.Record
		found, err := l.file(l.store.recordFile(protocol.DeploymentName(name)), func(b []byte) error {
			if err := protocol.Unmarshal(b, &r); err != nil {
				return err
			}
			if r.Active == r.Digest && len(r.EarlierSpec) > 0 { // SaveRecord left it out
				r.ActiveSpec = r.Spec
			}
			return check(&r, name)
		})
		if err != nil {
			return err
		}
		if found {
			l.c.Records = append(l.c.Records, r)
		}
	}
	return nil
}

// check returns what is wrong with a record that was read for a deployment.
func check(r *plan.Record, name string) error {
	if string(r.Deployment) != name || !r.State.Valid() {
		return fmt.Errorf("record of deployment %q in state %q", r.Deployment, r.State)
	}
	for _, version := range []struct {
		digest protocol.Digest
		spec   []byte
	}{{r.Digest, r.Spec}, {r.Active, r.ActiveSpec}, {r.Healthy, r.FormerSpec}} {
		if len(version.spec) == 0 { // refused unread, or there is none
			continue
		}
		if err := version.digest.Verify(version.spec); err != nil {
			return fmt.Errorf("spec: %w", err)
		}
	}
	return nil
}

// SaveRecord writes the record of one deployment. No record holds three specs: as one
// message it could be too long to be read again.
func (s *Store) SaveRecord(r plan.Record) error {
	if r.Active == r.Digest && len(r.EarlierSpec) > 0 {
		r.ActiveSpec = nil
	}
	if err := s.recordFile(r.Deployment).Save(protocol.Marshal(r)); err != nil {
		return fmt.Errorf("save record of %s: %w", r.Deployment, err)
	}
	return nil
}

// RemoveRecord forgets a deployment.
func (s *Store) RemoveRecord(name protocol.DeploymentName) error {
	if err := s.recordFile(name).Remove(); err != nil {
		return fmt.Errorf("remove record of %s: %w", name, err)
	}
	return nil
}

// SaveDesired writes the desired state as it was received.
func (s *Store) SaveDesired(b []byte) error {
	if err := s.file(desiredFile, DesiredRole, "").Save(b); err != nil {
		return fmt.Errorf("save desired state: %w", err)
	}
	return nil
}

// SaveVolumes writes which volumes are retained.
func (s *Store) SaveVolumes(v plan.Volumes) error {
	if err := s.volumesFile().Save(protocol.Marshal(v)); err != nil {
		return fmt.Errorf("save retained volumes: %w", err)
	}
	return nil
}

// SaveTrust writes what the node remembers of what the CO signed.
func (s *Store) SaveTrust(t trust.State) error {
	if err := s.trustFile().Save(protocol.Marshal(t)); err != nil {
		return fmt.Errorf("save key set and floors: %w", err)
	}
	return nil
}

func (s *Store) trustFile() statefile.File { return s.file(trustFile, "en/trust", "") }

func (s *Store) volumesFile() statefile.File { return s.file(volumesFile, "en/volumes", "") }

func (s *Store) file(path, role, name string) statefile.File {
	return statefile.File{Disk: s.disk, Identity: statefile.Identity{Role: role, Name: name}, Path: filepath.Join(s.dir, path)}
}

func (s *Store) recordFile(name protocol.DeploymentName) statefile.File {
	return s.file(filepath.Join(recordDir, string(name)+recordExt), RecordRole, string(name))
}
