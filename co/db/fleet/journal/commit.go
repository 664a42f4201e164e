// Package journaldb commits the reports of sites. A batch of a journal, its changes of the fleet's
// record, and the position of the site are one transaction, shared with the batches of other sites
// that arrive at the same time.
package journaldb

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/stream"
)

// A Journal commits what the journals of sites say. Its methods may be called concurrently.
type Journal struct {
	db     *db.DB
	events prometheus.Counter
	// damaged counts StateDamaged events.
	damaged prometheus.Counter
	group   group // of the batches that are being committed
}

// New returns the writer of a record, in a database that stays the caller's to close.
// It is made once for a database and its metrics.
func New(pool *db.DB) *Journal {
	return &Journal{
		db:      pool,
		events:  db.Counter(pool.Metrics, "colony_co_site_events_total", "Events of sites' journals that were committed."),
		damaged: db.Counter(pool.Metrics, "colony_co_state_damaged_total", "Files of state that sites and nodes reported as damaged."),
	}
}

// CommitBatch commits a batch of a site's journal, by the contract of package stream. It ignores
// events that are committed already, commits only events that follow the site's position, and
// records a gap that the site declares (Batch.Trimmed, or another Epoch). events are the decoded
// Batch.Events. The Ack is the position that the database holds, whether the batch was committed or
// not. An event that cannot be applied becomes an anomaly; only trouble with the database is an
// error.
//
// Batches of several sites that arrive at the same time share a transaction. A caller waits for its
// turn for as long as ctx allows, and then for 30 s at most.
func (s *Journal) CommitBatch(ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event) (protocol.Ack, error) {
	if len(events) == 0 {
		return s.probe(ctx, site, b)
	}
	return s.group.do(ctx, &request{site: site, batch: b, events: events}, s.commitAll)
}

// commitAll commits a batch of each of some sites in one transaction.
func (s *Journal) commitAll(ctx context.Context, list []*request) error {
	if err := s.db.Admit(ctx); err != nil {
		return err
	}
	what, sites := "commit events of site "+string(list[0].site), make([]protocol.SiteID, len(list))
	if len(list) > 1 {
		what += fmt.Sprintf(" and of %d others", len(list)-1)
	}
	for i, r := range list {
		sites[i] = r.site
	}
	var commits []*commit
	err := s.db.Tx(ctx, what, func(tx pgx.Tx) error {
		rows, err := db.LockSites(ctx, tx, sites)
		if err != nil {
			return err
		}
		commits = commits[:0]
		var work []*commit
		for _, r := range list {
			c := &commit{request: r, row: rows[r.site]}
			commits = append(commits, c)
			before := int64(c.row.Seq)
			c.Advance = c.row.Follow(r.batch, len(r.events))
			if c.Gap != nil && !c.Gap.NewEpoch {
				switch lost := int64(c.Gap.Lost); {
				case c.row.Held.After(c.row.Desired):
					c.toSay = &lost
				case before == c.row.RaisedSeq:
					c.toSay = new(int64) // it has said from where on
				}
			}
			if c.Fresh == 0 && c.Gap == nil {
				continue
			}
			c.row.Gap = c.row.Gap || c.Gap != nil
			work = append(work, c)
		}
		if len(work) == 0 {
			return nil
		}
		return write(ctx, tx, work)
	})
	if err != nil {
		return err
	}
	for _, c := range commits {
		c.ack = c.row.Ack(c.batch)
		c.ack.Resync = c.row.Incomplete
		s.count(ctx, c)
	}
	return nil
}

func (s *Journal) count(ctx context.Context, c *commit) {
	s.events.Add(float64(c.Fresh))
	for i := range c.changes.Events {
		if c.changes.Events[i].Kind == string(protocol.StateDamaged) {
			s.damaged.Inc()
		}
	}
	s.db.Counts.Duplicates.Add(float64(len(c.events) - c.Fresh - c.LeftOut))
	s.db.Counts.Anomalies.Add(float64(len(c.changes.Anomalies)))
	s.db.Counts.Lost.Add(float64(c.lost()))
	if c.Gap != nil {
		s.db.Log.WarnContext(ctx, "site declared lost events", "site_id", c.site, "reason", c.Gap.Message("journal", "event"))
	}
}

// probe answers a batch without events: it records what the site reports, and changes
// nothing else.
func (s *Journal) probe(ctx context.Context, site protocol.SiteID, b protocol.Batch) (protocol.Ack, error) {
	var at stream.Position
	var resync bool
	err := s.db.Tx(ctx, "answer probe of site "+string(site), func(tx pgx.Tx) error {
		q := &pgx.Batch{}
		db.QueueProbe(q, site, b)
		q.Queue(`insert into sites (id) values ($1) on conflict do nothing`, site)
		q.Queue(`select journal_epoch, journal_seq, retired_epochs, incomplete from sites where id = $1`, site).QueryRow(func(row pgx.Row) error {
			return row.Scan(&at.Epoch, &at.Seq, &at.Retired, &resync)
		})
		return tx.SendBatch(ctx, q).Close()
	})
	ack := at.Ack(b)
	ack.Resync = resync
	return ack, err
}

// A commit is the batch of a site on its way into the database.
type commit struct {
	*request
	row db.SiteRow
	stream.Advance
	// toSay is set where the gap follows from a record that was set back: the event of its raise says what is lost, and
	// it is how much that is to name. Nil: the gap has an event of its own, or there is none.
	toSay *int64

	decoded *projection.Batch
	record  projection.Record
	changes projection.Changes
	// returned says that a snapshot brings back rows that were missing.
	returned bool

	// known are the rows of deployment_nodes that there are, nodes those of nodes, and
	// tallies the counters of deployments, as far as the batch needs them.
	known   map[projection.Key]fleet.DeploymentNode
	nodes   map[protocol.NodeID]fleet.Node
	tallies map[protocol.DeploymentName]*projection.Tally
}

// lost is how many events the batch declares as lost.
func (c *commit) lost() uint64 {
	if c.Gap == nil {
		return 0
	}
	return c.Gap.Lost
}

// fold computes what the events change.
func (c *commit) fold() {
	c.record.Site = projection.Site{
		ID: c.site, Version: c.row.Version, Adopted: c.row.Adopted, Lost: c.row.Lost + c.lost(), Gap: c.row.Gap, Incomplete: c.row.Incomplete,
		Desired: c.row.Desired, Raised: c.row.Raised, GapSaid: c.row.GapSaid && c.Gap == nil || c.toSay != nil,
	}
	c.nodes = maps.Clone(c.record.Nodes)
	c.changes = c.decoded.Fold(c.record, c.row.Now)
	if c.returned = c.row.Incomplete && !c.changes.Site.Incomplete; c.returned {
		clear(c.tallies) // they count the rows that were missing: all are counted anew
	}
	c.row.Incomplete = c.changes.Site.Incomplete
	if c.Gap != nil && c.toSay == nil {
		c.changes.Events = slices.Insert(c.changes.Events, 0, fleet.Event{
			Kind: fleet.JournalGap, Time: c.row.Now, Message: c.Gap.Message("journal", "event"),
		})
	}
	for i := range c.changes.Events {
		c.changes.Events[i].Site = c.site
	}
}

// write records what the events of some sites change: in one round trip beside those
// that read what they change, and a COPY of transitions and of events where there are many.
func write(ctx context.Context, tx pgx.Tx, list []*commit) error {
	for _, c := range list {
		c.decoded = projection.Decode(stream.Number(c.events, c.Fresh, c.row.Seq))
	}
	if err := load(ctx, tx, list); err != nil {
		return err
	}
	var events []fleet.Event
	var transitions []transition
	for _, c := range list {
		c.fold()
		events = append(events, c.changes.Events...)
		for i := range c.changes.Transitions {
			transitions = append(transitions, transition{c.site, &c.changes.Transitions[i]})
		}
	}
	w := writer{b: &pgx.Batch{}, list: list}
	if err := w.queue(); err != nil {
		return err
	}
	if len(transitions) <= pgdb.CopyAbove {
		w.transitions(transitions)
		db.QueueEvents(w.b, events)
		return tx.SendBatch(ctx, w.b).Close()
	}
	type copies struct{ transitions, events *pgdb.Copy }
	encoded := make(chan copies, 1) // while the database is at the other rows
	go func() { encoded <- copies{encodeTransitions(transitions), db.CopyEvents(events)} }()
	err := tx.SendBatch(ctx, w.b).Close()
	rows := <-encoded
	if err == nil {
		err = rows.transitions.Send(ctx, tx, "deployment_history")
	}
	if err == nil {
		err = rows.events.Send(ctx, tx, db.Outbox)
	}
	return err
}

// load reads the records of the nodes and deployments that the batches need. It looks up each row
// by its whole key, so that the plan does not depend on PostgreSQL's statistics.
func load(ctx context.Context, tx pgx.Tx, list []*commit) error {
	var whole []string              // sites of which everything is needed
	var joins []string              // sites whose nodes come online, or are removed
	var nodes, machines [2][]string // those without labels and inventory, and those with
	var statuses [3][]string
	var deployments [2][]string
	of := make(map[protocol.SiteID]*commit, len(list))
	for _, c := range list {
		of[c.site] = c
		c.record = projection.Record{
			Nodes: map[protocol.NodeID]fleet.Node{}, States: map[projection.Key]lifecycle.State{},
			Decommissions: map[protocol.NodeID]protocol.Position{}, Decommissioned: map[protocol.NodeID]bool{},
		}
		c.known, c.tallies = map[projection.Key]fleet.DeploymentNode{}, map[protocol.DeploymentName]*projection.Tally{}
		n := c.decoded.Needs()
		if n.Joins {
			joins = append(joins, string(c.site))
		}
		if n.All {
			whole = append(whole, string(c.site))
			continue
		}
		for _, id := range n.Nodes {
			to := &nodes
			if n.Machines[id] {
				to = &machines
			}
			to[0], to[1] = append(to[0], string(c.site)), append(to[1], string(id))
		}
		for _, k := range n.Statuses {
			statuses[0] = append(statuses[0], string(c.site))
			statuses[1], statuses[2] = append(statuses[1], string(k.Deployment)), append(statuses[2], string(k.Node))
		}
		for _, d := range n.Deployments {
			deployments[0], deployments[1] = append(deployments[0], string(c.site)), append(deployments[1], string(d))
		}
	}
	q := &pgx.Batch{}
	node := func(n fleet.Node) { of[n.Site].record.Nodes[n.ID] = n }
	queueRead(q, db.ScanNode, node, db.NodeColumns+` where site = any($1)`, whole)
	queueRead(q, db.ScanNode, node, nodesByKey(db.NodeColumns), machines[0], machines[1])
	queueRead(q, scanPresence, node, nodesByKey(presenceColumns), nodes[0], nodes[1])
	found := func(f state) { of[f.site].record.States[f.key], of[f.site].known[f.key] = f.node.State, f.node }
	queueRead(q, scanState, found, stateColumns+` where site = any($1)`, whole)
	queueRead(q, scanState, found, `select n.* from unnest($1::text[], $2::text[], $3::text[]) as u (site, deployment, node),
		lateral (`+stateColumns+` where site = u.site and deployment = u.deployment and node = u.node limit 1) n`,
		statuses[0], statuses[1], statuses[2])
	counted := func(t tallied) { of[t.site].tallies[t.name] = t.Tally }
	queueRead(q, scanTally, counted, tallyColumns+` where t.site = any($1)`, whole)
	queueRead(q, scanTally, counted, `select n.* from unnest($1::text[], $2::text[]) as u (site, name),
		lateral (`+tallyColumns+` where t.site = u.site and t.name = u.name limit 1) n`, deployments[0], deployments[1])
	queueRead(q, scanDecommission, func(d decommission) {
		record := &of[d.site].record
		if d.open {
			record.Decommissions[d.node] = d.position
		} else {
			record.Decommissioned[d.node] = true
		}
	}, decommissions, joins)
	if q.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, q).Close()
}

// queueRead queues a query for keys, given by columns, whose rows are handed to use.
// Without keys it queues nothing.
func queueRead[T any](q *pgx.Batch, scan func(pgx.CollectableRow) (T, error), use func(T), sql string, keys ...[]string) {
	if len(keys[0]) == 0 {
		return
	}
	args := make([]any, len(keys))
	for i := range keys {
		args[i] = keys[i]
	}
	q.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, scan)
		for _, v := range list {
			use(v)
		}
		return err
	})
}

// nodesByKey looks nodes up.
func nodesByKey(columns string) string {
	return `select n.* from unnest($1::text[], $2::text[]) as u (site, id), lateral (` + columns + ` where site = u.site and id = u.id limit 1) n`
}

const presenceColumns = `select site, id, online, changed_at, version, problem, restrictions from nodes`

// scanPresence reads a node without its labels and its inventory.
func scanPresence(row pgx.CollectableRow) (n fleet.Node, err error) {
	var restrictions []byte
	if err = row.Scan(&n.Site, &n.ID, &n.Online, &n.ChangedAt, &n.Version, &n.Problem, &restrictions); err != nil || restrictions == nil {
		return n, err
	}
	return n, json.Unmarshal(restrictions, &n.Report)
}

const stateColumns = `select site, deployment, node, state, digest, refused, app_version, running, running_version from deployment_nodes`

// A state is that of a deployment on a node, without what it reported besides.
type state struct {
	site protocol.SiteID
	key  projection.Key
	node fleet.DeploymentNode
}

func scanState(row pgx.CollectableRow) (s state, err error) {
	err = row.Scan(&s.site, &s.key.Deployment, &s.key.Node, &s.node.State, &s.node.Digest, &s.node.Refused, &s.node.AppVersion,
		&s.node.Running, &s.node.RunningVersion)
	return s, err
}
