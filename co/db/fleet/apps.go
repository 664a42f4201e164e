package fleetdb

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
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
	if err := first(err1, err2); err != nil {
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
			return sameVersion(ctx, tx, v)
		}
		created = true
		var latest string
		if err := tx.QueryRow(ctx, `select latest from apps where id = $1 for update`, v.AppID).Scan(&latest); err != nil {
			return err
		}
		if v.Version != latest && !fleet.Newer(v.Version, latest) {
			return imported(ctx, tx, v)
		}
		_, err = tx.Exec(ctx, `update apps set name = $2, description = $3, latest = $4, updated_at = now() where id = $1`,
			v.AppID, v.Name, v.Description, v.Version)
		if err != nil {
			return err
		}
		return imported(ctx, tx, v)
	})
	return created, err
}

func imported(ctx context.Context, tx pgx.Tx, v fleet.AppVersion) error {
	return db.WriteEvents(ctx, tx, []fleet.Event{{Kind: fleet.AppImported, AppVersion: v.Version, Message: v.AppID + " " + v.Version}})
}

func sameVersion(ctx context.Context, tx pgx.Tx, v fleet.AppVersion) error {
	var digest protocol.Digest
	err := tx.QueryRow(ctx, `select digest from app_versions where app_id = $1 and version = $2`, v.AppID, v.Version).Scan(&digest)
	if err != nil {
		return err
	}
	if digest != v.Digest {
		return protocol.Errorf(protocol.Conflict,
			"application %s %s was imported before with other content (%s, now %s): a version is immutable, raise metadata.version",
			v.AppID, v.Version, digest.Short(), v.Digest.Short())
	}
	return nil
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

const appColumns = `select a.id, a.name, a.description, a.latest,
	(select array_agg(v.version order by v.number desc) from app_versions v where v.app_id = a.id) from apps a`

func scanApp(row pgx.CollectableRow) (a fleet.App, err error) {
	err = row.Scan(&a.ID, &a.Name, &a.Description, &a.Latest, &a.Versions)
	return a, err
}

// Apps lists the applications by id.
func (s *Store) Apps(ctx context.Context, p fleet.Page) (apps []fleet.App, next string, err error) {
	last, err := after(p, 1)
	if err != nil {
		return nil, "", err
	}
	n := fleet.Size(p.Limit)
	apps, err = pgdb.Rows(ctx, s.db, scanApp, appColumns+` where a.id > $1 order by a.id limit $2`, last[0], n+1)
	if err != nil {
		return nil, "", pgdb.Classify("list applications", err)
	}
	if len(apps) > n {
		apps = apps[:n]
		next = key{apps[n-1].ID}.cursor(1)
	}
	return apps, next, nil
}

// App returns one application. The error of one that does not exist lists some that do.
func (s *Store) App(ctx context.Context, id string) (fleet.App, error) {
	found, err := pgdb.Rows(ctx, s.db, scanApp, appColumns+` where a.id = $1`, id)
	a, err := pgdb.One("application", found, err)
	if err == nil || protocol.KindOf(err) != protocol.NotFound {
		return a, err
	}
	known, _, listErr := s.Apps(ctx, fleet.Page{Limit: 10})
	if listErr != nil {
		return a, listErr
	}
	ids := make([]string, len(known))
	for i := range known {
		ids[i] = known[i].ID
	}
	return a, protocol.Errorf(protocol.NotFound, "no application %q in the catalog; there is %s: import it first", id, orNothing(ids))
}

// AppVersion returns one version of an application, with its document. The empty
// version is the one imported last.
func (s *Store) AppVersion(ctx context.Context, id, version string) (fleet.AppVersion, error) {
	app, err := s.App(ctx, id)
	if err != nil {
		return fleet.AppVersion{}, err
	}
	if version == "" {
		version = app.Latest
	}
	found, err := pgdb.Rows(ctx, s.db, scanVersion, `select app_id, version, name, description, source, digest, document, profiles,
		parameters, imported_at from app_versions where app_id = $1 and version = $2`, id, version)
	v, err := pgdb.One("version", found, err)
	if err != nil && protocol.KindOf(err) == protocol.NotFound {
		return v, protocol.Errorf(protocol.NotFound, "application %s has no version %q; it has %s", id, version, orNothing(app.Versions))
	}
	return v, err
}

func scanVersion(row pgx.CollectableRow) (v fleet.AppVersion, err error) {
	var document, profiles, parameters []byte
	err = row.Scan(&v.AppID, &v.Version, &v.Name, &v.Description, &v.Source, &v.Digest, &document, &profiles, &parameters, &v.ImportedAt)
	if err != nil {
		return v, err
	}
	v.Document = string(document)
	return v, first(json.Unmarshal(profiles, &v.Profiles), json.Unmarshal(parameters, &v.Parameters))
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "nothing yet"
	}
	return strings.Join(names, ", ")
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
