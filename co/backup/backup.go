// Package backup saves into a directory what a CO cannot get back from elsewhere, and restores it: the database, the deployments repo if it is on
// this machine, the OCI registry, the configuration, the signing keys, and the root of the fleet's certificates. The database is one consistent
// dump. After a restore the sites report what is newer.
package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/migrations"
)

// The files of a backup.
const (
	manifestFile  = "manifest.json"
	databaseFile  = "database.dump"
	bundleFile    = "deployments.bundle"
	configFile    = "co.yaml"
	registryFiles = "registry"
)

// format is the version of the layout of a backup. A later one is refused.
const format = 1

// A Source is the CO that is saved, or restored into.
type Source struct {
	// DatabaseURL is its PostgreSQL URL or key=value string.
	DatabaseURL string
	// StateDir is its directory.
	StateDir string
	// Registry is the directory of its OCI registry. Empty: registry, in StateDir.
	Registry string
	// Remote is its deployments repo. One that is a path of this machine is saved, too.
	Remote string
	// Config is the path of its configuration file.
	Config string
	// Keys is the directory of its keys; empty: it has none. KeyFiles are their names, of which
	// the last one is there where they are complete.
	Keys     string
	KeyFiles []string
	// Checkpoints is the file of the signed checkpoints of its audit; empty: it is not looked at.
	Checkpoints string
	// Root has the root of the fleet's certificates. Nil: the CO has none.
	Root RootStore
	// NoRoot leaves it out of a backup.
	NoRoot bool
	// Version is that of this program.
	Version string
	// NoRegistry leaves out the OCI registry, whose content may be as large as all images.
	NoRegistry bool
}

// A Manifest says what a backup holds.
type Manifest struct {
	Format   int       `json:"format"`   // version of the layout of the backup
	Version  string    `json:"version"`  // of the program that made it
	Created  time.Time `json:"created"`  // when the backup was made
	Schema   int       `json:"schema"`   // number of the last migration of the database
	Postgres int       `json:"postgres"` // major version of the server
	Remote   string    `json:"remote"`   // of the deployments repo, without a password
	// Repo and Registry say whether they are inside.
	Repo     bool `json:"repo"`
	Registry bool `json:"registry"`
	// Keys are the files of its keys that are inside.
	Keys []string `json:"keys,omitempty"`
	// RootFingerprint is the SHA-256 of the public key of the root of the fleet's certificates, in
	// hex; empty: its machines have none. Root says whether it is inside, with its key.
	RootFingerprint string `json:"rootFingerprint,omitempty"`
	Root            bool   `json:"root,omitempty"`
	// Sums are the SHA-256 of the files, by their names, but for those of the registry, whose
	// names are their sums.
	Sums map[string]string `json:"sums"`
}

// Create saves a CO, which may run meanwhile, into dir, which must not exist or be empty. The
// manifest is written last: a directory without one is no backup.
func Create(ctx context.Context, s Source, dir string) (Manifest, error) {
	m := Manifest{Format: format, Version: s.Version, Created: time.Now().UTC().Truncate(time.Second), Remote: redacted(s.Remote), Sums: map[string]string{}}
	if err := emptyDir(dir); err != nil {
		return m, err
	}
	d, err := openDatabase(ctx, s.DatabaseURL)
	if err != nil {
		return m, err
	}
	defer d.close()
	if m.Schema, err = d.schema(ctx); err != nil {
		return m, err
	}
	if m.Schema == 0 {
		return m, errors.New("back up the database: it holds no CO: check databaseURL in the configuration")
	}
	m.Postgres = d.major
	if err := d.dump(ctx, filepath.Join(dir, databaseFile)); err != nil {
		return m, err
	}
	// After the database: what it names in the repo and the registry is there by now.
	if m.Repo, err = saveRepo(ctx, s.Remote, filepath.Join(dir, bundleFile)); err != nil {
		return m, err
	}
	if m.Registry = !s.NoRegistry; m.Registry {
		if err := copyRegistry(ctx, s.registry(), filepath.Join(dir, registryFiles)); err != nil {
			return m, fmt.Errorf("back up the OCI registry: %w", err)
		}
	}
	if s.Config != "" {
		if err := copyFile(s.Config, filepath.Join(dir, configFile)); err != nil {
			return m, fmt.Errorf("back up the configuration: %w", err)
		}
	}
	if m.Keys, err = copyKeys(s.Keys, dir, s.KeyFiles); err != nil {
		return m, fmt.Errorf("back up the signing keys: %w", err)
	}
	if err := saveRoot(s, dir, &m); err != nil {
		return m, fmt.Errorf("back up the root of the fleet's certificates (--no-root leaves it out): %w", err)
	}
	return m, m.write(dir)
}

// write sums up the files and writes the manifest.
func (m *Manifest) write(dir string) error {
	for _, name := range append([]string{databaseFile, bundleFile, configFile, rootFile}, m.Keys...) {
		sum, err := sumOf(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write manifest: %w", err)
		}
		m.Sums[name] = sum
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return writeFile(filepath.Join(dir, manifestFile), append(b, '\n'))
}

// Read returns the manifest of a backup, after it has checked that this program can restore
// it and that its files are whole.
func Read(dir string) (Manifest, error) {
	var m Manifest
	b, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if errors.Is(err, os.ErrNotExist) {
		return m, fmt.Errorf("%s is no backup, or one that was not finished: it has no %s", dir, manifestFile)
	}
	if err != nil {
		return m, fmt.Errorf("read backup: %w", err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("read %s of the backup: %w", manifestFile, err)
	}
	if m.Format > format {
		return m, fmt.Errorf("the backup %s has format %d: restore it with Colony %s or later", dir, m.Format, m.Version)
	}
	if latest := migrations.Latest(); m.Schema > latest {
		return m, fmt.Errorf("the backup %s is of database schema %d, this program knows up to %d: restore it with Colony %s or later", dir, m.Schema, latest, m.Version)
	}
	for name, want := range m.Sums {
		got, err := sumOf(filepath.Join(dir, filepath.Base(name)))
		if err != nil {
			return m, fmt.Errorf("the backup %s is not whole: %w", dir, err)
		}
		if got != want {
			return m, fmt.Errorf("the backup %s is damaged: %s has not the content that was saved", dir, name)
		}
	}
	return m, nil
}
