package fleetdb

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/stream"
)

// CommitBatch commits a batch of a site's journal in one transaction, by the
// contract of package stream: events that are there already are ignored, only
// what follows the site's position is committed, and a gap that the site declares
// (Batch.Trimmed, or another Epoch) is recorded and passed over. events are the
// decoded Batch.Events. The Ack is the position that the database holds, whatever
// became of the batch. An event that cannot be applied becomes an anomaly; only
// trouble with the database is an error.
func (s *Store) CommitBatch(ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event) (protocol.Ack, error) {
	var c *commit
	if len(events) == 0 {
		return s.probe(ctx, site, b)
	}
	err := s.db.Tx(ctx, "commit events of site "+string(site), func(tx pgx.Tx) error {
		row, err := lockSite(ctx, tx, site)
		if err != nil {
			return err
		}
		c = &commit{site: site, row: row}
		c.Advance = c.row.Follow(b, len(events))
		if c.Fresh == 0 && c.Gap == nil {
			return nil
		}
		c.row.gap = c.row.gap || c.Gap != nil
		return c.write(ctx, tx, b, stream.Number(events, c.Fresh, c.row.Seq))
	})
	if err != nil {
		return protocol.Ack{}, err
	}
	s.events.Add(float64(c.Fresh))
	s.db.Counts.Duplicates.Add(float64(len(events) - c.Fresh - c.LeftOut))
	s.db.Counts.Anomalies.Add(float64(c.anomalies))
	s.db.Counts.Lost.Add(float64(c.lost()))
	if c.Gap != nil {
		s.db.Log.WarnContext(ctx, "site declared lost events", "site_id", site, "reason", c.Gap.Message("journal", "event"))
	}
	return c.row.Ack(""), nil
}

// probe answers a batch without events: it records what the site reports, and changes
// nothing else.
func (s *Store) probe(ctx context.Context, site protocol.SiteID, b protocol.Batch) (protocol.Ack, error) {
	ack := protocol.Ack{V: protocol.Version, Stream: b.Stream}
	err := s.db.Tx(ctx, "answer probe of site "+string(site), func(tx pgx.Tx) error {
		q := &pgx.Batch{}
		db.QueueProbe(q, site, b)
		q.Queue(`insert into sites (id) values ($1) on conflict do nothing`, site)
		q.Queue(`select journal_epoch, journal_seq from sites where id = $1`, site).QueryRow(func(row pgx.Row) error {
			return row.Scan(&ack.Epoch, &ack.Seq)
		})
		return tx.SendBatch(ctx, q).Close()
	})
	return ack, err
}

// A commit is one batch on its way into the database.
type commit struct {
	site protocol.SiteID
	row  siteRow
	stream.Advance
	anomalies int
}

// lost is how many events the batch declares as lost.
func (c *commit) lost() uint64 {
	if c.Gap == nil {
		return 0
	}
	return c.Gap.Lost
}

// write records what the events change: few of them in one round trip beside the
// one that reads what they change, many with a COPY for each table that gets a row
// of each.
func (c *commit) write(ctx context.Context, tx pgx.Tx, from protocol.Batch, events []protocol.Event) error {
	batch := projection.Decode(events)
	record, err := c.load(ctx, tx, batch.Needs())
	if err != nil {
		return err
	}
	record.Site = projection.Site{Version: c.row.version, Adopted: c.row.adopted, Lost: c.row.lost + c.lost(), Gap: c.row.gap}
	known := make(map[projection.Key]bool, len(record.States))
	for k := range record.States {
		known[k] = true
	}
	changes := batch.Fold(record, c.row.now)
	c.anomalies = len(changes.Anomalies)
	b := &pgx.Batch{}
	v := changes.Site
	b.Queue(`update sites set version = $2, adopted = $3, journal_epoch = $4, journal_seq = $5, retired_epochs = $6, gap = $7,
		events_lost = $8, last_event_at = now() where id = $1`,
		c.site, v.Version, int64(v.Adopted), c.row.Epoch, int64(c.row.Seq), c.row.Retired, v.Gap, int64(v.Lost))
	w := writer{b, c.site}
	w.nodes(changes)
	if err := w.deployments(changes, known); err != nil {
		return err
	}
	db.QueueAnomalies(b, c.site, c.row.Epoch, changes.Anomalies)
	if c.Gap != nil {
		changes.Events = slices.Insert(changes.Events, 0, fleet.Event{
			Kind: fleet.JournalGap, Time: c.row.now, Message: c.Gap.Message("journal", "event"),
		})
	}
	for i := range changes.Events {
		changes.Events[i].Site = c.site
	}
	if from.Backlog != (protocol.Backlog{}) {
		db.QueueReport(b, c.site, from)
	}
	db.QueueEvents(b, changes.Events)
	if len(changes.Transitions) <= pgdb.CopyAbove {
		w.transitions(changes.Transitions)
		return tx.SendBatch(ctx, b).Close()
	}
	encoded := make(chan *pgdb.Copy, 1) // while the database is at the other rows
	go func() { encoded <- encodeTransitions(c.site, changes.Transitions) }()
	err = tx.SendBatch(ctx, b).Close()
	rows := <-encoded
	if err != nil {
		return err
	}
	return rows.Send(ctx, tx, "deployment_history")
}

// load reads what is recorded of the nodes and deployments that a batch needs.
func (c *commit) load(ctx context.Context, tx pgx.Tx, n projection.Needs) (projection.Record, error) {
	r := projection.Record{
		Nodes: map[protocol.NodeID]fleet.Node{}, States: map[projection.Key]lifecycle.State{},
	}
	if n.All || len(n.Nodes) > 0 {
		nodes, err := pgdb.Rows(ctx, tx, scanNode, nodeColumns+` where site = $1 and ($2 or id = any($3))`, c.site, n.All, pgdb.Texts(n.Nodes))
		if err != nil {
			return r, err
		}
		for _, v := range nodes {
			r.Nodes[v.ID] = v
		}
	}
	if !n.All && len(n.Statuses) == 0 {
		return r, nil
	}
	deployments, nodes := make([]string, len(n.Statuses)), make([]string, len(n.Statuses))
	for i, k := range n.Statuses {
		deployments[i], nodes[i] = string(k.Deployment), string(k.Node)
	}
	condition := `(deployment, node) in (select * from unnest($2::text[], $3::text[]))`
	if n.All {
		condition = `($2::text[], $3::text[]) is not null`
	}
	type found struct {
		key   projection.Key
		state lifecycle.State
	}
	list, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (f found, err error) {
		err = row.Scan(&f.key.Deployment, &f.key.Node, &f.state)
		return f, err
	}, `select deployment, node, state from deployment_nodes where site = $1 and `+condition, c.site, deployments, nodes)
	for _, f := range list {
		r.States[f.key] = f.state
	}
	return r, err
}
