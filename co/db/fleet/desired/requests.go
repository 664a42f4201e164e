package desireddb

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// Request records what a person asks for. The next SaveDesired of the site takes it up.
// One that was made before is made once more, as it is asked for now.
func (s *Desired) Request(ctx context.Context, r fleet.Request) error {
	return s.db.Tx(ctx, "record request", func(tx pgx.Tx) error {
		if _, err := db.LockSite(ctx, tx, r.Site); err != nil { // SaveDesired takes up all or none of what it reads
			return err
		}
		_, err := tx.Exec(ctx, `insert into requests (site, kind, node, deployment, volume, volumes) values ($1, $2, $3, $4, $5, $6)
			on conflict (site, kind, node, deployment, volume) do update set pending = true, done_at = null, refused = '', requested_at = now(),
				volumes = excluded.volumes`,
			r.Site, string(r.Kind), r.Node, r.Deployment, r.Volume, r.Volumes)
		return err
	})
}

// Requested returns the sites with requests that were not taken up, and whether one of them is for the removal of the site. A site that
// kept something since the record was restored, and has no reason to any more, is one of them.
func (s *Desired) Requested(ctx context.Context) (map[protocol.SiteID]bool, error) {
	type asked struct {
		Site    protocol.SiteID
		Removal bool
	}
	list, err := pgdb.Rows(ctx, s.db, pgx.RowToStructByPos[asked], `select site, bool_or(removal) from (select site, kind = $1 as removal from requests where pending
		union all select site, false from deployments d where set_back and held = '' and not exists (select from rollout_sites m where m.fleet = d.name and m.site = d.site and m.retained)) r group by site`, string(fleet.RequestSite))
	out := make(map[protocol.SiteID]bool, len(list))
	for _, a := range list {
		out[a.Site] = a.Removal
	}
	return out, pgdb.Classify("read requests", err)
}

// A requestRow is a row of requests.
type requestRow struct {
	fleet.Request
	pending  bool
	position protocol.Position // zero: it is in no desired state
	done     bool
}

// readRequests reads the requests of sites, by their keys. One of a purge is done where the
// node has reported to have the volumes no more.
func readRequests(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) (map[protocol.SiteID][]requestRow, error) {
	out := map[protocol.SiteID][]requestRow{}
	_, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (none struct{}, err error) {
		var r requestRow
		err = row.Scan(&r.Site, &r.Kind, &r.Node, &r.Deployment, &r.Volume, &r.Volumes, &r.pending, &r.position.Epoch, &r.position.Generation, &r.done)
		out[r.Site] = append(out[r.Site], r)
		return none, err
	}, `select r.site, r.kind, r.node, r.deployment, r.volume, r.volumes, r.pending, r.epoch, r.generation,
			case when r.kind = $2 then (r.epoch, r.generation) <= (s.adopted_epoch, s.adopted) and not exists (
				select from nodes n where n.site = r.site and n.id = r.node and (
					coalesce((n.inventory->>'volumeCount')::bigint, 0) > jsonb_array_length(coalesce(n.inventory->'volumes', '[]'))
					or exists (select from jsonb_array_elements(coalesce(n.inventory->'volumes', '[]')) v
						where v->>'deployment' = r.deployment and (r.volume = '' or v->>'name' = r.volume))))
			else r.done_at is not null end
		from requests r join sites s on s.id = r.site where r.site = any($1) order by r.site, r.kind, r.node, r.deployment, r.volume`,
		pgdb.Texts(sites), string(fleet.RequestPurge))
	return out, err
}

// purges returns the purges that a desired state has.
func purges(rows []requestRow) (out []protocol.Purge) {
	for _, r := range rows {
		if r.Kind == fleet.RequestPurge && !r.position.IsZero() {
			out = append(out, protocol.Purge{Node: r.Node, Deployment: r.Deployment, Volume: r.Volume, Position: r.position})
		}
	}
	slices.SortFunc(out, func(a, b protocol.Purge) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Deployment, b.Deployment), cmp.Compare(a.Volume, b.Volume))
	})
	return out
}

// wireDecommissions returns the decommissions that a desired state has.
func wireDecommissions(rows []requestRow) (out []protocol.Decommission) {
	for _, r := range rows {
		if r.Kind == fleet.RequestDecommission && !r.position.IsZero() {
			out = append(out, protocol.Decommission{Node: r.Node, Position: r.position})
		}
	}
	return out // sorted by node, as the rows are
}

// request takes up what people have asked for. Removals become tombstones with a zero
// Position; one of a deployment that the repo has is void. The volumes go where it is asked for now: a tombstone that had them may be of before
// what runs, as in a record that was restored.
func (d *desiredDiff) request(rows []requestRow, recorded map[protocol.DeploymentName]desiredRow) {
	d.requests, d.requested = rows, len(rows) > 0
	for _, r := range rows {
		if !r.pending {
			continue
		}
		switch r.Kind {
		case fleet.RequestRemoval:
		case fleet.RequestSite:
			if !d.files {
				continue // RemoveSite takes it up
			}
			d.event(fleet.SiteKept, fleet.Desired{}, "the site is not removed: the deployments repo has files for it")
			continue
		default:
			d.changed = true
			continue
		}
		if d.listed[r.Deployment] {
			continue
		}
		d.changed = true
		old := recorded[r.Deployment]
		d.removals = slices.DeleteFunc(d.removals, func(t protocol.Removal) bool { return t.Deployment == r.Deployment })
		d.removals = append(d.removals, protocol.Removal{Deployment: r.Deployment, Volumes: r.Volumes})
		d.repeated = append(d.repeated, r.Request)
		if !old.desired { // else it is removed just now
			d.event(fleet.DeploymentRemoved, fleet.Desired{Name: r.Deployment, AppVersion: old.AppVersion}, "asked for by name: the deployments repo does not have it")
		}
	}
}

// placeRequests gives the next position to the requests that are new in the desired state,
// and leaves out those that are done.
func (d *desiredDiff) placeRequests(next protocol.Position) {
	d.requests = slices.DeleteFunc(d.requests, func(r requestRow) bool { return r.done && !r.pending })
	for i := range d.requests {
		if d.requests[i].pending {
			d.requests[i].position = next
		}
	}
}

// queueRequests writes what became of the requests: all were taken up, but for that of a site without files.
func (d *desiredDiff) queueRequests(b *pgx.Batch, row db.SiteRow) {
	if !d.requested {
		return
	}
	epoch, generation := int64(row.Desired.Epoch), int64(row.Desired.Generation)
	for _, r := range d.repeated {
		b.Queue(`insert into deployments as d (site, name, commit, epoch, generation, tombstone, remove_volumes) values ($1, $2, $3, $4, $5, true, $6)
			on conflict (site, name) do update set tombstone = true, remove_volumes = $6,
				epoch = $4, generation = $5, updated_at = now(), commit = case when d.commit = '' then $3 else d.commit end`,
			d.site, r.Deployment, row.Commit, epoch, generation, r.Volumes)
	}
	b.Queue(`delete from requests where site = $1 and (kind = $2 or kind = $3 and $4)`, d.site, string(fleet.RequestRemoval), string(fleet.RequestSite), d.files)
	if !d.changed {
		return
	}
	var keep [4][]string
	for _, r := range d.requests {
		for i, s := range [4]string{string(r.Kind), string(r.Node), string(r.Deployment), r.Volume} {
			keep[i] = append(keep[i], s)
		}
	}
	b.Queue(`delete from requests r where site = $1 and kind = $2 and not exists (
		select from unnest($3::text[], $4::text[], $5::text[], $6::text[]) as u (kind, node, deployment, volume)
		where u.kind = r.kind and u.node = r.node and u.deployment = r.deployment and u.volume = r.volume)`,
		d.site, string(fleet.RequestPurge), pgdb.Filled(keep[0]), pgdb.Filled(keep[1]), pgdb.Filled(keep[2]), pgdb.Filled(keep[3]))
	// A removal of a node that is answered is not published any more; the record of it stays.
	b.Queue(`update requests set epoch = 0, generation = 0 where site = $1 and kind = $2 and done_at is not null and not pending`,
		d.site, string(fleet.RequestDecommission))
	b.Queue(`update requests set pending = false, epoch = $2, generation = $3 where site = $1 and pending and kind <> $4`, d.site, epoch, generation, string(fleet.RequestSite))
}

// readUnrecorded returns the deployments that nodes of sites have containers of without a record:
// no node reports their end, so that their tombstones stay.
func readUnrecorded(ctx context.Context, q pgdb.Querier, sites []protocol.SiteID) (map[protocol.SiteID]map[protocol.DeploymentName]bool, error) {
	out := map[protocol.SiteID]map[protocol.DeploymentName]bool{}
	if len(sites) == 0 {
		return out, nil
	}
	_, err := pgdb.Rows(ctx, q, func(row pgx.CollectableRow) (none struct{}, err error) {
		var site protocol.SiteID
		var name protocol.DeploymentName
		err = row.Scan(&site, &name)
		if out[site] == nil {
			out[site] = map[protocol.DeploymentName]bool{}
		}
		out[site][name] = true
		return none, err
	}, `select distinct site, jsonb_array_elements_text(inventory->'unknown') from nodes
		where site = any($1) and jsonb_typeof(inventory->'unknown') = 'array'`, pgdb.Texts(sites))
	return out, err
}

// Unrecorded reports whether a node of a site has containers of a deployment without a
// record of it.
func (s *Desired) Unrecorded(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) (bool, error) {
	found, err := readUnrecorded(ctx, s.db, []protocol.SiteID{site})
	return found[site][name], pgdb.Classify("read unrecorded deployments", err)
}
