package upkeepdb

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// checkSites is how many sites one transaction of a check locks.
	checkSites = 20
	// checkRest is how many times as long as a transaction the check rests after it.
	checkRest = 4
	// checkEvery is how often all counters are checked.
	checkEvery = 24 * time.Hour
	// askRest is the wait between two sites that are asked for a snapshot: they do not all answer at
	// the same time.
	askRest = 50 * time.Millisecond
	// retryDelay is the wait after a check that was interrupted.
	retryDelay = time.Minute
)

// KeepCounters checks all counters when it begins, and then once a day, until ctx ends.
// It takes about a fifth of one connection's time. Of any number of programs on one
// database one checks at a time. ask has a site report: the answer to that asks for a
// snapshot, where rows of the site are missing.
func (s *Upkeep) KeepCounters(ctx context.Context, ask func(context.Context, protocol.SiteID) error) {
	for {
		held, release, err := s.db.Lease(ctx, "check of counters")
		if err == nil {
			if _, err = s.CheckCounters(held, checkRest); err == nil {
				err = s.askIncomplete(held, ask)
			}
			release()
		}
		wait := checkEvery
		if err != nil && ctx.Err() == nil {
			wait = retryDelay
			s.db.Log.WarnContext(ctx, "counters not checked, trying again", "err", err, "wait", wait)
		}
		if retry.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// askIncomplete asks the sites of which rows are missing, one after another. One that is offline
// learns of it when it connects.
func (s *Upkeep) askIncomplete(ctx context.Context, ask func(context.Context, protocol.SiteID) error) error {
	sites, err := pgdb.Rows(ctx, s.db, pgx.RowTo[protocol.SiteID], `select id from sites where incomplete order by id`)
	if err != nil {
		return pgdb.Classify("list sites of which rows are missing", err)
	}
	for _, site := range sites {
		if err := ask(ctx, site); err != nil {
			s.db.Log.InfoContext(ctx, "site not asked for a snapshot now", "site_id", site, "err", err)
		}
		if err := retry.Sleep(ctx, askRest); err != nil {
			return err
		}
	}
	return nil
}

// CheckCounters compares the counters of all sites and deployments with the rows that they count,
// repairs those that differ, and returns how many did. Each site with a difference makes an event.
// A site with fewer rows than were counted is asked for a snapshot. After each transaction it rests
// for rest times as long as that took.
func (s *Upkeep) CheckCounters(ctx context.Context, rest int) (repaired int, err error) {
	for last := ""; ; {
		began := time.Now()
		sites, err := pgdb.Rows(ctx, s.db, pgx.RowTo[protocol.SiteID], `select id from sites where id > $1 order by id limit $2`, last, checkSites)
		if err != nil || len(sites) == 0 {
			return repaired, pgdb.Classify("list sites to check their counters", err)
		}
		last = string(sites[len(sites)-1])
		n, err := s.checkSites(ctx, sites)
		if err != nil {
			return repaired, err
		}
		repaired += n
		if err := retry.Sleep(ctx, time.Duration(rest)*time.Since(began)); err != nil {
			return repaired, err
		}
	}
}

// markIncomplete notes which sites have fewer rows of nodes, deployments, or deployments on nodes, than
// were counted as they were written: rows were removed by hand or lost, and the site must send a
// snapshot.
func markIncomplete(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) error {
	_, err := tx.Exec(ctx, `update sites s set incomplete = true where s.id = any($1) and not s.incomplete and (
			s.nodes > (select count(*) from nodes n where n.site = s.id)
			or (select coalesce(sum(number), 0) from unnest(s.states) r (number)) > (select count(*) from deployment_status t where t.site = s.id)
			or (select coalesce(sum(r.number), 0) from deployment_status t, unnest(t.reported) r (number) where t.site = s.id)
				> (select count(*) from deployment_nodes n where n.site = s.id))`, pgdb.Texts(sites))
	return err
}

// A difference is what a check found at a site.
type difference struct {
	site protocol.SiteID
	what string
}

func (s *Upkeep) checkSites(ctx context.Context, sites []protocol.SiteID) (found int, err error) {
	var list []difference
	err = s.db.Tx(ctx, "check counters", func(tx pgx.Tx) error {
		list = nil
		if _, err := db.LockSites(ctx, tx, sites); err != nil {
			return err
		}
		if err := markIncomplete(ctx, tx, sites); err != nil {
			return err
		}
		for _, step := range [...]func(context.Context, pgx.Tx, []protocol.SiteID) ([]difference, error){checkReplicas, checkDeployments, checkStates, checkNodes} {
			some, err := step(ctx, tx, sites)
			if err != nil {
				return err
			}
			list = append(list, some...)
		}
		return db.WriteEvents(ctx, tx, repairs(list))
	})
	if err != nil {
		return 0, err
	}
	s.repaired.Add(float64(len(list)))
	for _, e := range repairs(list) {
		s.db.Log.WarnContext(ctx, "counters repaired", "site_id", e.Site, "differences", e.Message)
	}
	return len(list), nil
}

// repairs makes an event for each site with a difference.
func repairs(list []difference) []fleet.Event {
	const shown = 5
	var sites []protocol.SiteID
	what := map[protocol.SiteID][]string{}
	for _, d := range list {
		if what[d.site] == nil {
			sites = append(sites, d.site)
		}
		what[d.site] = append(what[d.site], d.what)
	}
	var events []fleet.Event
	for _, site := range sites {
		text := strings.Join(what[site][:min(shown, len(what[site]))], "; ")
		if more := len(what[site]) - shown; more > 0 {
			text += fmt.Sprintf("; and %d more", more)
		}
		events = append(events, fleet.Event{Kind: fleet.CountersRepaired, Site: site, Message: text})
	}
	return events
}

func scanDifference(row pgx.CollectableRow) (d difference, err error) {
	err = row.Scan(&d.site, &d.what)
	return d, err
}

// checkReplicas compares how many nodes should run a deployment with its entry in the
// desired state of the site. Rows of before the column was added have none.
func checkReplicas(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) (list []difference, err error) {
	type entry struct {
		site     protocol.SiteID
		name     protocol.DeploymentName
		encoded  []byte
		replicas int64
	}
	entries, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (e entry, err error) {
		err = row.Scan(&e.site, &e.name, &e.encoded, &e.replicas)
		return e, err
	}, `select site, name, entry, replicas from deployments where site = any($1) and desired and entry is not null`, pgdb.Texts(sites))
	if err != nil {
		return nil, err
	}
	b := &pgx.Batch{}
	for _, e := range entries {
		var decoded protocol.SiteEntry
		if protocol.Unmarshal(e.encoded, &decoded) != nil {
			continue // another check's business
		}
		if n := min(db.Replicas(decoded.Placement), math.MaxInt32); n != e.replicas {
			list = append(list, difference{e.site, fmt.Sprintf("deployment %s should run on %d nodes, not on %d", e.name, n, e.replicas)})
			b.Queue(`update deployments set replicas = $3 where site = $1 and name = $2`, e.site, e.name, n)
		}
	}
	return list, tx.SendBatch(ctx, b).Close()
}

// checkDeployments compares the counters of deployments with what their nodes reported.
func checkDeployments(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) ([]difference, error) {
	type counted struct {
		site protocol.SiteID
		name protocol.DeploymentName
	}
	wrong, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (c counted, err error) {
		err = row.Scan(&c.site, &c.name)
		return c, err
	}, `with of as materialized (select array_agg(site) as sites, array_agg(name) as names from deployments where site = any($1))
		select c.site, c.name from of, counted(of.sites, of.names) c left join deployment_status t on t.site = c.site and t.name = c.name
		where (t.app, t.app_version, t.reported, t.shown, t.running, t.fault_node, t.fault)
			is distinct from (c.app, c.app_version, c.reported, c.shown, c.running, c.fault_node, c.fault) order by c.site, c.name`, pgdb.Texts(sites))
	if err != nil || len(wrong) == 0 {
		return nil, err
	}
	var list []difference
	var of db.Deployments
	for _, c := range wrong {
		of.Add(c.site, c.name)
		list = append(list, difference{c.site, fmt.Sprintf("the counted nodes of deployment %s", c.name)})
	}
	b := &pgx.Batch{}
	db.QueueCount(b, of)
	return list, tx.SendBatch(ctx, b).Close()
}

// checkStates compares the states of deployments with what they follow from.
func checkStates(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) ([]difference, error) {
	wrong, err := pgdb.Rows(ctx, tx, scanDifference, `select t.site, format('the state of deployment %s: it was %s', t.name, t.state)
		from deployment_status t join deployments d on d.site = t.site and d.name = t.name join sites s on s.id = t.site
		where t.site = any($1) and t.state <> deployment_state(d.archived_at is not null, d.desired, d.commit,
			d.generation > s.adopted or d.problem <> '', d.replicas, with_unrecorded(d.site, d.name, d.desired, t.shown))`, pgdb.Texts(sites))
	if err != nil || len(wrong) == 0 {
		return nil, err
	}
	_, err = tx.Exec(ctx, `select derive_deployments(array_agg(site), array_agg(name)) from deployments where site = any($1)`, pgdb.Texts(sites))
	return wrong, err
}

// checkNodes compares the counters of sites, and adds labels that are missing.
func checkNodes(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) ([]difference, error) {
	list, err := pgdb.Rows(ctx, tx, scanDifference, `update sites s set nodes = n.nodes, nodes_online = n.online, states = d.states
		from unnest($1::text[]) as k (id), lateral (select count(*) as nodes, count(*) filter (where online) as online from nodes where site = k.id) n,
			lateral (select array_agg(c.number::int order by c.i) as states from (select i, count(t.name) as number
				from generate_series(1, 8) as i left join deployment_status t on t.site = k.id and t.state = (lifecycle_states())[i] group by i) c) d
		where s.id = k.id and (s.nodes, s.nodes_online, s.states) is distinct from (n.nodes::int, n.online::int, d.states)
		returning s.id, 'the numbers of nodes and deployments of the site'`, pgdb.Texts(sites))
	if err != nil {
		return nil, err
	}
	labels, err := pgdb.Rows(ctx, tx, scanDifference, `insert into node_labels as l (label, site, node)
		select distinct label_hash(v.key || '=' || v.value), n.site, n.id from nodes n, jsonb_each_text(n.labels) v where n.site = any($1)
		on conflict do nothing returning l.site, format('a label of node %s', l.node)`, pgdb.Texts(sites))
	return append(list, labels...), err
}
