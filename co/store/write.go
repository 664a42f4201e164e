package store

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/protocol"
)

// A writer queues what a batch of a site changes: few statements, each for any
// number of rows. Rows are in the order of their keys, so that two writers never
// wait for each other in a circle.
type writer struct {
	b    *pgx.Batch
	site protocol.SiteID
}

func (w writer) nodes(c projection.Changes) {
	for _, id := range slices.Sorted(maps.Keys(c.Nodes)) {
		n := c.Nodes[id]
		labels, _ := encodeJSON(notNil(n.Labels)) // strings always encode
		var inventory []byte
		if n.Inventory != nil {
			inventory, _ = encodeJSON(n.Inventory) // plain data, decoded from CBOR
		}
		w.b.Queue(`insert into nodes (site, id, online, changed_at, version, labels, inventory) values ($1, $2, $3, $4, $5, $6, $7)
			on conflict (site, id) do update set online = $3, changed_at = $4, version = $5, labels = $6, inventory = $7`,
			w.site, id, n.Online, n.ChangedAt, n.Version, labels, inventory)
	}
	if len(c.GoneNodes) > 0 {
		w.b.Queue(`delete from nodes where site = $1 and id = any($2)`, w.site, texts(slices.Sorted(maps.Keys(c.GoneNodes))))
	}
}

// deployments records states and placements. A deployment that the CO does not
// know (its database was lost) is recorded as far as the reports tell of it.
func (w writer) deployments(c projection.Changes) error {
	if len(c.Apps) == 0 {
		return nil
	}
	names := texts(slices.Sorted(maps.Keys(c.Apps)))
	ids, versions := make([]string, len(names)), make([]string, len(names))
	for i, name := range names {
		app := c.Apps[protocol.DeploymentName(name)]
		ids[i], versions[i] = app.ID, app.Version
	}
	w.b.Queue(`insert into deployments as d (site, name, app, app_version)
		select $1, n, a, v from unnest($2::text[], $3::text[], $4::text[]) as u (n, a, v)
		on conflict (site, name) do update set app = excluded.app, app_version = excluded.app_version where d.app = '' and excluded.app <> ''`,
		w.site, names, ids, versions)
	if err := w.statuses(c.Statuses); err != nil {
		return err
	}
	if len(c.GoneStatuses) > 0 {
		keys := slices.SortedFunc(maps.Keys(c.GoneStatuses), compareKeys)
		deployments, nodes := make([]string, len(keys)), make([]string, len(keys))
		for i, k := range keys {
			deployments[i], nodes[i] = string(k.Deployment), string(k.Node)
		}
		w.b.Queue(`delete from deployment_nodes where site = $1 and (deployment, node) in (select * from unnest($2::text[], $3::text[]))`,
			w.site, deployments, nodes)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Placements)) {
		p := c.Placements[name]
		rejected, err := encodeJSON(p.Rejected)
		if err != nil {
			return err
		}
		if p.Rejected == nil {
			rejected = []byte("{}")
		}
		w.b.Queue(`update deployments set placement = $3, rejected = $4, updated_at = now() where site = $1 and name = $2`,
			w.site, name, storable(p.Problem), rejected)
	}
	queueArchive(w.b, w.site, names)
	return nil
}

// storable leaves out NUL, which PostgreSQL refuses in a text.
func storable(s string) string { return strings.ReplaceAll(s, "\x00", "") }

func compareKeys(a, b projection.Key) int {
	if c := strings.Compare(string(a.Deployment), string(b.Deployment)); c != 0 {
		return c
	}
	return strings.Compare(string(a.Node), string(b.Node))
}

func (w writer) statuses(m map[projection.Key]fleet.DeploymentNode) error {
	if len(m) == 0 {
		return nil
	}
	keys := slices.SortedFunc(maps.Keys(m), compareKeys)
	n := len(keys)
	var text [9][]string
	for i := range text {
		text[i] = make([]string, n)
	}
	pulled, total, attempt, components := make([]int64, n), make([]int64, n), make([]int64, n), make([]string, n)
	for i, k := range keys {
		v := m[k]
		for j, s := range [9]string{
			string(k.Deployment), string(k.Node), string(v.State), string(v.Phase), string(v.Digest), string(v.Refused),
			v.AppVersion, string(v.Code), v.Message,
		} {
			text[j][i] = s
		}
		pulled[i], total[i], attempt[i] = int64(v.PulledBytes), int64(v.TotalBytes), int64(v.Attempt)
		list := v.Components
		if list == nil {
			list = []protocol.ComponentStatus{}
		}
		encoded, err := encodeJSON(list)
		if err != nil {
			return err
		}
		components[i] = string(encoded)
	}
	w.b.Queue(`insert into deployment_nodes (site, deployment, node, state, phase, digest, refused, app_version, code, message,
			pulled_bytes, total_bytes, attempt, components)
		select $1, u.* from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
			$10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::jsonb[]) as u
		on conflict (site, deployment, node) do update set state = excluded.state, phase = excluded.phase, digest = excluded.digest,
			refused = excluded.refused, app_version = excluded.app_version, code = excluded.code, message = excluded.message,
			pulled_bytes = excluded.pulled_bytes, total_bytes = excluded.total_bytes, attempt = excluded.attempt,
			components = excluded.components, updated_at = now()`,
		w.site, text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8], pulled, total, attempt, components)
	return nil
}

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
	for i, t := range list {
		for j, s := range [9]string{
			string(t.Deployment), string(t.Node), string(t.From), string(t.To), string(t.Actor), string(t.Digest),
			t.AppVersion, string(t.Code), t.Message,
		} {
			text[j][i] = s
		}
		siteTimes[i], attempt[i] = t.SiteTime, int64(t.Attempt)
	}
	w.b.Queue(`insert into deployment_history (site, deployment, node, from_state, to_state, actor, digest, app_version, code, message,
			attempt, site_time)
		select $1, d, n, f, o, a, g, v, c, m, t, s from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
			$8::text[], $9::text[], $10::text[], $11::bigint[], $12::timestamptz[])
			with ordinality as u (d, n, f, o, a, g, v, c, m, t, s, number) order by number`,
		w.site, text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8], attempt, siteTimes)
}

func (w writer) anomalies(list []projection.Anomaly, epoch string) {
	for _, a := range list {
		body := a.Body
		if body == nil {
			body = []byte{}
		}
		w.b.Queue(`insert into anomalies (site, node, deployment, kind, journal_epoch, journal_seq, reason, body)
			values ($1, $2, $3, $4, $5, $6, $7, $8)`, w.site, a.Node, a.Deployment, a.Kind, epoch, int64(a.Seq), a.Reason, body)
	}
}
