package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/protocol"
)

// maxLeft bounds how many journals of a site are remembered as given up.
const maxLeft = 64

// CommitBatch takes a batch of a site's journal in one transaction, as the
// contract of the uplink demands: events that are there already are ignored, only
// what follows the site's position is committed, and a gap that the site declares
// (Batch.Trimmed, or another Epoch) is recorded and passed over. events are the
// decoded Batch.Events. The Ack is the position that the database holds, whatever
// became of the batch. An event that cannot be applied becomes an anomaly; only
// trouble with the database is an error.
func (s *Store) CommitBatch(ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event) (protocol.Ack, error) {
	var c *commit
	err := s.tx(ctx, "commit events of site "+string(site), func(tx pgx.Tx) error {
		row, err := lockSite(ctx, tx, site)
		if err != nil {
			return err
		}
		c = &commit{site: site, row: row}
		fresh := c.follow(b, events)
		if len(fresh) == 0 && c.gap == nil {
			return nil
		}
		return c.write(ctx, tx, fresh)
	})
	if err != nil {
		return protocol.Ack{}, err
	}
	s.metrics.events.Add(float64(c.committed))
	s.metrics.duplicates.Add(float64(len(events) - c.committed - c.leftOut))
	s.metrics.anomalies.Add(float64(c.anomalies))
	s.metrics.lost.Add(float64(c.lost))
	if c.gap != nil {
		s.log.WarnContext(ctx, "site declared lost events", "site_id", site, "reason", c.gap.Message)
	}
	return protocol.Ack{V: protocol.Version, Epoch: c.row.epoch, Seq: c.row.seq}, nil
}

// A commit is one batch on its way into the database.
type commit struct {
	site protocol.SiteID
	row  siteRow
	gap  *fleet.Event // what the site declared as lost
	lost uint64

	committed, leftOut, anomalies int
}

// follow moves the position over the batch and returns the events that are new.
// The steps bear the numbers of the uplink's contract.
func (c *commit) follow(b protocol.Batch, events []protocol.Event) []protocol.Event {
	if len(events) == 0 { // 1
		return nil
	}
	c.leftOut = len(events)
	begins := b.Trimmed < 1<<62 && b.First == b.Trimmed+1
	switch {
	case b.Epoch == "":
		return nil
	case b.Epoch != c.row.epoch: // 2
		if !begins || slices.Contains(c.row.left, b.Epoch) {
			return nil
		}
		c.leave(b)
	case b.Trimmed > c.row.seq: // 3
		if !begins {
			return nil
		}
		lost := b.Trimmed - c.row.seq
		c.declare(lost, fmt.Sprintf("%d events will never arrive", lost))
		c.row.seq = b.Trimmed
	}
	if b.First > c.row.seq+1 || b.First == 0 { // 4
		return nil
	}
	c.leftOut = 0
	have := c.row.seq - (b.First - 1)
	if have >= uint64(len(events)) {
		return nil
	}
	fresh := events[have:] // 5
	for i := range fresh {
		fresh[i].Seq = c.row.seq + uint64(i) + 1
	}
	c.row.seq += uint64(len(fresh))
	c.committed = len(fresh)
	return fresh
}

// leave gives up the site's journal for that of the batch.
func (c *commit) leave(b protocol.Batch) {
	if c.row.epoch != "" || b.Trimmed > 0 {
		message := fmt.Sprintf("%d events will never arrive", b.Trimmed)
		if c.row.epoch != "" {
			message = fmt.Sprintf("the site began a new journal: what the old one held after event %d is lost, and %d of the new", c.row.seq, b.Trimmed)
			c.row.left = append(c.row.left, c.row.epoch)
			c.row.left = c.row.left[max(0, len(c.row.left)-maxLeft):]
		}
		c.declare(b.Trimmed, message)
	}
	c.row.epoch, c.row.seq = b.Epoch, b.Trimmed
}

func (c *commit) declare(lost uint64, message string) {
	c.row.gap = true
	c.lost = lost
	c.gap = &fleet.Event{Kind: fleet.JournalGap, Time: c.row.now, Site: c.site, Message: message}
}

// write records what the events change, in one round trip beside the one that
// reads what they change.
func (c *commit) write(ctx context.Context, tx pgx.Tx, events []protocol.Event) error {
	batch := projection.Decode(events)
	record, err := c.load(ctx, tx, batch.Needs())
	if err != nil {
		return err
	}
	record.Site = projection.Site{Version: c.row.version, Adopted: c.row.adopted, Lost: c.row.lost + c.lost, Gap: c.row.gap}
	changes := batch.Fold(record, c.row.now)
	c.anomalies = len(changes.Anomalies)
	b := &pgx.Batch{}
	v := changes.Site
	b.Queue(`update sites set version = $2, adopted = $3, journal_epoch = $4, journal_seq = $5, left_epochs = $6, gap = $7,
		events_lost = $8, last_event_at = now() where id = $1`,
		c.site, v.Version, int64(v.Adopted), c.row.epoch, int64(c.row.seq), c.row.left, v.Gap, int64(v.Lost))
	w := writer{b, c.site}
	w.nodes(changes)
	if err := w.deployments(changes); err != nil {
		return err
	}
	w.transitions(changes.Transitions)
	w.anomalies(changes.Anomalies, c.row.epoch)
	if c.gap != nil {
		changes.Events = slices.Insert(changes.Events, 0, *c.gap)
	}
	for i := range changes.Events {
		changes.Events[i].Site = c.site
	}
	queueEvents(b, changes.Events)
	return tx.SendBatch(ctx, b).Close()
}

// load reads what is recorded of the nodes and deployments that a batch needs.
func (c *commit) load(ctx context.Context, tx pgx.Tx, n projection.Needs) (projection.Record, error) {
	r := projection.Record{
		Nodes: map[protocol.NodeID]fleet.Node{}, Statuses: map[projection.Key]fleet.DeploymentNode{},
	}
	if n.All || len(n.Nodes) > 0 {
		nodes, err := rows(ctx, tx, scanNode, nodeColumns+` where site = $1 and ($2 or id = any($3))`, c.site, n.All, texts(n.Nodes))
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
		key    projection.Key
		status fleet.DeploymentNode
	}
	list, err := rows(ctx, tx, func(row pgx.CollectableRow) (f found, err error) {
		f.status, err = scanStatus(prefixed{row, &f.key.Deployment})
		f.key.Node = f.status.Node
		return f, err
	}, `select deployment, `+statusColumns+` from deployment_nodes where site = $1 and `+condition, c.site, deployments, nodes)
	for _, f := range list {
		r.Statuses[f.key] = f.status
	}
	return r, err
}

// prefixed is a row with one more column in front.
type prefixed struct {
	pgx.CollectableRow
	first any
}

// Scan reads the further columns into dest.
func (p prefixed) Scan(dest ...any) error {
	return p.CollectableRow.Scan(append([]any{p.first}, dest...)...)
}

func texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}
