// Package begun notes which stores a site has begun, so that one that is missing as a whole at a later start is
// noticed: without a note it would pass for the store of a new site.
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
	Path string // below the directory of the site's state
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
}

// noteFile is the note, beside the record of the site.
const noteFile = "state/begun.json"

// Open reads the note in the directory of the site's state, in which the folder state must exist. It is called before any
// of the stores is opened. damaged are the stores that were begun and are missing, and the note itself where it is
// damaged. Without a note, as at a new site and after an upgrade from 0.2.0, nothing counts as begun. Open fails with a
// *statefile.NewerError where a later release wrote the note, and where it cannot be read now.
func Open(d disk.FS, dir string, log *slog.Logger, stores ...Store) (n *Note, damaged []*statefile.Damage, err error) {
	file := statefile.File{Disk: d, Identity: statefile.Identity{Role: "lo/begun"}, Path: filepath.Join(dir, noteFile)}
	n = &Note{disk: d, dir: dir, log: log, file: file, stores: stores}
	var noted content
	_, err = file.Load(func(b []byte) error { return json.Unmarshal(b, &noted) })
	if damage, ok := errors.AsType[*statefile.Damage](err); ok {
		return n, append(damaged, damage), nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read which stores were begun: %w", err)
	}
	n.begun = noted.Begun
	for _, s := range stores {
		if slices.Contains(n.begun, s.Role) && !n.there(s) {
			n.begun = slices.DeleteFunc(n.begun, func(role string) bool { return role == s.Role })
			n.missing = append(n.missing, s.Role)
			damaged = append(damaged, &statefile.Damage{
				Identity: statefile.Identity{Role: s.Role, Name: Missing}, Path: n.path(s), Err: fmt.Errorf("%w, although the site has begun it", fs.ErrNotExist),
			})
		}
	}
	return n, damaged, nil
}

// Reported says that what Open has found is reported: the next Open does not find it once more, as it does without.
func (n *Note) Reported() error {
	if len(n.missing) == 0 {
		return nil
	}
	n.missing = nil
	return n.write(n.begun)
}

func (n *Note) path(s Store) string { return filepath.Join(n.dir, s.Path) }

// there reports whether a store is there, or may be: what cannot be looked at is not missing.
func (n *Note) there(s Store) bool {
	st, err := n.disk.Stat(n.path(s))
	if err != nil || !st.IsDir() {
		return !errors.Is(err, fs.ErrNotExist)
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
			n.log.WarnContext(ctx, "which stores the site has begun is not noted: a loss of one of them as a whole would not be noticed", "err", err)
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

// save adds to the note what was begun since. What it names is durable before, and stays: what is removed while the site
// runs is missing at its next start.
func (n *Note) save() error {
	begun := slices.Clone(n.begun)
	for _, s := range n.stores {
		if slices.Contains(begun, s.Role) || !n.there(s) {
			continue
		}
		if err := n.syncNames(s); err != nil {
			return err
		}
		begun = append(begun, s.Role)
	}
	if len(begun) == len(n.begun) {
		return nil
	}
	return n.write(begun)
}

func (n *Note) write(begun []string) error {
	b, err := json.Marshal(content{Begun: append(slices.Clone(begun), n.missing...)})
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
