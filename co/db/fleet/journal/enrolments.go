package journaldb

import (
	"time"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/netaddr"
	"github.com/colonyfleet/colony/protocol"
)

// enrolments records which node has which key, as LOs have reported, which wait to be approved, and which list of revoked keys a
// site goes by. The key that a node had before is revoked; one that was revoked before does not come
// back, and no LO can give a node the key of another machine. A node that was removed is forgotten, and
// its key revoked.
func (w writer) enrolments() {
	for _, c := range w.list {
		for _, e := range c.changes.Enrolments {
			name := identity.OfNode(c.site, e.Node).DNS()
			db.QueueRevoke(w.b, name, e.Key)
			var end *time.Time
			if !e.NotAfter.IsZero() {
				end = &e.NotAfter
			}
			w.b.Queue(`insert into machines (name, site, key, token, serial, not_after) select $1, $3, $2, '', $4, $5
				where not exists (select from revoked_keys where key = $2) and not exists (`+db.Others+`)
				on conflict (name) do update set serial = excluded.serial, not_after = greatest(machines.not_after, excluded.not_after), issued_at = now()`,
				name, e.Key, c.site, e.Serial, end)
			w.b.Queue(`delete from pending_nodes where site = $1 and key = $2`, c.site, e.Key)
		}
		w.pending(c.site, c.changes.Pending)
		if n := c.changes.Revocations; n > 0 {
			w.b.Queue(`update revocation_lists set adopted = $2, adopted_at = now() where site = $1 and adopted <> $2`, c.site, int64(n))
		}
		for id := range c.changes.RemovedNodes {
			db.QueueRevokeRemoved(w.b, identity.OfNode(c.site, id).DNS())
		}
	}
}

// mostPending bounds the recorded nodes of a site that wait for a decision, and keepPending is for how long a node
// stays that is not reported any more. A decision stays for a month after its end.
const (
	mostPending = 256
	keepPending = `3 days`
)

// pending records which nodes wait at a site. What was decided about a key holds for the name that it asked by
// then: by another one it waits anew.
func (w writer) pending(site protocol.SiteID, list []projection.Pending) {
	if len(list) == 0 {
		return
	}
	for _, p := range list {
		w.b.Queue(`insert into pending_nodes as p (site, key, node, device, remote, network) values ($1, $2, $3, $4, $5, $6)
			on conflict (site, key) do update set node = excluded.node, device = excluded.device, remote = excluded.remote, network = excluded.network, last_at = now(),
				decision = case when p.node = excluded.node and (p.expires_at is null or p.expires_at > now()) then p.decision else '' end`,
			site, p.Key, p.Node, p.Device, p.Remote, netaddr.Network(p.Remote))
	}
	w.b.Queue(`delete from pending_nodes where site = $1 and (decision = '' and last_at < now() - interval '`+keepPending+`' or expires_at < now() - interval '1 month')`, site)
	// Of too many, those of one network leave first: its newest, until no other network has more.
	w.b.Queue(`delete from pending_nodes where site = $1 and key in (select key from (
			select key, last_at, row_number() over (partition by network order by first_at, key) as place from pending_nodes where site = $1 and decision = '') n
		order by place, last_at desc, key offset $2)`, site, mostPending)
}
