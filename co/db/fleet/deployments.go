package fleetdb

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// deploymentView derives the state of each deployment from what its nodes reported and
// from what the site has adopted. The worst state of the nodes that still have it
// counts, where a node that runs another version than the desired one has failed if it
// gave the desired one up, and is otherwise still to be updated. INSTALLED asks for
// more: the site has adopted the last change, the file of that change compiled, and as
// many nodes as desired run it. DELETED nodes count only once the deployment is
// archived.
var deploymentView = `select d.site, d.name, d.margo_id, d.app, d.app_version, d.profile,
	case when d.archived_at is not null then 'DELETED'
		when not d.desired and d.commit <> '' then case n.worst when 'FAILED' then 'FAILED' else 'DELETING' end
		when n.worst = 'INSTALLED' and (d.generation > s.adopted or d.problem <> '' or n.installed < d.replicas) then 'PENDING'
		else coalesce(n.worst, 'PENDING') end as state,
	n.counts, d.digest, d.commit, coalesce(nullif(d.problem, ''), d.placement) as problem, d.rejected,
	d.created_at, greatest(d.updated_at, n.updated_at) as updated_at, d.archived_at is not null as archived,
	n.running, n.installed, case when d.replicas > 0 then d.replicas else n.present end as desired_nodes,
	case when d.generation > s.adopted then d.updated_at else coalesce(n.since, d.created_at) end as since,
	n.fault, d.generation, s.adopted, s.online, ` + reportedAt + ` as reported_at
	from deployments d join sites s on s.id = d.site, lateral (
		select ` + statesArray() + `[min(array_position(` + statesArray() + `, shown)) filter (where state <> 'DELETED')] as worst,
			coalesce((select jsonb_object_agg(state, number) from (select state, count(*) as number from deployment_nodes
				where site = d.site and deployment = d.name group by state) c), '{}') as counts,
			coalesce((select jsonb_object_agg(app_version, number) from (select app_version, count(*) as number from deployment_nodes
				where site = d.site and deployment = d.name and state = 'INSTALLED' group by app_version) r), '{}') as running,
			count(*) filter (where shown = 'INSTALLED') as installed,
			count(*) filter (where state not in ('DELETING', 'DELETED')) as present,
			max(since) as since, max(updated_at) as updated_at,
			coalesce(min(node || ': ' || concat_ws(': ', nullif(code, ''), nullif(message, ''))) filter (where shown = 'FAILED'), '') as fault
		from (select *, case when state = 'INSTALLED' and digest <> d.digest
				then case when refused = d.digest then 'FAILED' else 'PENDING' end else state end as shown
			from deployment_nodes where site = d.site and deployment = d.name) x
	) n`

func statesArray() string {
	names := make([]string, len(lifecycle.States))
	for i, s := range lifecycle.States {
		names[i] = "'" + string(s) + "'"
	}
	return "(array[" + strings.Join(names, ",") + "])"
}

func scanDeployment(row pgx.CollectableRow) (d fleet.Deployment, err error) {
	var counts, rejected, running []byte
	var fault string
	err = row.Scan(&d.Site, &d.Name, &d.ID, &d.App, &d.AppVersion, &d.Profile, &d.State, &counts, &d.Digest, &d.Commit,
		&d.Problem, &rejected, &d.CreatedAt, &d.UpdatedAt, &d.Archived, &running, &d.Installed, &d.DesiredNodes, &d.Since, &fault,
		&d.Generation, &d.ObservedGeneration, &d.SiteOnline, &d.ReportedAt)
	if err != nil {
		return d, err
	}
	err = first(json.Unmarshal(counts, &d.Counts), json.Unmarshal(rejected, &d.Rejected), json.Unmarshal(running, &d.Running))
	d.Reason = d.Explain(fault)
	return d, err
}

// Deployments lists deployments by site and name, without their nodes.
func (s *Store) Deployments(ctx context.Context, f fleet.DeploymentFilter, p fleet.Page) (list []fleet.Deployment, next string, err error) {
	keys, err := after(p, 2)
	if err != nil {
		return nil, "", err
	}
	archived := f.Archived || f.State == lifecycle.Deleted
	list, err = pgdb.Rows(ctx, s.db, scanDeployment, `select * from (`+deploymentView+`
		where (d.site, d.name) > ($1, $2) and ($3 = '' or d.site = $3) and ($4 = '' or d.app = $4) and ($5 or d.archived_at is null)) v
		where $6 = '' or state = $6 order by site, name limit $7`,
		keys[0], keys[1], string(f.Site), f.App, archived, string(f.State), fleet.Size(p.Limit)+1)
	if err != nil {
		return nil, "", pgdb.Classify("list deployments", err)
	}
	list, next = cut(list, p, func(d fleet.Deployment) []string { return []string{string(d.Site), string(d.Name)} })
	return list, next, nil
}

// Deployment returns one deployment with its nodes, archived ones included.
func (s *Store) Deployment(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) (fleet.Deployment, error) {
	found, err := pgdb.Rows(ctx, s.db, scanDeployment, deploymentView+` where d.site = $1 and d.name = $2`, site, name)
	d, err := pgdb.One("deployment "+quote(string(name))+" at site "+quote(string(site)), found, err)
	if err != nil {
		return d, err
	}
	d.Nodes, err = pgdb.Rows(ctx, s.db, scanStatus, `select `+statusColumns+` from deployment_nodes
		where site = $1 and deployment = $2 order by node`, site, name)
	return d, pgdb.Classify("read nodes of deployment", err)
}

const statusColumns = `node, state, phase, pulled_bytes, total_bytes, digest, refused, app_version, attempt, code, message,
	components, updated_at, since`

func scanStatus(row pgx.CollectableRow) (n fleet.DeploymentNode, err error) {
	var components []byte
	err = row.Scan(&n.Node, &n.State, &n.Phase, &n.PulledBytes, &n.TotalBytes, &n.Digest, &n.Refused, &n.AppVersion, &n.Attempt,
		&n.Code, &n.Message, &components, &n.UpdatedAt, &n.Since)
	if err != nil {
		return n, err
	}
	return n, json.Unmarshal(components, &n.Components)
}

// Transitions returns the last transitions of a deployment on all its nodes, newest
// first. A limit of 0 means fleet.DefaultLimit.
func (s *Store) Transitions(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, limit int) ([]fleet.Transition, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (t fleet.Transition, err error) {
		err = row.Scan(&t.Time, &t.SiteTime, &t.Node, &t.From, &t.To, &t.Actor, &t.Digest, &t.AppVersion, &t.Attempt, &t.Code, &t.Message)
		return t, err
	}, `select time, site_time, node, from_state, to_state, actor, digest, app_version, attempt, code, message
		from deployment_history where site = $1 and deployment = $2 order by id desc limit $3`, site, name, fleet.Size(limit))
	return list, pgdb.Classify("read history", err)
}

// SaveSpec stores an encoded DeploymentSpec and returns its digest.
func (s *Store) SaveSpec(ctx context.Context, spec []byte) (protocol.Digest, error) {
	digest := protocol.DigestOf(spec)
	_, err := s.db.Exec(ctx, `insert into specs (digest, spec) values ($1, $2) on conflict do nothing`, digest, spec)
	return digest, pgdb.Classify("save spec", err)
}

// Spec returns what has a digest: an encoded DeploymentSpec, or the encoded
// SiteDesired that SaveBody stored last for a site.
func (s *Store) Spec(ctx context.Context, digest protocol.Digest) ([]byte, error) {
	found, err := pgdb.Rows(ctx, s.db, pgx.RowTo[[]byte], `select spec from specs where digest = $1
		union all (select body from desired_bodies where digest = $1 limit 1)`, digest)
	return pgdb.One("spec "+string(digest), found, err)
}

// SaveBody makes an encoded SiteDesired what a site finds under its digest, in place of
// the previous one.
func (s *Store) SaveBody(ctx context.Context, site protocol.SiteID, digest protocol.Digest, body []byte) error {
	_, err := s.db.Exec(ctx, `insert into desired_bodies as b (site, digest, body) values ($1, $2, $3)
		on conflict (site) do update set digest = $2, body = $3 where b.digest <> $2`, site, digest, body)
	return pgdb.Classify("save desired state of site "+string(site), err)
}
