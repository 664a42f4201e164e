package fleetdb

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/db/fleet/versions"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// SaveAppVersion records a version of an application and reports whether it is
// new. The same bytes again change nothing; other bytes under the same version are
// a Conflict: a version is immutable.
func (s *Store) SaveAppVersion(ctx context.Context, v fleet.AppVersion) (created bool, err error) {
	profiles, err1 := pgdb.JSON(v.Profiles)
	parameters, err2 := pgdb.JSON(v.Parameters)
	if err := cmp.Or(err1, err2); err != nil {
		return false, protocol.Errorf(protocol.Invalid, "application %s %s: %w", v.AppID, v.Version, err)
	}
	err = s.db.Tx(ctx, "save application", func(tx pgx.Tx) error {
		created = false
		_, err := tx.Exec(ctx, `insert into apps (id, name, description, latest) values ($1, $2, $3, $4)
			on conflict (id) do nothing`, v.AppID, v.Name, v.Description, v.Version)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `insert into app_versions
			(app_id, version, name, description, source, digest, document, profiles, parameters)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict do nothing`,
			v.AppID, v.Version, v.Name, v.Description, v.Source, v.Digest, []byte(v.Document), profiles, parameters)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return versions.Same(ctx, tx, v)
		}
		if err := versions.AsBeforeRemoval(ctx, tx, v); err != nil {
			return err
		}
		created = true
		if _, err := tx.Exec(ctx, `select from apps where id = $1 for update`, v.AppID); err != nil {
			return err
		}
		if err := versions.FindLatest(ctx, tx, v.AppID); err != nil {
			return err
		}
		return imported(ctx, tx, v)
	})
	return created, err
}

func imported(ctx context.Context, tx pgx.Tx, v fleet.AppVersion) error {
	return db.WriteEvents(ctx, tx, []fleet.Event{{Kind: fleet.AppImported, AppVersion: v.Version, Message: v.AppID + " " + v.Version}})
}

// RemoveAppVersion removes a version of an application from the catalog, and the application
// with its last one. See versions.Remove for what it refuses.
func (s *Store) RemoveAppVersion(ctx context.Context, id, version string) error {
	return s.db.Tx(ctx, "remove application version", func(tx pgx.Tx) error { return versions.Remove(ctx, tx, id, version) })
}

// SetAppStage changes whether a version of an application may be deployed; reason says why, for people.
func (s *Store) SetAppStage(ctx context.Context, id, version string, stage fleet.Stage, reason string) error {
	return s.db.Tx(ctx, "set stage of application version", func(tx pgx.Tx) error {
		return versions.SetStage(ctx, tx, &fleet.AppVersion{AppID: id, Version: version, Stage: stage, StageReason: reason})
	})
}

// ArchivePin returns the digest of the Compose archive of a revision, "" for one that was
// never accepted.
func (s *Store) ArchivePin(ctx context.Context, repository, revision string) (protocol.Digest, error) {
	pinned, err := pgdb.Rows(ctx, s.db, pgx.RowTo[protocol.Digest], `select digest from archive_pins where repository = $1 and revision = $2`,
		repository, revision)
	if err != nil {
		return "", pgdb.Classify("read pin of archive "+repository+":"+revision, err)
	}
	for _, p := range pinned {
		return p, nil
	}
	return "", nil
}

// PinArchive records the digest of a Compose archive as that of its revision. Where the
// revision had another digest before, the error is of kind Conflict.
func (s *Store) PinArchive(ctx context.Context, repository, revision string, digest protocol.Digest) error {
	_, err := s.db.Exec(ctx, `insert into archive_pins (repository, revision, digest) values ($1, $2, $3) on conflict do nothing`,
		repository, revision, digest)
	if err != nil {
		return pgdb.Classify("pin archive "+repository+":"+revision, err)
	}
	pinned, err := s.ArchivePin(ctx, repository, revision)
	if err == nil && pinned != "" && pinned != digest {
		return protocol.Errorf(protocol.Conflict,
			"%s:%s was accepted before with other content (%s, now %s): a revision is immutable, push the archive under a new revision and raise the version of the application",
			repository, revision, pinned.Short(), digest.Short())
	}
	return err
}
