package fleetdb

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// SaveDesired records what the deployments repo wants of a site as of a commit:
// list is everything that stands there, data what its site.yaml says. It returns
// what to publish, and whether that changed; only then the generation grows. A
// deployment that does not compile and brings no Entry keeps the entry recorded
// before. A site that is not known begins to exist.
func (s *Store) SaveDesired(
	ctx context.Context, site protocol.SiteID, commit string, list []fleet.Desired, data fleet.SiteData,
) (protocol.SiteDesired, bool, error) {
	var out protocol.SiteDesired
	var changed bool
	err := s.db.Tx(ctx, "save desired state", func(tx pgx.Tx) error {
		row, err := lockSite(ctx, tx, site)
		if err != nil {
			return err
		}
		recorded, err := readDesired(ctx, tx, site)
		if err != nil {
			return err
		}
		recordedData, err := readSiteData(ctx, tx, site)
		if err != nil {
			return err
		}
		d, rules := compareDesired(site, recorded, list), compareData(site, recordedData, data)
		changed = d.changed || rules.changed
		if changed {
			row.generation++
			row.commit = commit
		}
		b := &pgx.Batch{}
		d.queue(b, row.generation)
		rules.queue(b)
		if changed {
			b.Queue(`update sites set generation = $2, desired_commit = $3 where id = $1`, site, int64(row.generation), commit)
		}
		queueArchive(b, slices.Repeat([]string{string(site)}, len(d.removed)), d.removed)
		db.QueueEvents(b, append(d.events, rules.events...))
		out = s.siteDesired(site, row, d.entries, data.Rules)
		return tx.SendBatch(ctx, b).Close()
	})
	return out, changed, err
}

// LastDesired returns what SaveDesired returned last for a site: generation 0 and
// nothing to run where that never was.
func (s *Store) LastDesired(ctx context.Context, site protocol.SiteID) (protocol.SiteDesired, error) {
	var out protocol.SiteDesired
	err := s.db.Tx(ctx, "read desired state", func(tx pgx.Tx) error {
		var row siteRow
		err := tx.QueryRow(ctx, `select generation, desired_commit from sites where id = $1 for share`, site).Scan(&row.generation, &row.commit)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		recorded, err := readDesired(ctx, tx, site)
		if err != nil {
			return err
		}
		var entries []protocol.SiteEntry
		for _, r := range recorded {
			if r.desired && r.entry.Digest != "" {
				entries = append(entries, r.entry)
			}
		}
		rules, err := readRules(ctx, tx, site)
		if err != nil {
			return err
		}
		out = s.siteDesired(site, row, entries, plainRules(rules))
		return nil
	})
	return out, err
}

// Desired returns what SaveDesired recorded last for a site, by name: nothing where
// that never was.
func (s *Store) Desired(ctx context.Context, site protocol.SiteID) ([]fleet.Desired, error) {
	var out []fleet.Desired
	err := s.db.Tx(ctx, "read desired state", func(tx pgx.Tx) error {
		recorded, err := readDesired(ctx, tx, site)
		out = nil
		for _, r := range recorded {
			if r.desired {
				r.Site, r.Entry = site, r.entry
				out = append(out, r.Desired)
			}
		}
		return err
	})
	slices.SortFunc(out, func(a, b fleet.Desired) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return out, err
}

func (s *Store) siteDesired(
	site protocol.SiteID, row siteRow, entries []protocol.SiteEntry, rules []fleet.DataRule,
) protocol.SiteDesired {
	slices.SortFunc(entries, func(a, b protocol.SiteEntry) int {
		return strings.Compare(string(a.Deployment), string(b.Deployment))
	})
	return protocol.SiteDesired{
		V: protocol.Version, Site: site, Generation: row.generation, Epoch: s.db.Epoch(), Commit: row.commit, Deployments: entries,
		Data: wireRules(rules),
	}
}

// A desiredRow is what is recorded as desired of one deployment.
type desiredRow struct {
	fleet.Desired
	desired bool
	encoded []byte
	entry   protocol.SiteEntry
}

func readDesired(ctx context.Context, tx pgx.Tx, site protocol.SiteID) (map[protocol.DeploymentName]desiredRow, error) {
	list, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (r desiredRow, err error) {
		err = row.Scan(&r.Name, &r.ID, &r.App, &r.AppVersion, &r.Profile, &r.Commit, &r.desired, &r.encoded, &r.Problem)
		if err != nil || r.encoded == nil {
			return r, err
		}
		return r, protocol.Unmarshal(r.encoded, &r.entry)
	}, `select name, margo_id, app, app_version, profile, commit, desired, entry, problem from deployments where site = $1`, site)
	out := make(map[protocol.DeploymentName]desiredRow, len(list))
	for _, r := range list {
		out[r.Name] = r
	}
	return out, err
}

// A desiredDiff is what SaveDesired has to write.
type desiredDiff struct {
	site    protocol.SiteID
	changed bool
	entries []protocol.SiteEntry
	write   []desiredRow
	renewed []string // names that are new, or were removed and are desired once more
	removed []string
	events  []fleet.Event
}

func compareDesired(site protocol.SiteID, recorded map[protocol.DeploymentName]desiredRow, list []fleet.Desired) *desiredDiff {
	d := &desiredDiff{site: site}
	listed := map[protocol.DeploymentName]bool{}
	for i := range list {
		listed[list[i].Name] = true
		d.compare(list[i], recorded[list[i].Name])
	}
	for name, old := range recorded {
		if !old.desired || listed[name] {
			continue
		}
		d.removed = append(d.removed, string(name))
		d.changed = d.changed || old.encoded != nil
		d.event(fleet.DeploymentRemoved, old.Desired, "")
	}
	slices.Sort(d.removed)
	slices.SortStableFunc(d.events, func(a, b fleet.Event) int { return strings.Compare(string(a.Deployment), string(b.Deployment)) })
	return d
}

func (d *desiredDiff) compare(want fleet.Desired, old desiredRow) {
	now := desiredRow{Desired: want, desired: true, entry: want.Entry}
	if want.Entry.Digest == "" && want.Problem != "" && old.desired {
		now.entry = old.entry
		// What is shown is what runs: the file may not even say an application.
		if old.encoded != nil {
			now.ID, now.App, now.AppVersion, now.Profile = old.ID, old.App, old.AppVersion, old.Profile
		}
	}
	now.Entry = protocol.SiteEntry{}
	if now.entry.Digest != "" {
		now.entry.Deployment = want.Name
		now.encoded = protocol.Marshal(now.entry)
		d.entries = append(d.entries, now.entry)
	}
	same := bytes.Equal(now.encoded, old.encoded)
	switch {
	case !old.desired:
		d.renewed = append(d.renewed, string(want.Name))
		d.event(fleet.DeploymentCreated, now.Desired, "")
		d.changed = d.changed || now.encoded != nil
	case !same:
		d.event(fleet.DeploymentChanged, now.Desired, "")
		d.changed = true
	}
	if now.Problem != "" && (now.Problem != old.Problem || !old.desired) {
		kind := fleet.DeploymentInvalid
		if want.Waiting {
			kind = fleet.DeploymentWaiting
		}
		d.event(kind, now.Desired, now.Problem)
	}
	if !old.desired || !same || old.Problem != now.Problem || old.Commit != now.Commit || old.ID != now.ID ||
		old.App != now.App || old.AppVersion != now.AppVersion || old.Profile != now.Profile {
		d.write = append(d.write, now)
	}
}

func (d *desiredDiff) event(kind string, of fleet.Desired, message string) {
	d.events = append(d.events, fleet.Event{
		Kind: kind, Site: d.site, Deployment: of.Name, AppVersion: of.AppVersion, Message: message,
	})
}

// queue writes the difference; generation is that of the site's desired state with it.
func (d *desiredDiff) queue(b *pgx.Batch, generation uint64) {
	for _, r := range d.write {
		b.Queue(`insert into deployments as d (site, name, margo_id, app, app_version, profile, commit, desired, digest, entry, problem,
				generation, replicas)
			values ($1, $2, $3, $4, $5, $6, $7, true, $8, $9, $10, $11, $12)
			on conflict (site, name) do update set margo_id = $3, app = $4, app_version = $5, profile = $6, commit = $7, desired = true,
				digest = $8, entry = $9, problem = $10, replicas = $12, updated_at = now(),
				generation = case when d.entry is distinct from $9 then $11 else d.generation end`,
			d.site, r.Name, r.ID, r.App, r.AppVersion, r.Profile, r.Commit, r.entry.Digest, r.encoded, r.Problem,
			int64(generation), replicas(r.entry.Placement))
		if r.entry.Spec != nil {
			b.Queue(`insert into specs (digest, spec) values ($1, $2) on conflict do nothing`, r.entry.Digest, r.entry.Spec)
		}
	}
	if len(d.renewed) > 0 {
		b.Queue(`update deployments set archived_at = null, placement = '', rejected = '{}', created_at = now()
			where site = $1 and name = any($2)`, d.site, d.renewed)
	}
	if len(d.removed) > 0 {
		b.Queue(`update deployments set desired = false, entry = null, problem = '', placement = '', rejected = '{}', updated_at = now(),
			generation = $3 where site = $1 and name = any($2)`, d.site, d.removed, int64(generation))
	}
}

// replicas is how many nodes should run what is placed so; 0: every node that matches.
func replicas(p protocol.Placement) int64 {
	if p.Replicas == 0 && p.Node != "" {
		return 1
	}
	return int64(min(p.Replicas, math.MaxInt32))
}

// queueArchive archives those of the deployments that the repo does not want and
// no node has any more, and revives those that a node still reports.
func queueArchive(b *pgx.Batch, sites, names []string) {
	if len(names) == 0 {
		return
	}
	// The limit keeps PostgreSQL from reading the rows of all deployments for those of a few.
	b.Queue(`update deployments d set archived_at = case when g.gone then now() end, updated_at = now()
		from (select x.site, x.name, not x.desired and l.there = 0 as gone
			from unnest($1::text[], $2::text[]) as u (site, name) join deployments x on x.site = u.site and x.name = u.name,
			lateral (select count(*) as there from (select from deployment_nodes n
				where n.site = x.site and n.deployment = x.name and n.state <> 'DELETED' limit 1) first) l) g
		where d.site = g.site and d.name = g.name and (d.archived_at is not null) <> g.gone`, sites, names)
}
