package backup

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/filelock"
)

// A Restored says what a restore did.
type Restored struct {
	Manifest
	// RepoExisted says that the deployments repo was there, and was left as it is.
	RepoExisted bool
	// KeysExisted says that signing keys were there, and were left as they are.
	KeysExisted bool
	// RootExisted says that the root of the fleet's certificates was there already.
	RootExisted bool
	// TokensRevoked is how many tokens of people and programs do not count any more.
	TokensRevoked int
	// RequestsDropped is how many things that people had asked for by name the backup has as not begun: they are to ask again.
	RequestsDropped int
	// CheckpointsAside is where the checkpoints of the audit are that was replaced; empty: there were none.
	CheckpointsAside string
}

// Choices are what a person decides about a restore.
type Choices struct {
	// Replace removes what the database holds.
	Replace bool
	// KeepTokens lets the tokens of people and programs count that counted when the backup was made.
	KeepTokens bool
}

// Restore puts a backup into the database and the directories of a CO, which must not run.
// A database that holds anything is refused, unless c.Replace is set: its content is then
// removed once the backup is in it. The backup does not know which tokens of people and programs were
// revoked after it: without c.KeepTokens all are. A deployments repo that has commits is kept: it is the
// truth, and the CO follows it. Files of the registry are added to those that are there; signing
// keys that are there are kept. Where the CO would not have the root of the fleet's certificates
// afterwards, or has another one, nothing is restored. The audit says that there was a restore; checkpoints of the audit
// that it replaced are kept beside the new ones.
func Restore(ctx context.Context, s Source, dir string, c Choices) (Restored, error) {
	m, err := Read(dir)
	out := Restored{Manifest: m}
	if err != nil {
		return out, err
	}
	if len(m.Keys) > 0 && (s.Keys == "" || len(s.KeyFiles) == 0) {
		return out, fmt.Errorf("restore: the backup has the keys with which the CO signs, and the configuration names no directory for them: set signing.dir")
	}
	if out.RootExisted, err = checkRoot(s, m); err != nil {
		return out, err
	}
	// The lock of a running CO's clone of the deployments repo.
	lock, err := acquire(filepath.Join(s.StateDir, "deployments"))
	if errors.Is(err, filelock.ErrHeld) {
		return out, fmt.Errorf("restore: a CO runs with the directory %s: stop it first", s.StateDir)
	}
	if err != nil {
		return out, fmt.Errorf("restore: %w", err)
	}
	defer lock.Close() //nolint:errcheck // the kernel gives it back
	d, err := openDatabase(ctx, s.DatabaseURL)
	if err != nil {
		return out, err
	}
	defer d.close()
	if d.major < m.Postgres {
		return out, fmt.Errorf("restore: the backup is of PostgreSQL %d and the server is of %d: use a server of version %d or later", m.Postgres, d.major, m.Postgres)
	}
	if err := d.refuseUsers(ctx); err != nil {
		return out, err
	}
	if err := d.restore(ctx, filepath.Join(dir, databaseFile), c.Replace); err != nil {
		return out, err
	}
	if err := d.amend(ctx, c, &out); err != nil {
		return out, err
	}
	if err := d.finish(ctx); err != nil {
		return out, err
	}
	if s.Checkpoints != "" {
		if out.CheckpointsAside, err = atomicfile.PutAside(s.Checkpoints, "before-restore", time.Now()); err != nil {
			return out, fmt.Errorf("restore: put the checkpoints of the audit aside, which know rows that the backup has not: %w", err)
		}
	}
	if m.Repo {
		if out.RepoExisted, err = restoreRepo(ctx, s.Remote, filepath.Join(dir, bundleFile)); err != nil {
			return out, err
		}
	}
	if m.Registry && !s.NoRegistry {
		if err := copyRegistry(ctx, filepath.Join(dir, registryFiles), s.registry()); err != nil {
			return out, fmt.Errorf("restore the OCI registry: %w", err)
		}
	}
	if err := restoreRoot(s, dir, m); err != nil {
		return out, err
	}
	if len(m.Keys) == 0 {
		return out, nil
	}
	if out.KeysExisted = exists(filepath.Join(s.Keys, s.KeyFiles[len(s.KeyFiles)-1])); out.KeysExisted {
		return out, nil
	}
	if _, err := copyKeys(dir, s.Keys, s.KeyFiles); err != nil {
		return out, fmt.Errorf("restore the signing keys: %w", err)
	}
	return out, nil
}

// amend changes what the backup has and does not hold any more.
func (d *database) amend(ctx context.Context, c Choices, out *Restored) (err error) {
	if !c.KeepTokens {
		if out.TokensRevoked, err = d.revokeTokens(ctx); err != nil {
			return err
		}
	}
	if out.RequestsDropped, err = d.dropRequests(ctx); err != nil {
		return err
	}
	if err := d.markPositions(ctx); err != nil {
		return err
	}
	return d.recordRestore(ctx, out.Manifest)
}
