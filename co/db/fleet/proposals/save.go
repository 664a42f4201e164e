package proposaldb

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// Save brings the proposals of sites up to their desired states: it opens what is held and
// no proposal did, and ends what is not held any more. The caller holds the locks of the sites
// in tx.
func Save(ctx context.Context, tx pgx.Tx, list []fleet.SiteWant) error {
	sites := make([]protocol.SiteID, len(list))
	for i := range list {
		sites[i] = list[i].Site
	}
	active, err := pgdb.Rows(ctx, tx, pgx.RowTo[protocol.SiteID], `select distinct site from proposal_effects where site = any($1) and active`, pgdb.Texts(sites))
	if err != nil {
		return err
	}
	for _, w := range list {
		holds := slices.ContainsFunc(w.Desired, func(d fleet.Desired) bool { return d.Hold.Proposal != "" })
		if !holds && !slices.Contains(active, w.Site) {
			continue
		}
		if err := saveSite(ctx, tx, w.Site, w.Desired); err != nil {
			return err
		}
	}
	return nil
}

// saveSite is Save for one site.
func saveSite(ctx context.Context, tx pgx.Tx, site protocol.SiteID, list []fleet.Desired) error {
	held, listed := map[string][]fleet.Desired{}, map[protocol.DeploymentName]string{}
	for _, d := range list {
		listed[d.Name] = d.Hold.Proposal
		if d.Hold.Proposal != "" {
			held[d.Hold.Proposal] = append(held[d.Hold.Proposal], d)
		}
	}
	// The proposals are locked before their effects, in the order of their ids, as Confirm does.
	active, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `select id from proposals
		where id in (select proposal from proposal_effects where site = $1 and active) order by id for update`, site)
	if err != nil {
		return err
	}
	// One that ends makes room for another of the same deployment.
	if err := end(ctx, tx, site, listed); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(held)) {
		if err := open(ctx, tx, site, id, held[id]); err != nil {
			return err
		}
	}
	return closeDone(ctx, tx, active, "")
}

// open adds the effects of a site to a proposal. Its id was chosen for all sites before the first
// of them was saved: if it was decided since, it is open once more for its new effects, and the
// decision about the other effects stays.
func open(ctx context.Context, tx pgx.Tx, site protocol.SiteID, id string, list []fleet.Desired) error {
	hold := list[0].Hold
	if _, err := tx.Exec(ctx, `insert into proposals (id, kind, commit) values ($1, $2, $3) on conflict (id) do nothing`,
		id, proposal.Removals, hold.Commit); err != nil {
		return err
	}
	var text [4][]string // deployment, app, version, cause
	for _, d := range list {
		for i, s := range [4]string{string(d.Name), d.App, d.AppVersion, d.Hold.Cause} {
			text[i] = append(text[i], s)
		}
	}
	if _, err := tx.Exec(ctx, `update proposal_effects e set cause = u.cause from unnest($3::text[], $4::text[]) as u (name, cause)
		where e.proposal = $1 and e.site = $2 and e.deployment = u.name and e.active and e.cause <> u.cause`, id, site, text[0], text[3]); err != nil {
		return err
	}
	opened, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `insert into proposal_effects as e (proposal, site, deployment, app, app_version, cause, nodes, node_count)
		select $1, $2, u.name, u.app, u.version, u.cause, n.nodes[1:$7], cardinality(n.nodes)
		from unnest($3::text[], $4::text[], $5::text[], $6::text[]) as u (name, app, version, cause), lateral (
			select coalesce(array_agg(node order by node), '{}') as nodes from deployment_nodes
			where site = $2 and deployment = u.name and state <> 'DELETED') n
		on conflict (proposal, site, deployment) do update set state = 'open', active = true, cause = excluded.cause where not e.active
		returning deployment`, id, site, text[0], text[1], text[2], text[3], proposal.MaxNodes)
	if err != nil || len(opened) == 0 {
		return err
	}
	if _, err := tx.Exec(ctx, `update proposals set state = 'open', closed_at = null, closed_by = '' where id = $1 and state <> 'open'`, id); err != nil {
		return err
	}
	return db.WriteEvents(ctx, tx, []fleet.Event{{Kind: fleet.ProposalOpened, Site: site, Message: fmt.Sprintf(
		"commit %.12s would remove %s at site %s, which is held: colony proposal show %s shows it, colony proposal confirm %s agrees to it",
		hold.Commit, count(opened), site, id, id)}})
}

func count(names []string) string {
	if len(names) == 1 {
		return "deployment " + names[0]
	}
	return fmt.Sprintf("%d deployments", len(names))
}

// end ends the effects of a site that its desired state does not hold any more.
func end(ctx context.Context, tx pgx.Tx, site protocol.SiteID, listed map[protocol.DeploymentName]string) error {
	type effect struct {
		id   string
		name protocol.DeploymentName
	}
	list, err := pgdb.Rows(ctx, tx, func(r pgx.CollectableRow) (e effect, err error) {
		err = r.Scan(&e.id, &e.name)
		return e, err
	}, `select proposal, deployment from proposal_effects where site = $1 and active order by proposal, deployment`, site)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	for _, e := range list {
		by, there := listed[e.name]
		if by == e.id {
			continue
		}
		state := proposal.Confirmed // it was removed
		if there {
			state = proposal.Superseded
		}
		b.Queue(`update proposal_effects set active = false, state = case state when 'open' then $4::text else state end
			where proposal = $1 and site = $2 and deployment = $3`, e.id, site, e.name, state)
	}
	return tx.SendBatch(ctx, b).Close()
}

// closeDone closes those of the proposals of which nothing waits any more.
func closeDone(ctx context.Context, tx pgx.Tx, ids []string, by string) error {
	done, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `update proposals p set closed_at = now(), closed_by = $2,
			state = case when exists (select from proposal_effects where proposal = p.id and state <> 'confirmed') then 'superseded' else 'confirmed' end
		where id = any($1) and state = 'open' and not exists (select from proposal_effects where proposal = p.id and state = 'open')
		returning id`, ids, pgdb.Storable(by))
	if err != nil {
		return err
	}
	var events []fleet.Event
	for _, id := range slices.Sorted(slices.Values(done)) {
		p, err := read(ctx, tx, id)
		if err != nil {
			return err
		}
		events = append(events, fleet.Event{Kind: kinds[p.State], Message: sentence(p, p.State, by)})
	}
	return db.WriteEvents(ctx, tx, events)
}
