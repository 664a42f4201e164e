package db

import (
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/protocol"
)

// revoke moves the keys of machines to the revoked ones, for a year and a day from now or from the end of the
// authority's certificate. An LO that is away may have renewed certificates that the CO does not know of, and
// may be away for long. removed says that the machines were removed, and not revoked by name.
func revoke(where string, removed bool) string {
	return `with removed as (delete from machines where ` + where + ` returning *), keys as (
			select key, site, name, false as authority, now() as begins from removed where key <> ''
			union all
			select authority, site, name, true, greatest(now(), least(authority_not_after, now() + interval '365 days')) from removed where authority <> '')
		insert into revoked_keys (key, site, name, authority, not_after, removed)
			select key, site, name, authority, begins + interval '366 days', ` + strconv.FormatBool(removed) + ` from keys
		on conflict (key) do update set not_after = greatest(revoked_keys.not_after, excluded.not_after)`
}

// Others selects the machines other than $1 whose key, or that of whose authority, is $2.
const Others = `select from machines o where o.name <> $1 and (o.key = $2 or o.authority = $2) and $2 <> ''`

// QueueRevoke revokes the keys of a machine, by its name in certificates, and forgets it, unless its key is
// except, or that was revoked itself or is another machine's.
func QueueRevoke(b *pgx.Batch, name, except string) {
	b.Queue(revoke(`name = $1 and key <> $2 and not exists (select from revoked_keys where key = $2) and not exists (`+Others+`)`, false), name, except)
}

// QueueRevokeRemoved revokes the keys of a machine that was removed, and forgets it.
func QueueRevokeRemoved(b *pgx.Batch, name string) {
	b.Queue(revoke(`name = $1`, true), name)
}

// QueueRevokeSite does so with all machines of a site that was removed.
func QueueRevokeSite(b *pgx.Batch, site protocol.SiteID) {
	b.Queue(revoke(`site = $1`, true), site)
}
