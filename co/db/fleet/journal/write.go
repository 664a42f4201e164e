package journaldb

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// A writer queues what the batches of some sites change: one statement for each table,
// for any number of rows and sites. It holds the locks of the sites' rows, so that no
// other writer to their rows is at work. Rows are joined on their whole key.
type writer struct {
	b    *pgx.Batch
	list []*commit
}

func (w writer) queue() error {
	for _, c := range w.list {
		c.tally()
	}
	w.sites()
	w.nodes()
	if err := w.deployments(); err != nil {
		return err
	}
	w.adopted()
	w.enrolments()
	w.commands()
	w.locals()
	for _, c := range w.list {
		if c.returned {
			w.b.Queue(`update sites s set nodes = n.nodes, nodes_online = n.online from (select count(*) as nodes, count(*) filter (where online) as online
				from nodes where site = $1) n where s.id = $1`, c.site)
		}
	}
	var reports []db.Report
	for _, c := range w.list {
		db.QueueAnomalies(w.b, c.site, c.row.Epoch, c.changes.Anomalies)
		if c.batch.Backlog != (protocol.Backlog{}) {
			reports = append(reports, db.Report{Site: c.site, Batch: c.batch})
		}
	}
	db.QueueReports(w.b, reports)
	return nil
}

func (w writer) sites() {
	n := len(w.list)
	var text [3][]string
	for i := range text {
		text[i] = make([]string, n)
	}
	var number [6][]int64
	for i := range number {
		number[i] = make([]int64, n)
	}
	gap, resync, moved := make([]bool, n), make([]bool, n), make([]*string, n)
	for i, c := range w.list {
		v := c.changes.Site
		text[0][i], text[1][i], text[2][i] = string(c.site), v.Version, c.row.Epoch
		number[0][i], number[1][i] = int64(v.Adopted.Epoch), int64(v.Adopted.Generation)
		number[2][i], number[3][i] = int64(c.row.Seq), int64(v.Lost)
		gap[i], resync[i] = v.Gap, v.Incomplete
		if v.Held != nil {
			db.QueueHeld(w.b, c.site, *v.Held)
		}
		number[4][i], number[5][i] = c.nodesMore()
		if more, some := c.moved(); some {
			text := countArray(more)
			moved[i] = &text
		}
		if c.Gap != nil {
			w.b.Queue(`update sites set gap_events = $2 where id = $1`, c.site, c.toSay)
		}
		if c.Gap != nil && c.Gap.NewEpoch {
			w.b.Queue(`update sites set retired_epochs = $2 where id = $1`, c.site, c.row.Retired)
		}
	}
	w.b.Queue(`update sites s set version = u.version, adopted_epoch = u.adopted_epoch, adopted = u.adopted, journal_epoch = u.epoch, journal_seq = u.seq, gap = u.gap, incomplete = u.incomplete,
			events_lost = u.lost, last_event_at = now(), nodes = s.nodes + u.nodes, nodes_online = s.nodes_online + u.online,
			states = case when u.moved is null then s.states
				else (select array_agg(v.n + v.more order by v.i) from unnest(s.states, u.moved::integer[]) with ordinality as v (n, more, i)) end
		from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::boolean[], $9::bigint[], $10::bigint[], $11::text[], $12::boolean[])
			as u (id, version, epoch, adopted_epoch, adopted, seq, lost, gap, nodes, online, moved, incomplete) where s.id = u.id`,
		text[0], text[1], text[2], number[0], number[1], number[2], number[3], gap, number[4], number[5], moved, resync)
}

// nodesMore returns how many nodes more the site has, and how many more are online.
func (c *commit) nodesMore() (nodes, online int64) {
	for id, n := range c.changes.Nodes {
		was, known := c.nodes[id]
		nodes, online = nodes+more(known, true), online+more(was.Online, n.Online)
	}
	for id := range c.changes.RemovedNodes {
		was, known := c.nodes[id] // it may have come with the batch
		nodes, online = nodes+more(known, false), online+more(was.Online, false)
	}
	return nodes, online
}

func more(was, is bool) int64 {
	switch {
	case is && !was:
		return 1
	case was && !is:
		return -1
	default:
		return 0
	}
}

// nodes writes the rows of nodes that changed. Of one that only goes and comes, its labels
// and its inventory, the most of a row, are neither read nor sent.
func (w writer) nodes() {
	var whole, present nodeRows
	var removed [2][]string
	for _, c := range w.list {
		for _, id := range slices.Sorted(maps.Keys(c.changes.Nodes)) {
			n := c.changes.Nodes[id]
			if was, known := c.nodes[id]; known && was.Inventory == n.Inventory {
				present.add(c.site, n)
				continue
			}
			whole.add(c.site, n)
			whole.addMachine(n)
		}
		for _, id := range slices.Sorted(maps.Keys(c.changes.RemovedNodes)) {
			removed[0], removed[1] = append(removed[0], string(c.site)), append(removed[1], string(id))
		}
	}
	if len(present.online) > 0 {
		w.b.Queue(`update nodes n set version = u.version, problem = u.problem, online = u.online, changed_at = u.changed_at, restrictions = u.restrictions
			from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::timestamptz[], $7::jsonb[]) as u (site, id, version, problem, online, changed_at, restrictions)
			where n.site = u.site and n.id = u.id`, present.args()...)
	}
	if len(whole.online) > 0 {
		w.b.Queue(`insert into nodes (site, id, version, problem, online, changed_at, restrictions, labels, inventory)
			select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::timestamptz[], $7::jsonb[], $8::jsonb[], $9::jsonb[])
			on conflict (site, id) do update set version = excluded.version, labels = excluded.labels, problem = excluded.problem,
				online = excluded.online, changed_at = excluded.changed_at, inventory = excluded.inventory, restrictions = excluded.restrictions`,
			append(whole.args(), whole.labels, whole.inventories)...)
	}
	w.labels()
	w.decommissions()
	if len(removed[0]) > 0 {
		w.b.Queue(`delete from nodes n using unnest($1::text[], $2::text[]) as u (site, id) where n.site = u.site and n.id = u.id`,
			removed[0], removed[1])
	}
}

// nodeRows are the columns of rows of nodes.
type nodeRows struct {
	text         [4][]string // site, id, version, problem
	online       []bool
	changedAt    []*time.Time
	restrictions []*string
	labels       []string
	inventories  []*string
}

func (r *nodeRows) add(site protocol.SiteID, n fleet.Node) {
	for i, s := range [4]string{string(site), string(n.ID), n.Version, n.Problem} {
		r.text[i] = append(r.text[i], s)
	}
	var restricted *string
	if len(n.Restrictions) > 0 || len(n.Waits) > 0 {
		encoded, _ := pgdb.JSON(n.Report) // plain data, decoded from CBOR
		s := string(encoded)
		restricted = &s
	}
	r.online, r.changedAt, r.restrictions = append(r.online, n.Online), append(r.changedAt, n.ChangedAt), append(r.restrictions, restricted)
}

// addMachine adds what a node says of its machine.
func (r *nodeRows) addMachine(n fleet.Node) {
	labels, _ := pgdb.JSON(pgdb.FilledMap(n.Labels)) // strings always encode
	var inventory *string
	if n.Inventory != nil {
		encoded, _ := pgdb.JSON(n.Inventory) // plain data, decoded from CBOR
		s := string(encoded)
		inventory = &s
	}
	r.labels, r.inventories = append(r.labels, string(labels)), append(r.inventories, inventory)
}

// args returns the columns that every row has.
func (r *nodeRows) args() []any {
	return []any{r.text[0], r.text[1], r.text[2], r.text[3], r.online, r.changedAt, r.restrictions}
}

// deployments records states and placements. A deployment that the CO does not
// know (its database was lost) is recorded as far as the reports describe it.
func (w writer) deployments() error {
	var apps, placements [4][]string
	var removed [3][]string
	for _, c := range w.list {
		for _, name := range slices.Sorted(maps.Keys(c.changes.Apps)) {
			app := c.changes.Apps[name]
			for i, s := range [4]string{string(c.site), string(name), app.ID, app.Version} {
				apps[i] = append(apps[i], s)
			}
		}
		for _, k := range slices.SortedFunc(maps.Keys(c.changes.RemovedStatuses), compareKeys) {
			removed[0] = append(removed[0], string(c.site))
			removed[1], removed[2] = append(removed[1], string(k.Deployment)), append(removed[2], string(k.Node))
		}
		for _, name := range slices.Sorted(maps.Keys(c.changes.Placements)) {
			p := c.changes.Placements[name]
			rejected, err := pgdb.JSON(pgdb.FilledMap(p.Rejected))
			if err != nil {
				return err
			}
			for i, s := range [4]string{string(c.site), string(name), pgdb.Storable(p.Problem), string(rejected)} {
				placements[i] = append(placements[i], s)
			}
		}
	}
	if len(apps[0]) == 0 {
		return nil
	}
	w.b.Queue(`insert into deployments as d (site, name, app, app_version)
		select * from unnest($1::text[], $2::text[], $3::text[], $4::text[])
		on conflict (site, name) do update set app = excluded.app, app_version = excluded.app_version where d.app = '' and excluded.app <> ''`,
		apps[0], apps[1], apps[2], apps[3])
	if err := w.statuses(); err != nil {
		return err
	}
	if len(removed[0]) > 0 {
		w.b.Queue(`delete from deployment_nodes d using unnest($1::text[], $2::text[], $3::text[]) as u (site, deployment, node)
			where d.site = u.site and d.deployment = u.deployment and d.node = u.node`, removed[0], removed[1], removed[2])
	}
	if len(placements[0]) > 0 {
		w.b.Queue(`update deployments d set placement = u.problem, rejected = u.rejected, updated_at = now()
			from unnest($1::text[], $2::text[], $3::text[], $4::jsonb[]) as u (site, name, problem, rejected)
			where d.site = u.site and d.name = u.name`, placements[0], placements[1], placements[2], placements[3])
	}
	return w.counters()
}

func compareKeys(a, b projection.Key) int {
	if c := strings.Compare(string(a.Deployment), string(b.Deployment)); c != 0 {
		return c
	}
	return strings.Compare(string(a.Node), string(b.Node))
}

// A status is a row of deployment_nodes.
type status struct {
	site protocol.SiteID
	key  projection.Key
	fleet.DeploymentNode
}

// statuses writes the rows of deployment_nodes that changed. To update those that
// are known to be there costs half of what an insert with a conflict does.
func (w writer) statuses() error {
	var there, fresh []status
	for _, c := range w.list {
		for _, k := range slices.SortedFunc(maps.Keys(c.changes.Statuses), compareKeys) {
			row := status{c.site, k, c.changes.Statuses[k]}
			if _, ok := c.known[k]; ok {
				there = append(there, row)
			} else {
				fresh = append(fresh, row)
			}
		}
	}
	const source = `unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
			$10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::jsonb[], $15::boolean[], $16::text[], $17::text[], $18::timestamptz[])`
	if len(there) > 0 {
		args, err := statusArgs(there)
		if err != nil {
			return err
		}
		w.b.Queue(`update deployment_nodes d set state = u.state, phase = u.ph, digest = u.g, refused = u.r, app_version = u.v, code = u.c,
				message = u.m, pulled_bytes = u.pb, total_bytes = u.tb, attempt = u.a, components = u.cs, updated_at = now(),
				running = u.run, running_version = u.rv, retry_at = u.ra,
				since = case when u.changed or d.digest <> u.g then now() else d.since end
			from `+source+` as u (site, deployment, node, state, ph, g, r, v, c, m, pb, tb, a, cs, changed, run, rv, ra)
			where d.site = u.site and d.deployment = u.deployment and d.node = u.node`, args...)
	}
	if len(fresh) > 0 {
		args, err := statusArgs(fresh)
		if err != nil {
			return err
		}
		w.b.Queue(`insert into deployment_nodes (site, deployment, node, state, phase, digest, refused, app_version, code, message,
				pulled_bytes, total_bytes, attempt, components, running, running_version, retry_at)
			select site, deployment, node, state, ph, g, r, v, c, m, pb, tb, a, cs, run, rv, ra
			from `+source+` as u (site, deployment, node, state, ph, g, r, v, c, m, pb, tb, a, cs, changed, run, rv, ra)`, args...)
	}
	return nil
}

// statusArgs returns the columns of rows, the key first.
func statusArgs(rows []status) ([]any, error) {
	n := len(rows)
	var text [12][]string
	for i := range text {
		text[i] = make([]string, n)
	}
	pulled, total, attempt, components := make([]int64, n), make([]int64, n), make([]int64, n), make([]string, n)
	changed, retryAt := make([]bool, n), make([]*time.Time, n)
	for i := range rows {
		v := &rows[i]
		for j, s := range [12]string{
			string(v.site), string(v.key.Deployment), string(v.key.Node), string(v.State), string(v.Phase), string(v.Digest), string(v.Refused),
			v.AppVersion, string(v.Code), v.Message, string(v.Running), v.RunningVersion,
		} {
			text[j][i] = s
		}
		pulled[i], total[i], attempt[i] = int64(v.PulledBytes), int64(v.TotalBytes), int64(v.Attempt)
		components[i], changed[i], retryAt[i] = "[]", !v.Since.IsZero(), v.RetryAt
		if len(v.Components) > 0 {
			encoded, err := pgdb.JSON(v.Components)
			if err != nil {
				return nil, err
			}
			components[i] = string(encoded)
		}
	}
	return []any{
		text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8], text[9], pulled, total, attempt, components, changed,
		text[10], text[11], retryAt,
	}, nil
}

const transitionColumns = `site, deployment, node, from_state, to_state, actor, digest, app_version, code, message, attempt, site_time, site_time_unsynced`

// A transition is a row of deployment_history.
type transition struct {
	site protocol.SiteID
	*projection.Transition
}

// texts are the columns site to message.
func (t transition) texts() [10]string {
	return [10]string{
		string(t.site), string(t.Deployment), string(t.Node), string(t.From), string(t.To), string(t.Actor), string(t.Digest),
		t.AppVersion, string(t.Code), t.Message,
	}
}

// transitions writes few rows, as a statement of a batch.
func (w writer) transitions(list []transition) {
	if len(list) == 0 {
		return
	}
	n := len(list)
	var text [10][]string
	for i := range text {
		text[i] = make([]string, n)
	}
	siteTimes, attempt, unsynced := make([]*time.Time, n), make([]int64, n), make([]bool, n)
	for i, t := range list {
		for j, s := range t.texts() {
			text[j][i] = s
		}
		siteTimes[i], attempt[i], unsynced[i] = t.SiteTime, int64(t.Attempt), t.Unsynced && t.SiteTime != nil
	}
	w.b.Queue(`insert into deployment_history (`+transitionColumns+`)
		select s, d, n, f, o, a, g, v, c, m, t, st, un from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
			$8::text[], $9::text[], $10::text[], $11::bigint[], $12::timestamptz[], $13::boolean[])
			with ordinality as u (s, d, n, f, o, a, g, v, c, m, t, st, un, number) order by number`,
		text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8], text[9], attempt, siteTimes, unsynced)
}

// encodeTransitions prepares many rows for a COPY, without the columns in which all
// of them are empty.
func encodeTransitions(list []transition) *pgdb.Copy {
	var filled [10]bool
	for _, t := range list {
		for j, s := range t.texts() {
			filled[j] = filled[j] || s != ""
		}
	}
	columns := []string{"attempt", "site_time", "site_time_unsynced"}
	for j, name := range [10]string{"site", "deployment", "node", "from_state", "to_state", "actor", "digest", "app_version", "code", "message"} {
		if filled[j] = filled[j] || j < 6; filled[j] { // those that follow are empty by default
			columns = append(columns, name)
		}
	}
	rows := pgdb.NewCopy(len(list)*256, columns...)
	for _, t := range list {
		rows.Row()
		rows.Int8(int64(t.Attempt))
		rows.Timestamp(t.SiteTime)
		rows.Bool(t.Unsynced && t.SiteTime != nil)
		for j, s := range t.texts() {
			if filled[j] {
				rows.Text(s)
			}
		}
	}
	return rows
}
