package journaldb

import (
	"time"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/identity"
)

// enrolments records which node has which key, as LOs have reported, and which list of revoked keys a
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
		}
		if n := c.changes.Revocations; n > 0 {
			w.b.Queue(`update revocation_lists set adopted = $2, adopted_at = now() where site = $1 and adopted <> $2`, c.site, int64(n))
		}
		for id := range c.changes.RemovedNodes {
			db.QueueRevokeRemoved(w.b, identity.OfNode(c.site, id).DNS())
		}
	}
}
