package listdb

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// deploymentView reads deployments by their keys ($1 and $2, in the order of the answer) from their
// rows and counters. Each row is looked up by its key, so that the plan does not depend on
// PostgreSQL's statistics. $3 is how many nodes of each are looked at for those that are offline, $4 the text unrecorded.
const deploymentView = `select d.site, d.name, d.margo_id, d.app, d.app_version, d.profile, t.state,
	with_unrecorded(d.site, d.name, d.desired, t.reported), with_unrecorded(d.site, d.name, d.desired, t.shown), d.digest, d.commit,
	case when d.tombstone then d.problem when d.set_back and d.held = '' then 'the CO was restored from a backup: the site keeps what it runs until the rollout reaches it'
		when unrecorded.node is not null then 'node ' || unrecorded.node || ' ' || $4::text else coalesce(nullif(d.problem, ''), case when d.placement <> '' and d.generation > s.adopted then 'before the last change, which the site has not got yet: ' else '' end || d.placement) end as problem, d.created_at, greatest(d.updated_at, t.updated_at) as updated_at,
	d.archived_at is not null as archived, t.running, d.replicas,
	case when d.generation > s.adopted then d.updated_at else coalesce(t.since, d.created_at) end as since,
	t.fault_node, t.fault, d.generation, s.adopted, s.online, greatest(s.last_event_at, st.reported_at) as reported_at, d.held,
	d.held <> '' and coalesce((select state = 'withdrawn' from proposals where id = d.held), false) as withdrawn,
	coalesce(away.nodes, 0), coalesce(away.node, ''), away.since, coalesce(waits.why, '')
	from unnest($1::text[], $2::text[]) with ordinality as k (site, name, number),
	lateral (select * from deployment_status where site = k.site and name = k.name limit 1) t,
	lateral (select * from deployments where site = k.site and name = k.name limit 1) d,
	lateral (select * from sites where id = k.site limit 1) s
	left join lateral (select reported_at from streams where site = s.id and stream = '' limit 1) st on true
	left join lateral (select count(*) as nodes, (array_agg(n.id order by n.changed_at, n.id))[1] as node, min(n.changed_at) as since
		from (select node from deployment_nodes where site = k.site and deployment = k.name and state <> 'DELETED'
			and s.online and s.nodes_online < s.nodes and t.state <> 'DELETED' order by node limit $3) dn,
		lateral (select * from nodes where site = k.site and id = dn.node limit 1) n where not n.online) away on true
	left join lateral (select n.id || ': ' || (w ->> 'why') as why from nodes n, jsonb_array_elements(n.restrictions -> 'waits') w
		where n.site = k.site and n.restrictions is not null and w ->> 'deployment' = k.name limit 1) waits on true
	left join lateral (select n.id as node from nodes n where not d.desired and t.state <> 'DELETED' and n.site = k.site and n.inventory ? 'unknown' and n.inventory -> 'unknown' ? k.name
		order by n.id limit 1) unrecorded on true order by k.number`

// unrecorded says of a node that it has containers of a deployment that neither the deployments repo nor the node's agent knows of.
const unrecorded = "has containers of it, and its agent has lost the record of them: they stay as they are until it is deployed once more under this name, or deleted"

// awayInLists and awayOfOne are how many nodes of a deployment are looked at for those that are
// offline, at a site that has any: in a list of 100, and where one deployment is read.
const (
	awayInLists = 100
	awayOfOne   = 10_000
)

func scanDeployment(row pgx.CollectableRow) (d fleet.Deployment, err error) {
	var running []byte
	var fault, waits string
	var faultNode protocol.NodeID
	var reported, shown [8]int
	err = row.Scan(&d.Site, &d.Name, &d.ID, &d.App, &d.AppVersion, &d.Profile, &d.State, &reported, &shown, &d.Digest, &d.Commit,
		&d.Problem, &d.CreatedAt, &d.UpdatedAt, &d.Archived, &running, &d.DesiredNodes, &d.Since, &faultNode, &fault,
		&d.Generation, &d.ObservedGeneration, &d.SiteOnline, &d.ReportedAt, &d.Held, &d.Withdrawn,
		&d.NodesAway, &d.AwayNode, &d.AwaySince, &waits)
	if err != nil {
		return d, err
	}
	counts, showing := projection.Count(reported), projection.Count(shown)
	d.Installed, d.Counts = showing.Of(lifecycle.Installed), map[lifecycle.State]int{}
	present := 0
	for _, s := range lifecycle.States {
		n := counts.Of(s)
		if n > 0 {
			d.Counts[s] = n
		}
		if s != lifecycle.Deleting && s != lifecycle.Deleted {
			present += n
		}
	}
	if d.DesiredNodes == 0 {
		d.DesiredNodes = present
	}
	if faultNode != "" {
		fault = string(faultNode) + ": " + fault
	}
	err = json.Unmarshal(running, &d.Running)
	if fault != "" && waits != "" {
		fault += "; "
	}
	d.Reason = d.Explain(fault + waits)
	return d, err
}

// Deployments lists deployments by site and name, without their nodes and without the
// reasons of nodes that were not chosen. A page may hold fewer than its limit though
// there are more: those that are sought for are looked for in a bounded number of rows.
func (s *Lists) Deployments(ctx context.Context, f fleet.DeploymentFilter, p fleet.Page) (list []fleet.Deployment, next string, err error) {
	own, err := within(ctx, s.db, f.Site, f.Within)
	if err != nil {
		return nil, "", pgdb.Classify("list deployments", err)
	}
	keys, next, err := deploymentSource(f, own).list(ctx, s.db, p, 2)
	if err != nil {
		return nil, "", pgdb.Classify("list deployments", err)
	}
	sites, names := columns(keys)
	list, err = pgdb.Rows(ctx, s.db, scanDeployment, deploymentView, sites, names, awayInLists, unrecorded)
	return list, next, pgdb.Classify("list deployments", err)
}

// deploymentSource finds deployments: those of an application or in some states each by
// its own range of an index. sites are those that are looked at; nil: all.
func deploymentSource(f fleet.DeploymentFilter, sites []string) source {
	const columns = `select site as a, name as b, app, app_version, state`
	app, single := f.App.Single()
	states := f.States()
	rest := func(s *statement) {
		choose(s, "app_version", f.Version)
		s.add(" and ")
		contains(s, "a || '/' || b", f.Text)
		s.add(" and ")
		choose(s, "app", f.App)
	}
	if sites != nil || !single && f.State.All() {
		return source{
			add: func(s *statement, last key, limit int) {
				keyed{columns, "deployment_status", "name"}.rows(s, sites, last, limit, nothing)
			},
			residual: func(s *statement) {
				s.add(`state = any($::text[]) and `, pgdb.Texts(states))
				rest(s)
			},
		}
	}
	src := source{add: func(s *statement, last key, limit int) {
		s.add(`select * from (select '' as a, '' as b, '' as app, '' as app_version, '' as state where false`)
		for _, state := range states {
			s.add(` union all (`+columns+` from deployment_status where state = $ and (site, name) > ($, $)`, string(state), last[0], last[1])
			if single {
				s.add(` and app = $`, app)
			}
			s.add(` order by site, name limit $)`, limit)
		}
		s.add(`) u order by a, b limit $`, limit)
	}}
	if !f.Version.All() || f.Text != "" || !f.App.All() && !single {
		src.residual = rest
	}
	return src
}

// CountDeployments counts what a filter picks.
func (s *Lists) CountDeployments(ctx context.Context, f fleet.DeploymentFilter) (fleet.Total, error) {
	if f.Site == "" && f.App.All() && f.Version.All() && f.Text == "" {
		sum, err := s.sums(ctx, f.Within)
		total := fleet.Total{}
		for _, state := range f.States() {
			total.Count += sum.Deployments[state]
		}
		return total, err
	}
	own, err := within(ctx, s.db, f.Site, f.Within)
	if err != nil {
		return fleet.Total{}, pgdb.Classify("count deployments", err)
	}
	total, err := deploymentSource(f, own).count(ctx, s.db)
	return total, pgdb.Classify("count deployments", err)
}

// Deployment returns one deployment with its nodes, archived ones included.
func (s *Lists) Deployment(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) (fleet.Deployment, error) {
	found, err := pgdb.Rows(ctx, s.db, scanDeployment, deploymentView, []string{string(site)}, []string{string(name)}, awayOfOne, unrecorded)
	d, err := pgdb.One("deployment "+quote(string(name))+" at site "+quote(string(site)), found, err)
	if err != nil {
		return d, err
	}
	var rejected []byte
	err = s.db.QueryRow(ctx, `select rejected from deployments where site = $1 and name = $2`, site, name).Scan(&rejected)
	if err == nil {
		err = json.Unmarshal(rejected, &d.Rejected)
	}
	if err != nil {
		return d, pgdb.Classify("read deployment", err)
	}
	d.Nodes, err = pgdb.Rows(ctx, s.db, scanStatus, `select `+statusColumns+` from deployment_nodes d
		where site = $1 and deployment = $2 order by node`, site, name)
	return d, pgdb.Classify("read nodes of deployment", err)
}

const statusColumns = `node, state, phase, pulled_bytes, total_bytes, digest, refused, app_version, attempt, code, message,
	running, running_version, retry_at, components, updated_at, since,
	coalesce((select w ->> 'why' from nodes n, jsonb_array_elements(n.restrictions -> 'waits') w
		where n.site = d.site and n.id = d.node and w ->> 'deployment' = d.deployment limit 1), '')`

func scanStatus(row pgx.CollectableRow) (n fleet.DeploymentNode, err error) {
	var components []byte
	err = row.Scan(&n.Node, &n.State, &n.Phase, &n.PulledBytes, &n.TotalBytes, &n.Digest, &n.Refused, &n.AppVersion, &n.Attempt,
		&n.Code, &n.Message, &n.Running, &n.RunningVersion, &n.RetryAt, &components, &n.UpdatedAt, &n.Since, &n.Waits)
	if err != nil {
		return n, err
	}
	n.Running, n.RunningVersion = n.Runs()
	return n, json.Unmarshal(components, &n.Components)
}

// Transitions returns the last transitions of a deployment on all its nodes, newest
// first. A limit of 0 means fleet.DefaultLimit.
func (s *Lists) Transitions(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, limit int) ([]fleet.Transition, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (t fleet.Transition, err error) {
		err = row.Scan(&t.Time, &t.SiteTime, &t.Unsynced, &t.Node, &t.From, &t.To, &t.Actor, &t.Digest, &t.AppVersion, &t.Attempt, &t.Code, &t.Message)
		return t, err
	}, `select time, site_time, site_time_unsynced, node, from_state, to_state, actor, digest, app_version, attempt, code, message
		from deployment_history where site = $1 and deployment = $2 order by id desc limit $3`, site, name, fleet.Size(limit))
	return list, pgdb.Classify("read history", err)
}
func quote(s string) string { return fmt.Sprintf("%q", s) }
