package fleetdb

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// A writer queues what a batch of a site changes: few statements, each for any
// number of rows. It holds the lock of the site's row, so that no other writer to
// the site's rows is at work.
type writer struct {
	b    *pgx.Batch
	site protocol.SiteID
}

func (w writer) nodes(c projection.Changes) {
	for _, id := range slices.Sorted(maps.Keys(c.Nodes)) {
		n := c.Nodes[id]
		labels, _ := pgdb.JSON(notNil(n.Labels)) // strings always encode
		var inventory []byte
		if n.Inventory != nil {
			inventory, _ = pgdb.JSON(n.Inventory) // plain data, decoded from CBOR
		}
		w.b.Queue(`insert into nodes (site, id, online, changed_at, version, labels, inventory) values ($1, $2, $3, $4, $5, $6, $7)
			on conflict (site, id) do update set online = $3, changed_at = $4, version = $5, labels = $6, inventory = $7`,
			w.site, id, n.Online, n.ChangedAt, n.Version, labels, inventory)
	}
	if len(c.RemovedNodes) > 0 {
		w.b.Queue(`delete from nodes where site = $1 and id = any($2)`, w.site, pgdb.Texts(slices.Sorted(maps.Keys(c.RemovedNodes))))
	}
}

// deployments records states and placements. A deployment that the CO does not
// know (its database was lost) is recorded as far as the reports describe it.
// known are the rows of deployment_nodes, of those that changed, that there are.
func (w writer) deployments(c projection.Changes, known map[projection.Key]bool) error {
	if len(c.Apps) == 0 {
		return nil
	}
	names := pgdb.Texts(slices.Sorted(maps.Keys(c.Apps)))
	ids, versions := make([]string, len(names)), make([]string, len(names))
	for i, name := range names {
		app := c.Apps[protocol.DeploymentName(name)]
		ids[i], versions[i] = app.ID, app.Version
	}
	w.b.Queue(`insert into deployments as d (site, name, app, app_version)
		select $1, n, a, v from unnest($2::text[], $3::text[], $4::text[]) as u (n, a, v)
		on conflict (site, name) do update set app = excluded.app, app_version = excluded.app_version where d.app = '' and excluded.app <> ''`,
		w.site, names, ids, versions)
	if err := w.statuses(c.Statuses, known); err != nil {
		return err
	}
	if len(c.RemovedStatuses) > 0 {
		keys := slices.SortedFunc(maps.Keys(c.RemovedStatuses), compareKeys)
		deployments, nodes := make([]string, len(keys)), make([]string, len(keys))
		for i, k := range keys {
			deployments[i], nodes[i] = string(k.Deployment), string(k.Node)
		}
		w.b.Queue(`delete from deployment_nodes where site = $1 and (deployment, node) in (select * from unnest($2::text[], $3::text[]))`,
			w.site, deployments, nodes)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Placements)) {
		p := c.Placements[name]
		rejected, err := pgdb.JSON(p.Rejected)
		if err != nil {
			return err
		}
		if p.Rejected == nil {
			rejected = []byte("{}")
		}
		w.b.Queue(`update deployments set placement = $3, rejected = $4, updated_at = now() where site = $1 and name = $2`,
			w.site, name, pgdb.Storable(p.Problem), rejected)
	}
	queueArchive(w.b, w.site, names)
	return nil
}

func compareKeys(a, b projection.Key) int {
	if c := strings.Compare(string(a.Deployment), string(b.Deployment)); c != 0 {
		return c
	}
	return strings.Compare(string(a.Node), string(b.Node))
}

// statuses writes the rows of deployment_nodes that changed. To update those that
// are known to be there costs half of what an insert with a conflict does.
func (w writer) statuses(m map[projection.Key]fleet.DeploymentNode, known map[projection.Key]bool) error {
	var there, fresh []projection.Key
	for k := range m {
		if known[k] {
			there = append(there, k)
		} else {
			fresh = append(fresh, k)
		}
	}
	const source = `unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
			$10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::jsonb[], $15::boolean[])`
	if len(there) > 0 {
		args, err := w.statusArgs(m, there)
		if err != nil {
			return err
		}
		w.b.Queue(`update deployment_nodes d set state = u.s, phase = u.ph, digest = u.g, refused = u.r, app_version = u.v, code = u.c,
				message = u.m, pulled_bytes = u.pb, total_bytes = u.tb, attempt = u.a, components = u.cs, updated_at = now(),
				since = case when u.changed or d.digest <> u.g then now() else d.since end
			from `+source+` as u (d, n, s, ph, g, r, v, c, m, pb, tb, a, cs, changed)
			where d.site = $1 and d.deployment = u.d and d.node = u.n`, args...)
	}
	if len(fresh) > 0 {
		args, err := w.statusArgs(m, fresh)
		if err != nil {
			return err
		}
		w.b.Queue(`insert into deployment_nodes (site, deployment, node, state, phase, digest, refused, app_version, code, message,
				pulled_bytes, total_bytes, attempt, components) select $1, d, n, s, ph, g, r, v, c, m, pb, tb, a, cs
			from `+source+` as u (d, n, s, ph, g, r, v, c, m, pb, tb, a, cs, changed)`, args...)
	}
	return nil
}

// statusArgs returns the site and the columns of the rows with the given keys.
func (w writer) statusArgs(m map[projection.Key]fleet.DeploymentNode, keys []projection.Key) ([]any, error) {
	n := len(keys)
	var text [9][]string
	for i := range text {
		text[i] = make([]string, n)
	}
	pulled, total, attempt, components := make([]int64, n), make([]int64, n), make([]int64, n), make([]string, n)
	changed := make([]bool, n)
	for i, k := range keys {
		v := m[k]
		for j, s := range [9]string{
			string(k.Deployment), string(k.Node), string(v.State), string(v.Phase), string(v.Digest), string(v.Refused),
			v.AppVersion, string(v.Code), v.Message,
		} {
			text[j][i] = s
		}
		pulled[i], total[i], attempt[i] = int64(v.PulledBytes), int64(v.TotalBytes), int64(v.Attempt)
		components[i], changed[i] = "[]", !v.Since.IsZero()
		if len(v.Components) > 0 {
			encoded, err := pgdb.JSON(v.Components)
			if err != nil {
				return nil, err
			}
			components[i] = string(encoded)
		}
	}
	return []any{
		w.site, text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8], pulled, total, attempt, components, changed,
	}, nil
}

const transitionColumns = `site, deployment, node, from_state, to_state, actor, digest, app_version, code, message, attempt, site_time`

// transitionTexts are the columns deployment to message.
func transitionTexts(t *projection.Transition) [9]string {
	return [9]string{
		string(t.Deployment), string(t.Node), string(t.From), string(t.To), string(t.Actor), string(t.Digest),
		t.AppVersion, string(t.Code), t.Message,
	}
}

// transitions writes few rows, as a statement of a batch.
func (w writer) transitions(list []projection.Transition) {
	if len(list) == 0 {
		return
	}
	n := len(list)
	var text [9][]string
	for i := range text {
		text[i] = make([]string, n)
	}
	siteTimes, attempt := make([]*time.Time, n), make([]int64, n)
	for i := range list {
		for j, s := range transitionTexts(&list[i]) {
			text[j][i] = s
		}
		siteTimes[i], attempt[i] = list[i].SiteTime, int64(list[i].Attempt)
	}
	w.b.Queue(`insert into deployment_history (`+transitionColumns+`)
		select $1, d, n, f, o, a, g, v, c, m, t, s from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
			$8::text[], $9::text[], $10::text[], $11::bigint[], $12::timestamptz[])
			with ordinality as u (d, n, f, o, a, g, v, c, m, t, s, number) order by number`,
		w.site, text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8], attempt, siteTimes)
}

// encodeTransitions prepares many rows for a COPY, without the columns in which all
// of them are empty.
func encodeTransitions(site protocol.SiteID, list []projection.Transition) *pgdb.Copy {
	var filled [9]bool
	for i := range list {
		for j, s := range transitionTexts(&list[i]) {
			filled[j] = filled[j] || s != ""
		}
	}
	columns := []string{"site", "attempt", "site_time"}
	for j, name := range [9]string{"deployment", "node", "from_state", "to_state", "actor", "digest", "app_version", "code", "message"} {
		if filled[j] = filled[j] || j < 5; filled[j] { // those that follow are empty by default
			columns = append(columns, name)
		}
	}
	rows := pgdb.NewCopy(len(list)*256, columns...)
	for i := range list {
		t := &list[i]
		rows.Row()
		rows.Text(string(site))
		rows.Int8(int64(t.Attempt))
		rows.Timestamp(t.SiteTime)
		for j, s := range transitionTexts(t) {
			if filled[j] {
				rows.Text(s)
			}
		}
	}
	return rows
}
