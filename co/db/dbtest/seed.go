// Package dbtest fills a database of the CO with a fleet of any size, for tests and
// benchmarks of what reads it.
package dbtest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// A Size says how large a fleet is.
type Size struct {
	Sites       int
	Nodes       int // of each site
	Deployments int // of each site, each on an equal share of the nodes
	// Events is the number of events, as many transitions are in the history.
	Events int
}

// Scale returns a size with a part of the sites and events.
func (s Size) Scale(by float64) Size {
	s.Sites, s.Events = max(1, int(float64(s.Sites)*by)), int(float64(s.Events)*by)
	return s
}

// Site, Node, Deployment and App are the names that Seed gives.
func Site(i int) string { return fmt.Sprintf("site-%05d", i) }

// Node names a node of any site.
func Node(i int) string { return fmt.Sprintf("gateway-%03d", i) }

// Deployment names a deployment of any site.
func Deployment(i int) string { return fmt.Sprintf("deployment-%d", i) }

// App names an application; there are Apps of them.
func App(i int) string { return fmt.Sprintf("com.example.app-%02d", i) }

// Apps is the number of applications.
const Apps = 50

// Seed writes a fleet into an empty database. Most sites and nodes are online and most deployments
// INSTALLED, spread so that any part of the fleet looks like the whole. One site of 100 is offline,
// and one node of 50; one node of 1,000 has an old agent. One deployment of 97 has failed on a
// node, one of 193 is being installed, and one of 500 waits for its site. Each node has the labels
// role (one of three), zone (one of a hundred) and serial, which is its own. The statistics of the
// tables are those of the fleet.
func Seed(ctx context.Context, conn *pgx.Conn, s Size) error {
	for _, step := range seedSteps {
		if _, err := conn.Exec(ctx, step.sql, step.args(s)...); err != nil {
			return fmt.Errorf("seed %s: %w", step.what, err)
		}
	}
	found, err := conn.Query(ctx, `select relname::text from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r'`)
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	tables, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	return settle(ctx, conn, strings.Join(tables, ", "))
}

// settle gives tables their statistics, and has every page known as visible to all. While
// another backend has a snapshot, such as PostgreSQL's own vacuum, pages are left out:
// scans of an index then read the table as well.
func settle(ctx context.Context, conn *pgx.Conn, tables string) error {
	for {
		if _, err := conn.Exec(ctx, `vacuum analyze `+tables); err != nil {
			return fmt.Errorf("analyze tables: %w", err)
		}
		var left int64
		if err := conn.QueryRow(ctx, `select coalesce(sum(relpages - relallvisible), 0) from pg_class
			where relnamespace = current_schema()::regnamespace and relkind = 'r'`).Scan(&left); err != nil {
			return fmt.Errorf("look for pages that are not visible: %w", err)
		}
		if left <= 0 {
			return nil
		}
		if err := retry.Sleep(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%d pages are not visible to all: %w", left, err)
		}
	}
}

type step struct {
	what, sql string
	args      func(Size) []any
}

func none(Size) []any { return nil }

func perNode(s Size) []any { return []any{s.Sites, s.Nodes} }

const siteName = `'site-' || lpad(s::text, 5, '0')`

var seedSteps = []step{
	{"durability", `set synchronous_commit = off`, none},
	{
		"applications", `insert into apps (id, name, description, latest)
		select 'com.example.app-' || lpad(a::text, 2, '0'), 'App ' || a, 'An application', '1.1.0' from generate_series(0, $1::int - 1) a`,
		func(Size) []any { return []any{Apps} },
	},
	{"versions", `insert into app_versions (app_id, version, name, source, digest, document, profiles, parameters)
		select id, v, name, 'oci://registry/' || id, 'sha256:' || encode(sha256((id || v)::bytea), 'hex'), repeat('x', 2000)::bytea, '[]', '[]'
		from apps, unnest('{1.0.0,1.1.0}'::text[]) v`, none},
	{"sites", `insert into sites (id, online, changed_at, version, generation, adopted, desired_commit, journal_epoch, last_event_at)
		select ` + siteName + `, s % 100 <> 7, now() - interval '1 day', '1.4.0', 7, 7, repeat('c', 40), 'e', now()
		from generate_series(0, $1::int - 1) s`, func(s Size) []any { return []any{s.Sites} }},
	{"streams", `insert into streams (site, stream, epoch, reported_at, reported_epoch, last) select id, '', 'e', now(), 'e', 0 from sites`, none},
	{"nodes", `insert into nodes (site, id, online, changed_at, version, labels, inventory)
		select ` + siteName + `, 'gateway-' || lpad(n::text, 3, '0'), (s * 31 + n) % 50 <> 3, now() - interval '1 day',
			case when (s * 37 + n) % 1000 = 5 then '1.3.9' else '1.4.0' end,
			jsonb_build_object('role', (array['press', 'robot', 'mixer'])[1 + n % 3], 'zone', 'z' || lpad((s % 100)::text, 2, '0'), 'serial', 'sn-' || s || '-' || n),
			jsonb_build_object('node', 'gateway-' || n, 'hostname', 'gw' || n, 'os', 'Debian GNU/Linux 12 (bookworm)', 'kernel', '6.1.0-18-amd64',
				'architecture', 'amd64', 'cpuModel', 'Intel Atom x6425E', 'cores', 4, 'memoryBytes', 8589934592, 'engine', 'containerd',
				'engineVersion', '1.7.24', 'disks', jsonb_build_array(jsonb_build_object('mount', '/', 'device', '/dev/mmcblk0p2', 'totalBytes', 31000000000)))
		from generate_series(0, $1::int - 1) s, generate_series(0, $2::int - 1) n order by s, n`, perNode},
	{"specs", `insert into specs (digest, spec)
		select 'sha256:' || encode(sha256(('spec' || a || v)::bytea), 'hex'), repeat('x', 3000)::bytea
		from generate_series(0, $1::int - 1) a, unnest('{1.0.0,1.1.0}'::text[]) v`, func(Size) []any { return []any{Apps} }},
	{
		"deployments", `insert into deployments (site, name, margo_id, app, app_version, profile, commit, desired, digest, entry, rejected, generation)
		select ` + siteName + `, 'deployment-' || d, gen_random_uuid(), 'com.example.app-' || lpad(a::text, 2, '0'), v, 'compose', repeat('c', 40), true,
			'sha256:' || encode(sha256(('spec' || a || v)::bytea), 'hex'), repeat('e', 300)::bytea,
			case when (s + d) % 10 = 0 then (select jsonb_object_agg('gateway-' || lpad(r::text, 3, '0'), 'labels do not match: role=press') from generate_series(20, 99) r)
				else '{}' end, case when (s * 5 + d) % 500 = 9 then 8 else 7 end
		from (select s, d, (s * 7 + d) % $3::int as a, case when (s + d) % 20 = 3 then '1.0.0' else '1.1.0' end as v
			from generate_series(0, $1::int - 1) s, generate_series(0, $2::int - 1) d) x order by s, d`,
		func(s Size) []any { return []any{s.Sites, s.Deployments, Apps} },
	},
	{"states", `insert into deployment_nodes (site, deployment, node, state, digest, app_version, attempt, code, message)
		select site, name, 'gateway-' || lpad((d * $1::int / $2::int + n)::text, 3, '0'),
			case when n = 0 and (s * 5 + d) % 97 = 11 then 'FAILED' when (s * 5 + d) % 193 = 20 then 'INSTALLING' else 'INSTALLED' end, digest, app_version, 1,
			case when n = 0 and (s * 5 + d) % 97 = 11 then 'exited' else '' end,
			case when n = 0 and (s * 5 + d) % 97 = 11 then 'the container exited with status 1: cannot reach the database' else '' end
		from (select *, substr(site, 6)::int as s, substr(name, 12)::int as d from deployments) x, generate_series(0, $1::int / $2::int - 1) n
		order by s, d, n`, func(s Size) []any { return []any{s.Nodes, s.Deployments} }},
	{"counters of deployments", `select count_deployments(array_agg(site), array_agg(name)) from deployments`, none},
	{"states of deployments", `select derive_deployments(array_agg(site), array_agg(name)) from deployments`, none},
	{"counters of sites", `update sites s set nodes = n.nodes, nodes_online = n.online
		from (select site, count(*) as nodes, count(*) filter (where online) as online from nodes group by site) n where n.site = s.id`, none},
	{"labels", `insert into node_labels (label, site, node) select label_hash(l.key || '=' || l.value), n.site, n.id from nodes n, jsonb_each_text(n.labels) l`, none},
	{"history", `insert into deployment_history (time, site, deployment, node, from_state, to_state, actor, digest, app_version)
		select now() - i * interval '1 s', 'site-' || lpad((i % $1)::text, 5, '0'), 'deployment-' || (i / $1) % $2, 'gateway-' || lpad((i % $3)::text, 3, '0'), 'INSTALLING', 'INSTALLED', 'EN', repeat('d', 71), '1.1.0'
		from generate_series($4::int, 1, -1) i`, perEvent},
	{"partitions of events", `select make_event_partition() from generate_series(1, 6)`, none},
	{"events", `insert into events (id, time, kind, site, node, deployment, from_state, to_state, app_version, message)
		select $4::int - i + 1, now() - i * interval '1 s', case when i % 5000 = 17 then 'anomaly' when i % 10 < 7 then 'deployment_status' when i % 10 < 9 then 'node_online' else 'inventory' end,
			'site-' || lpad((i % $1)::text, 5, '0'), 'gateway-' || lpad((i % $3)::text, 3, '0'), case when i % 10 < 7 then 'deployment-' || (i / $1) % $2 else '' end,
			case when i % 10 < 7 then 'INSTALLING' else '' end, case when i % 10 < 7 then 'INSTALLED' else '' end, '1.1.0', ''
		from generate_series($4::int, 1, -1) i`, perEvent},
	{"sequence", `update event_sequence set last = (select coalesce(max(id), 0) from events)`, none},
	{
		"rules", `insert into data_rules (site, position, name, rule, store) select id, 0, 'temperatures', $1, true from sites limit 100`,
		func(Size) []any {
			return []any{protocol.Marshal(protocol.DataRule{Name: "temperatures", Topics: []string{"#"}})}
		},
	},
}

func perEvent(s Size) []any { return []any{s.Sites, s.Deployments, s.Nodes, s.Events} }

// Version is the version of a deployment of a site, and Digest that of its
// specification.
func Version(site, deployment int) string {
	if (site+deployment)%20 == 3 {
		return "1.0.0"
	}
	return "1.1.0"
}

// Digest is the digest of the specification of a deployment of a site.
func Digest(site, deployment int) protocol.Digest {
	return protocol.DigestOf(fmt.Appendf(nil, "spec%d%s", (site*7+deployment)%Apps, Version(site, deployment)))
}
