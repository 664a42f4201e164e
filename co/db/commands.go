package db

import (
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// A ReceivedCommand is what a site reported of a command that it has.
type ReceivedCommand struct {
	Site protocol.SiteID
	fleet.CommandReceived
}

// QueueCommandsReceived records that sites have commands, each at most once in the list: the last report counts. The
// caller holds the locks of the sites. What is no command of the site is left out.
func QueueCommandsReceived(b *pgx.Batch, list []ReceivedCommand) {
	if len(list) == 0 {
		return
	}
	var text [4][]string
	meant := make([]int64, len(list))
	for i, t := range list {
		for j, s := range [4]string{string(t.Site), string(t.Command), string(t.Code), t.Message} {
			text[j] = append(text[j], s)
		}
		meant[i] = int64(min(t.Meant, math.MaxInt64))
	}
	b.Queue(`update command_sites s set received_at = coalesce(s.received_at, now()), meant = u.meant, code = u.code, message = u.message, changed_at = now(), cleared = false
		from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[]) as u (site, command, code, message, meant)
		where s.command = u.command and s.site = u.site`, text[0], text[1], text[2], text[3], meant)
}

// QueueCommandResults records what became of commands on nodes, each of them at most once in the list, and counts
// it. One of a lower or an equal rank than that on record changes nothing. The caller holds the locks of the sites.
// What is of no command of the site is left out.
func QueueCommandResults(b *pgx.Batch, list []fleet.CommandResult) {
	if len(list) == 0 {
		return
	}
	n := len(list)
	var text [7][]string
	for i := range text {
		text[i] = make([]string, n)
	}
	cut, millis, rank := make([]bool, n), make([]int64, n), make([]int16, n)
	for i := range list {
		r := &list[i]
		for j, s := range [7]string{string(r.Site), string(r.Command), string(r.Node), string(r.State), string(r.Code), r.Message, r.Output} {
			text[j][i] = pgdb.Storable(s)
		}
		cut[i], millis[i], rank[i] = r.Cut, int64(min(r.Duration, math.MaxInt64)), int16(r.Rank())
	}
	b.Queue(`with known as materialized (select r.*, n.state as was from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::boolean[], $9::bigint[], $10::smallint[])
				as r (site, command, node, state, code, message, output, cut, millis, rank)
			cross join lateral (select from command_sites where command = r.command and site = r.site limit 1) s
			left join lateral (select state from command_nodes where command = r.command and site = r.site and node = r.node limit 1) n on true),
		written as (insert into command_nodes as c (command, site, node, state, code, message, output, cut, millis, rank)
			select command, site, node, state, code, message, output, cut, millis, rank from known
			on conflict (command, site, node) do update set state = excluded.state, code = excluded.code, message = excluded.message, output = excluded.output,
				cut = excluded.cut, millis = excluded.millis, rank = excluded.rank, at = now() where c.rank < excluded.rank
			returning c.command, c.site, c.node, c.state),
		more as (select k.command, k.site, `+moreOf("running")+`, `+moreOf("done")+`, `+moreOf("failed")+`, `+moreOf("refused")+`, `+moreOf("expired")+`, `+moreOf("unknown")+`
			from written w join known k on k.command = w.command and k.site = w.site and k.node = w.node group by k.command, k.site)
		update command_sites s set running = s.running + m.running, done = s.done + m.done, failed = s.failed + m.failed, refused = s.refused + m.refused,
			expired = s.expired + m.expired, unknown = s.unknown + m.unknown, changed_at = now()
		from more m where s.command = m.command and s.site = m.site`,
		text[0], text[1], text[2], text[3], text[4], text[5], text[6], cut, millis, rank)
	// A site that reports of what it should not have any more is to have it cleared once again.
	b.Queue(`update command_sites s set cleared = false, changed_at = now() from (select distinct * from unnest($1::text[], $2::text[]) as r (site, command)) u
		where s.command = u.command and s.site = u.site and s.state not in ('waiting', 'running')`, text[0], text[1])
}

// moreOf is how many rows more have a state.
func moreOf(state string) string {
	return `count(*) filter (where w.state = '` + state + `') - count(*) filter (where k.was = '` + state + `') as ` + state
}
