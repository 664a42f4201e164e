package listdb

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// nodeView reads what the CO knows of nodes now: of a site that is offline it does not know
// which of them are online.
const nodeView = `select n.site, n.id, n.online and s.online,
	case when s.online then n.changed_at else greatest(n.changed_at, s.changed_at) end, n.version, n.problem, n.labels, n.inventory, n.restrictions,
	` + nodeState + `, greatest(s.last_event_at, st.reported_at)
	from unnest($1::text[], $2::text[]) with ordinality as k (site, id, number),
	lateral (select * from nodes where site = k.site and id = k.id limit 1) n, lateral (select * from sites where id = k.site limit 1) s
	left join lateral (select reported_at from streams where site = s.id and stream = '' limit 1) st on true
	where n.labels @> $3 order by k.number`

// nodeState is the state of a node n of a site s.
const nodeState = `case when not s.online then 'unknown' when n.online then 'online' else 'offline' end`

func scanNodeView(row pgx.CollectableRow) (n fleet.Node, err error) {
	var labels, inventory, restrictions []byte
	err = row.Scan(&n.Site, &n.ID, &n.Online, &n.ChangedAt, &n.Version, &n.Problem, &labels, &inventory, &restrictions, &n.State, &n.ReportedAt)
	if err != nil {
		return n, err
	}
	if err := db.DecodeNode(&n, labels, inventory, restrictions); err != nil {
		return n, err
	}
	n.Problem = n.Problems()
	return n, nil
}

// Nodes lists nodes by site and id. A page may hold fewer than its limit though there
// are more, as one of Deployments.
func (s *Lists) Nodes(ctx context.Context, f fleet.NodeFilter, p fleet.Page) (nodes []fleet.Node, next string, err error) {
	labels, err := pgdb.JSON(pgdb.FilledMap(f.Labels))
	if err != nil {
		return nil, "", protocol.Errorf(protocol.Invalid, "labels: %w", err)
	}
	src, err := s.nodeSource(ctx, f)
	if err != nil {
		return nil, "", pgdb.Classify("list nodes", err)
	}
	keys, next, err := src.list(ctx, s.db, p, 2)
	if err != nil {
		return nil, "", pgdb.Classify("list nodes", err)
	}
	sites, ids := columns(keys)
	nodes, err = pgdb.Rows(ctx, s.db, scanNodeView, nodeView, sites, ids, labels)
	return nodes, next, pgdb.Classify("list nodes", err)
}

// CountNodes counts what a filter picks.
func (s *Lists) CountNodes(ctx context.Context, f fleet.NodeFilter) (fleet.Total, error) {
	if f.Site == "" && len(f.Labels) == 0 && f.Version.All() && f.Text == "" {
		c, err := s.sums(ctx, f.Within)
		total := fleet.Total{}
		for state, n := range map[string]int{
			fleet.NodeOnline: c.NodesOnline, fleet.NodeUnknown: c.NodesUnknown, fleet.NodeOffline: c.Nodes - c.NodesOnline - c.NodesUnknown,
		} {
			if f.State.Has(state) {
				total.Count += n
			}
		}
		return total, err
	}
	src, err := s.nodeSource(ctx, f)
	if err != nil {
		return fleet.Total{}, pgdb.Classify("count nodes", err)
	}
	total, err := src.count(ctx, s.db)
	return total, pgdb.Classify("count nodes", err)
}

// nodeSource finds nodes by the narrowest index there is: that of a label, of a version,
// of the sites that are offline or have nodes that are, or of a site.
func (s *Lists) nodeSource(ctx context.Context, f fleet.NodeFilter) (source, error) {
	labels, err := s.rarestFirst(ctx, f.Labels)
	if err != nil {
		return source{}, err
	}
	sites, err := within(ctx, s.db, f.Site, f.Within)
	if err != nil {
		return source{}, err
	}
	version, byVersion := f.Version.Single()
	switch {
	case len(labels) > 0:
		return labelSource(f, labels, sites), nil
	case !f.State.All():
		return stateSource(f, sites), nil
	case sites == nil && byVersion:
		f.Version = fleet.Choice{}
	default:
		byVersion = false
	}
	src := source{add: func(s *statement, last key, limit int) {
		keyed{`select site as a, id as b, version`, "nodes", "id"}.rows(s, sites, last, limit, func() {
			if byVersion {
				s.add(` and version = $`, version)
			}
		})
	}}
	if !f.Version.All() || f.Text != "" {
		src.residual = func(s *statement) {
			choose(s, "version", f.Version)
			s.add(" and ")
			contains(s, "a || '/' || b", f.Text)
		}
	}
	return src, nil
}

// stateSource finds nodes by their states, site by site: the counters of the sites say
// which of them have none that is wanted.
func stateSource(f fleet.NodeFilter, sites []string) source {
	return source{
		add: func(s *statement, last key, limit int) {
			s.add(`select n.site as a, n.id as b, n.version, n.online as node_online, s.online as site_online from (select id, online from sites where id >= $`, last[0])
			if sites != nil {
				s.add(` and id = any($::text[])`, sites)
			}
			if !f.State.Has(fleet.NodeOnline) {
				s.add(` and (not online or nodes_online < nodes)`)
			}
			s.add(` order by id limit $) s, lateral (select * from nodes where site = s.id and (site, id) > ($, $) order by id limit $) n order by s.id, n.id limit $`,
				limit, last[0], last[1], limit, limit)
		},
		residual: func(s *statement) {
			choose(s, `case when not site_online then 'unknown' when node_online then 'online' else 'offline' end`, f.State)
			s.add(" and ")
			choose(s, "version", f.Version)
			s.add(" and ")
			contains(s, "a || '/' || b", f.Text)
		},
	}
}

// labelSource finds nodes by the first of some labels. What else is wanted of them is
// looked up for each node by itself: a join might read all nodes for some.
func labelSource(f fleet.NodeFilter, labels, sites []string) source {
	src := source{add: func(s *statement, last key, limit int) {
		s.add(`select site as a, node as b from node_labels where label = label_hash($) and (site, node) > ($, $)`, labels[0], last[0], last[1])
		if sites != nil {
			s.add(` and site = any($::text[])`, sites)
		}
		s.add(` order by site, node limit $`, limit)
	}}
	row := !f.State.All() || !f.Version.All()
	if len(labels) == 1 && !row && f.Text == "" {
		return src
	}
	src.most = examineMost / 4
	src.residual = func(s *statement) {
		contains(s, "a || '/' || b", f.Text)
		for _, l := range labels[1:] {
			s.add(` and (select true from node_labels where label = label_hash($) and site = w.a and node = w.b limit 1)`, l)
		}
		if !row {
			return
		}
		s.add(` and (select `)
		choose(s, nodeState, f.State)
		s.add(` and `)
		choose(s, "n.version", f.Version)
		s.add(` from nodes n, sites s where n.site = w.a and n.id = w.b and s.id = w.a limit 1)`)
	}
	return src
}

// rarestFirst returns labels as key=value, the one that the fewest nodes have first.
func (s *Lists) rarestFirst(ctx context.Context, labels map[string]string) ([]string, error) {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, db.LabelText(k, labels[k]))
	}
	if len(list) < 2 {
		return list, nil
	}
	const enough = 20_000 // to tell rare from frequent
	return pgdb.Rows(ctx, s.db, pgx.RowTo[string], `select u.label from unnest($1::text[]) as u (label),
		lateral (select count(*) as n from (select from node_labels where label = label_hash(u.label) limit $2) x) c order by c.n, u.label`, list, enough)
}

// Node returns one node.
func (s *Lists) Node(ctx context.Context, site protocol.SiteID, node protocol.NodeID) (fleet.Node, error) {
	found, err := pgdb.Rows(ctx, s.db, scanNodeView, nodeView, []string{string(site)}, []string{string(node)}, "{}")
	n, err := pgdb.One("node "+quote(string(node))+" at site "+quote(string(site)), found, err)
	if err != nil {
		return n, err
	}
	n.Decommissioning, err = s.decommissioning(ctx, site, node)
	return n, err
}
