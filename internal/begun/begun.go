// Package begun notes which stores a tier has begun, so that one that is missing as a whole at a later start is
// noticed: without a note it would pass for the store of a new one.
package begun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// lookEvery is how often Run looks whether a store was begun.
const lookEvery = time.Minute

// A Store is a file, or a directory, which is there where it holds something.
type Store struct {
	// Role is that of the damage that is reported where the store is missing. The note names the store so.
	Role string
	Path string // below the directory of the state
}

// Missing ends the name of the damage of a store that is missing, after its role.
const Missing = "missing"

// A Note says which stores were begun. Use Open, then Reported, then one Run.
type Note struct {
	disk   disk.FS
	dir    string
	log    *slog.Logger
	file   statefile.File
	stores []Store

	// What follows belongs to the goroutine of Run, once it is called.

	begun   []string // roles
	missing []string // of stores whose loss is not reported yet
}

// content is what the file holds.
type content struct {
	Begun []string `json:"begun"` // roles
	// Missing are those of Begun whose loss is not reported yet, and which may have been begun anew since.
	// Absent: none.
	Missing []string `json:"missing,omitempty"`
}

// A File is where a note is: below the directory of the state, in a folder that exists.
type File struct {
	Role string // of its own damage
	Path string
}

// Options are what a Note works with. All are needed.
type Options struct {
	Disk disk.FS
	// Dir is the directory of the state, and File the note in it.
	Dir    string
	File   File
	Logger *slog.Logger
}

// Open reads the note of the stores below a directory. It is called before any of the stores is opened. damaged are the stores that
// were begun and are missing, those that an Open before has found so and whose loss is not Reported, and the note itself where it is
// damaged. Without a note, as at the first start of a tier that notes them, nothing counts as begun. Open fails with a
// *statefile.NewerError where a later release wrote the note, and where it cannot be read now.
func Open(o Options, stores ...Store) (n *Note, damaged []*statefile.Damage, err error) {
	file := statefile.File{Disk: o.Disk, Identity: statefile.Identity{Role: o.File.Role}, Path: filepath.Join(o.Dir, o.File.Path)}
	n = &Note{disk: o.Disk, dir: o.Dir, log: o.Logger, file: file, stores: stores}
	var noted content
	_, err = file.Load(func(b []byte) error { return json.Unmarshal(b, &noted) })
	if damage, ok := errors.AsType[*statefile.Damage](err); ok {
		return n, append(damaged, damage), nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read which stores were begun: %w", err)
	}
	n.begun = noted.Begun
	fresh := false
	for _, s := range stores {
		known := slices.Contains(noted.Missing, s.Role)
		if !slices.Contains(n.begun, s.Role) || n.there(s) && !known {
			continue
		}
		fresh = fresh || !known
		n.begun = slices.DeleteFunc(n.begun, func(role string) bool { return role == s.Role })
		n.missing = append(n.missing, s.Role)
		damaged = append(damaged, &statefile.Damage{
			Identity: statefile.Identity{Role: s.Role, Name: Missing}, Path: n.path(s), Err: fmt.Errorf("%w, although it was begun", fs.ErrNotExist),
		})
	}
	if fresh { // before they are begun anew
		if err := n.write(n.begun); err != nil {
			n.log.Warn("which stores are missing is not noted: where their loss is not reported before the next start, it is not then", "err", err)
		}
	}
	return n, damaged, nil
}

// Reported says that what Open has found is reported: the next Open does not find it once more, as it does without.
func (n *Note) Reported() error {
	if len(n.missing) == 0 {
		return nil
	}
	missing := n.missing
	n.missing = nil
	err := n.write(n.begun)
	if err != nil {
		n.missing = missing
	}
	return err
}

func (n *Note) path(s Store) string { return filepath.Join(n.dir, s.Path) }

// there reports whether a store is there, or may be: what cannot be looked at is not missing.
func (n *Note) there(s Store) bool {
	st, err := n.disk.Stat(n.path(s))
	if err != nil || !st.IsDir() {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) // a file has the place of its folder
	}
	all, err := n.disk.List(n.path(s))
	return err != nil || len(all) > 0
}

// Run notes each store that was begun, at once, every minute, and when ctx ends. Where the disk takes no note it tries
// again.
func (n *Note) Run(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for running := true; ; {
		if err := n.save(); err != nil {
			n.log.WarnContext(ctx, "which stores are begun is not noted: a loss of one of them as a whole would not be noticed", "err", err)
		}
		if !running {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			running = false
		}
	}
}

// save adds to the note what was begun since. What it names is durable before, and stays: what is removed while the tier
// runs is missing at its next start.
func (n *Note) save() error {
	begun := slices.Clone(n.begun)
	var errs []error
	for _, s := range n.stores {
		if slices.Contains(begun, s.Role) || !n.there(s) {
			continue
		}
		if err := n.syncNames(s); err != nil {
			errs = append(errs, err)
			continue
		}
		begun = append(begun, s.Role)
	}
	if len(begun) > len(n.begun) {
		errs = append(errs, n.write(begun))
	}
	return errors.Join(errs...)
}

func (n *Note) write(begun []string) error {
	all := slices.Clone(begun)
	for _, role := range n.missing { // it may be begun anew
		if !slices.Contains(all, role) {
			all = append(all, role)
		}
	}
	b, err := json.Marshal(content{Begun: all, Missing: n.missing})
	if err != nil {
		return err
	}
	if err := n.file.Save(b); err != nil {
		return err
	}
	n.begun = begun
	return nil
}

// syncNames makes the names of a store durable: its own, those of the directories above it, and those in it.
func (n *Note) syncNames(s Store) error {
	st, err := n.disk.Stat(n.path(s))
	if err != nil {
		return err
	}
	dir := s.Path
	if !st.IsDir() {
		dir = filepath.Dir(dir)
	}
	for {
		if err := n.disk.SyncDir(filepath.Join(n.dir, dir)); err != nil || dir == "." {
			return err
		}
		dir = filepath.Dir(dir)
	}
}
