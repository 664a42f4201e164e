package listdb

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

const appColumns = `select a.id, a.name, a.description, a.latest,
	(select array_agg(v.version order by v.number desc) from app_versions v where v.app_id = a.id),
	(select jsonb_object_agg(v.version, v.stage) from app_versions v where v.app_id = a.id and v.stage <> 'active') from apps a`

func scanApp(row pgx.CollectableRow) (a fleet.App, err error) {
	err = row.Scan(&a.ID, &a.Name, &a.Description, &a.Latest, &a.Versions, &a.Stages)
	return a, err
}

// Apps lists the applications by id.
func (s *Lists) Apps(ctx context.Context, p fleet.Page) (apps []fleet.App, next string, err error) {
	last, err := after(p, 1)
	if err != nil {
		return nil, "", err
	}
	n := fleet.Size(p.Limit)
	apps, err = pgdb.Rows(ctx, s.db, scanApp, appColumns+` where a.id > $1 order by a.id limit $2`, last[0], n+1)
	if err != nil {
		return nil, "", pgdb.Classify("list applications", err)
	}
	apps, next = fleet.Cut(apps, n, func(last fleet.App) string { return key{last.ID}.cursor(1) })
	return apps, next, nil
}

// App returns one application. The error of one that does not exist lists some that do.
func (s *Lists) App(ctx context.Context, id string) (fleet.App, error) {
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

// AppsWith lists the ids of the applications with a version that has the archive of a component.
func (s *Lists) AppsWith(ctx context.Context, repository, revision string) ([]string, error) {
	ids, err := pgdb.Rows(ctx, s.db, pgx.RowTo[string], `select distinct app_id from app_versions
		where profiles @> jsonb_build_array(jsonb_build_object('components', jsonb_build_array(jsonb_build_object('repository', $1::text, 'revision', $2::text))))
		order by app_id`, repository, revision)
	return ids, pgdb.Classify("list the applications with an archive", err)
}

// Staged returns a version of an application with its stage alone, NotFound where the catalog has none.
func (s *Lists) Staged(ctx context.Context, id, version string) (fleet.AppVersion, error) {
	found, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (v fleet.AppVersion, err error) {
		return v, row.Scan(&v.AppID, &v.Version, &v.Stage, &v.StageReason, &v.StageSince)
	}, `select app_id, version, stage, stage_reason, stage_since from app_versions where app_id = $1 and version = $2`, id, version)
	return pgdb.One("version", found, err)
}

// Deployed reports whether a deployment is of a version of an application, or was INSTALLED as that on a node, as far as the history goes.
func (s *Lists) Deployed(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, app, version string) (deployed bool, err error) {
	err = s.db.QueryRow(ctx, `select exists (select from deployments d where d.site = $1 and d.name = $2 and d.app = $3 and d.archived_at is null and (d.app_version = $4 and d.digest <> ''
		or exists (select from deployment_history h where h.site = d.site and h.deployment = d.name and h.app_version = $4 and h.to_state = 'INSTALLED')))`,
		site, name, app, version).Scan(&deployed)
	return deployed, pgdb.Classify("look whether a version is deployed", err)
}

// AppVersion returns one version of an application, with its document. The empty
// version is the one imported last.
func (s *Lists) AppVersion(ctx context.Context, id, version string) (fleet.AppVersion, error) {
	app, err := s.App(ctx, id)
	if err != nil {
		return fleet.AppVersion{}, err
	}
	if version == "" {
		version = app.Latest
	}
	found, err := pgdb.Rows(ctx, s.db, scanVersion, `select app_id, version, name, description, source, digest, document, profiles,
		parameters, imported_at, stage, stage_reason, stage_since from app_versions where app_id = $1 and version = $2`, id, version)
	v, err := pgdb.One("version", found, err)
	if err != nil && protocol.KindOf(err) == protocol.NotFound {
		return v, protocol.Errorf(protocol.NotFound, "application %s has no version %q; it has %s", id, version, orNothing(app.Versions))
	}
	return v, err
}

func scanVersion(row pgx.CollectableRow) (v fleet.AppVersion, err error) {
	var document, profiles, parameters []byte
	err = row.Scan(&v.AppID, &v.Version, &v.Name, &v.Description, &v.Source, &v.Digest, &document, &profiles, &parameters, &v.ImportedAt, &v.Stage, &v.StageReason, &v.StageSince)
	if err != nil {
		return v, err
	}
	v.Document = string(document)
	return v, cmp.Or(json.Unmarshal(profiles, &v.Profiles), json.Unmarshal(parameters, &v.Parameters))
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "nothing yet"
	}
	return strings.Join(names, ", ")
}
