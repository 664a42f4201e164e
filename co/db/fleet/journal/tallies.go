package journaldb

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

const tallyColumns = `select t.site, t.name, d.digest, t.app, t.reported, t.shown, t.running, t.fault_node, t.fault,
	t.state, d.desired, d.problem <> '', d.archived_at is not null, d.generation, d.replicas
	from deployment_status t join deployments d on d.site = t.site and d.name = t.name`

// A tallied is the counters of a deployment.
type tallied struct {
	site protocol.SiteID
	name protocol.DeploymentName
	*projection.Tally
}

func scanTally(row pgx.CollectableRow) (t tallied, err error) {
	t.Tally = &projection.Tally{}
	var reported, shown []int32
	var running []byte
	if err = row.Scan(&t.site, &t.name, &t.Desired, &t.App, &reported, &shown, &running, &t.FaultNode, &t.Fault,
		&t.State, &t.Known, &t.Broken, &t.Archived, &t.Generation, &t.Replicas); err != nil {
		return t, err
	}
	for i := range min(len(t.Reported), len(reported), len(shown)) {
		t.Reported[i], t.Shown[i] = int(reported[i]), int(shown[i])
	}
	return t, json.Unmarshal(running, &t.Running)
}

// tally applies what the batch changes to the counters of the deployments.
func (c *commit) tally() {
	for k, is := range c.changes.Statuses {
		if t := c.tallies[k.Deployment]; t != nil {
			t.Change(k.Node, c.before(k), &is)
		}
	}
	for k := range c.changes.RemovedStatuses {
		if t := c.tallies[k.Deployment]; t != nil {
			t.Change(k.Node, c.before(k), nil)
		}
	}
}

// before returns what a node reported of a deployment before the batch; nil: nothing.
func (c *commit) before(k projection.Key) *fleet.DeploymentNode {
	if was, ok := c.known[k]; ok {
		return &was
	}
	return nil
}

// moved derives the states of the deployments of the site whose nodes changed, and
// returns how many more are in each of them. Those that the repo does not have are left
// to the database, which archives them.
func (c *commit) moved() (more projection.Count, some bool) {
	for _, t := range c.tallies {
		if !c.simple(t) {
			continue
		}
		if is := t.Derive(c.changes.Site.Adopted.Generation); is != t.State {
			some = true
			more[slices.Index(lifecycle.States, t.State)]--
			more[slices.Index(lifecycle.States, is)]++
			t.State = is
		}
	}
	return more, some
}

// simple reports whether all that follows from a change of nodes is known here.
func (c *commit) simple(t *projection.Tally) bool {
	return t != nil && t.Touched && t.Known && t.App != "" && !t.Archived && !t.Incomplete() && slices.Contains(lifecycle.States, t.State)
}

// counters keeps the counters of the deployments whose nodes the batches change. Those
// of a deployment that has none, or of which another node's fault is to be shown now, are
// counted anew.
func (w writer) counters() error {
	var rows tallyRows
	var anew, derive db.Deployments
	for _, c := range w.list {
		for _, name := range slices.Sorted(maps.Keys(c.changes.Apps)) {
			t := c.tallies[name]
			switch {
			case t == nil || t.Incomplete() || t.App == "" && c.changes.Apps[name].ID != "":
				anew.Add(c.site, name)
			case t.Touched:
				if err := rows.add(c.site, name, t); err != nil {
					return err
				}
			}
			// Also where the node's state is what it was: what it gave up may be another version.
			if t == nil || t.Touched && !c.simple(t) || c.changes.Unrecorded[name] {
				derive.Add(c.site, name)
			}
		}
	}
	rows.queue(w.b)
	db.QueueCount(w.b, anew)
	db.QueueArchive(w.b, derive)
	db.QueueDerive(w.b, derive)
	return nil
}

// adopted derives the states of the deployments that a site has adopted, or has not any
// more.
func (w writer) adopted() {
	var sites []string
	var above []int64
	for _, c := range w.list {
		if was, is := c.row.Adopted.Generation, c.changes.Site.Adopted.Generation; was != is {
			sites, above = append(sites, string(c.site)), append(above, int64(min(was, is)))
		}
	}
	if len(sites) > 0 {
		w.b.Queue(`select derive_deployments(array_agg(d.site), array_agg(d.name)) from unnest($1::text[], $2::bigint[]) as u (site, above),
			lateral (select site, name from deployments where site = u.site and generation > u.above) d`, sites, above)
	}
}

// tallyRows are the columns of rows of deployment_status.
type tallyRows struct {
	db.Deployments
	reported, shown, running, faultNode, fault []string
	state                                      []string
	changed                                    []bool
}

func (r *tallyRows) add(site protocol.SiteID, name protocol.DeploymentName, t *projection.Tally) error {
	running, err := pgdb.JSON(t.Running)
	if err != nil {
		return err
	}
	r.Deployments.Add(site, name)
	r.reported, r.shown, r.running = append(r.reported, countArray(t.Reported)), append(r.shown, countArray(t.Shown)), append(r.running, string(running))
	r.faultNode, r.fault, r.changed = append(r.faultNode, string(t.FaultNode)), append(r.fault, t.Fault), append(r.changed, t.Changed)
	r.state = append(r.state, string(t.State))
	return nil
}

// countArray writes a Count as an array of PostgreSQL.
func countArray(c projection.Count) string {
	b := []byte{'{'}
	for i, n := range c {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(append(b, '}'))
}

func (r *tallyRows) queue(b *pgx.Batch) {
	if len(r.Sites) == 0 {
		return
	}
	b.Queue(`update deployment_status t set reported = u.reported::integer[], shown = u.shown::integer[], running = u.running, fault_node = u.fault_node,
			fault = u.fault, state = u.state, since = case when u.changed then now() else t.since end, updated_at = now()
		from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::jsonb[], $6::text[], $7::text[], $8::boolean[], $9::text[])
			as u (site, name, reported, shown, running, fault_node, fault, changed, state) where t.site = u.site and t.name = u.name`,
		r.Sites, r.Deployments.Names, r.reported, r.shown, r.running, r.faultNode, r.fault, r.changed, r.state)
}

// labels keeps node_labels.
func (w writer) labels() {
	var added, dropped [3][]string // label, site, node
	for _, c := range w.list {
		for id, n := range c.changes.Nodes {
			c.labels(&added, id, n.Labels, c.nodes[id].Labels)
			c.labels(&dropped, id, c.nodes[id].Labels, n.Labels)
		}
		for id := range c.changes.RemovedNodes {
			c.labels(&dropped, id, c.nodes[id].Labels, nil)
		}
	}
	if len(dropped[0]) > 0 {
		w.b.Queue(`delete from node_labels l using unnest($1::text[], $2::text[], $3::text[]) as u (label, site, node)
			where l.label = label_hash(u.label) and l.site = u.site and l.node = u.node`, dropped[0], dropped[1], dropped[2])
	}
	if len(added[0]) > 0 {
		w.b.Queue(`insert into node_labels (label, site, node)
			select label_hash(label), site, node from unnest($1::text[], $2::text[], $3::text[]) as u (label, site, node) on conflict do nothing`,
			added[0], added[1], added[2])
	}
}

// labels adds to a list those labels of a node that are not among others.
func (c *commit) labels(to *[3][]string, node protocol.NodeID, of, others map[string]string) {
	for k, v := range of {
		if other, ok := others[k]; ok && other == v {
			continue
		}
		for i, s := range [3]string{db.LabelText(k, v), string(c.site), string(node)} {
			to[i] = append(to[i], s)
		}
	}
}
