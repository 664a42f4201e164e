// Package versions keeps versions of applications immutable in the CO's database, also over
// their removal, and says which of them may be deployed.
package versions

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// shownUsers is how many of the deployments that use a version an error lists.
const shownUsers = 10

// Remove removes a version of an application from the catalog, and the application
// with its last one. One that a deployment is to run, or that a node runs, is a Conflict. What
// the version was is remembered: under its name only the same bytes are accepted again.
func Remove(ctx context.Context, tx pgx.Tx, id, version string) error {
	var digest protocol.Digest
	// In the order in which SaveAppVersion locks.
	err := tx.QueryRow(ctx, `select v.digest from apps a join app_versions v on v.app_id = a.id where a.id = $1 and v.version = $2 for update of a`,
		id, version).Scan(&digest)
	if errors.Is(err, pgx.ErrNoRows) {
		return protocol.Errorf(protocol.NotFound, "application %s has no version %q", id, version)
	}
	if err != nil {
		return err
	}
	users, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `select d.site || '/' || d.name from deployments d where d.archived_at is null and d.app = $1 and
		(d.desired and d.app_version = $2 or exists (select from deployment_nodes n where n.site = d.site and n.deployment = d.name
			and (n.app_version = $2 or n.running_version = $2) and n.state <> 'DELETED'))
		union select 'fleet deployment ' || r.fleet from rollouts r where r.app = $1 and r.app_version = $2 and (r.state in ('running', 'paused')
			or exists (select from rollout_sites s where s.fleet = r.fleet and r.revision in (s.revision, s.previous))) order by 1 limit $3`, id, version, shownUsers+1)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		more := ""
		if len(users) > shownUsers {
			users, more = users[:shownUsers], " and more"
		}
		return protocol.Errorf(protocol.Conflict, "application %s %s is in use by %s%s: deploy another version there, or delete them, first",
			id, version, strings.Join(users, ", "), more)
	}
	if _, err := tx.Exec(ctx, `insert into archive_pins (repository, revision, digest) values ($1, $2, $3) on conflict do nothing`,
		removedVersion(id), version, digest); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `delete from app_versions where app_id = $1 and version = $2`, id, version); err != nil {
		return err
	}
	if err := FindLatest(ctx, tx, id); err != nil {
		return err
	}
	return db.WriteEvents(ctx, tx, []fleet.Event{{Kind: fleet.AppRemoved, AppVersion: version, Message: id + " " + version}})
}

// removedVersion is under what the digests of an application's removed versions are pinned.
// It is no reference to a repository: it has a space.
func removedVersion(id string) string { return "application " + id }

// SetStage gives the version that v names the stage of v and its reason. Those that it has already change nothing.
func SetStage(ctx context.Context, tx pgx.Tx, v *fleet.AppVersion) error {
	id, version, stage, reason := v.AppID, v.Version, v.Stage, v.StageReason
	var before fleet.Stage
	var why string
	// In the order in which SaveAppVersion locks.
	err := tx.QueryRow(ctx, `select v.stage, v.stage_reason from apps a join app_versions v on v.app_id = a.id where a.id = $1 and v.version = $2 for update of a`,
		id, version).Scan(&before, &why)
	if errors.Is(err, pgx.ErrNoRows) {
		return protocol.Errorf(protocol.NotFound, "application %s has no version %q", id, version)
	}
	if err != nil || before == stage && why == reason {
		return err
	}
	if _, err := tx.Exec(ctx, `update app_versions set stage = $3, stage_reason = $4, stage_since = case when stage = $3 then stage_since else now() end
		where app_id = $1 and version = $2`, id, version, stage, reason); err != nil {
		return err
	}
	if err := FindLatest(ctx, tx, id); err != nil {
		return err
	}
	message := id + " " + version + ": " + string(stage)
	if reason != "" {
		message += ": " + reason
	}
	return db.WriteEvents(ctx, tx, []fleet.Event{{Kind: fleet.AppStageChanged, AppVersion: version, Message: message}})
}

// FindLatest makes the newest version of the earliest stage that an application has its latest one, or removes an
// application that has none.
func FindLatest(ctx context.Context, tx pgx.Tx, id string) error {
	type version struct {
		version, name, description string
		stage                      fleet.Stage
	}
	left, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (v version, err error) {
		err = row.Scan(&v.version, &v.name, &v.description, &v.stage)
		return v, err
	}, `select version, name, description, stage from app_versions where app_id = $1 order by number`, id)
	if err != nil {
		return err
	}
	if len(left) == 0 {
		_, err = tx.Exec(ctx, `delete from apps where id = $1`, id)
		return err
	}
	newest := left[0]
	for _, v := range left[1:] {
		is, was := slices.Index(fleet.Stages, v.stage), slices.Index(fleet.Stages, newest.stage)
		if is < was || is == was && fleet.Newer(v.version, newest.version) {
			newest = v
		}
	}
	_, err = tx.Exec(ctx, `update apps set name = $2, description = $3, latest = $4, updated_at = now()
		where id = $1 and (name, description, latest) is distinct from ($2, $3, $4)`, id, newest.name, newest.description, newest.version)
	return err
}

// AsBeforeRemoval refuses, as a Conflict, a version that was removed and had other bytes.
func AsBeforeRemoval(ctx context.Context, tx pgx.Tx, v fleet.AppVersion) error {
	var digest protocol.Digest
	err := tx.QueryRow(ctx, `select digest from archive_pins where repository = $1 and revision = $2`, removedVersion(v.AppID), v.Version).Scan(&digest)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil && digest != v.Digest {
		err = protocol.Errorf(protocol.Conflict, "application %s %s was removed, and had other content (%s, now %s): a version is immutable, raise metadata.version",
			v.AppID, v.Version, digest.Short(), v.Digest.Short())
	}
	return err
}

// Same refuses, as a Conflict, other bytes under a version that is there.
func Same(ctx context.Context, tx pgx.Tx, v fleet.AppVersion) error {
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
