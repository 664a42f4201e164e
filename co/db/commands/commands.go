// Package commandsdb is the CO's record of commands: what operators asked of nodes once, and what became of it. The
// reports of sites come to it by the batches of their journals. Errors are of the protocol's kinds.
package commandsdb

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A Store is the record. Its methods may be called concurrently.
type Store struct{ db *db.DB }

// New returns the record in a database, which stays the caller's to close.
func New(pool *db.DB) *Store { return &Store{pool} }

// MaxOpen bounds the commands of a site of which something may still come: its LO keeps each of them.
const MaxOpen = 1000

// Create records a command. The error is of kind NotFound where a site or a node that it names does not exist, and of
// kind Conflict where a site has MaxOpen commands.
func (s *Store) Create(ctx context.Context, c fleet.NewCommand) error {
	arguments, err := encoded(c.Args)
	if err != nil {
		return err
	}
	sites := make([]protocol.SiteID, len(c.Targets))
	for i, t := range c.Targets {
		sites[i] = t.Site
	}
	return s.db.Tx(ctx, "record command", func(tx pgx.Tx) error {
		if err := checkSites(ctx, tx, sites); err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(`insert into commands (id, kind, args, arguments, actor, created_at, deadline, budget) values ($1, $2, $3, $4, $5, $6, $7, $8)`,
			c.ID, c.Kind, pgdb.Filled(c.Encoded), arguments, c.Actor, c.CreatedAt, c.Deadline, int64(c.Budget))
		for _, t := range c.Targets {
			if err := checkNodes(ctx, tx, t); err != nil {
				return err
			}
			selector, err := encoded(t.Selector)
			if err != nil {
				return err
			}
			b.Queue(`insert into command_sites (command, site, created_at, deadline, nodes, selector, every, meant) values ($1, $2, $3, $4, $5, $6, $7, $8)`,
				c.ID, t.Site, c.CreatedAt, c.Deadline, pgdb.Texts(t.Nodes), selector, t.All, len(t.Nodes))
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

// encoded returns a value as JSON, nil for none.
func encoded(v any) (*string, error) {
	if labels, ok := v.(map[string]string); v == nil || ok && len(labels) == 0 {
		return nil, nil
	}
	b, err := pgdb.JSON(v)
	if err != nil {
		return nil, err
	}
	text := string(b)
	return &text, nil
}

func checkSites(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) error {
	type row struct {
		id   protocol.SiteID
		open int
	}
	found, err := pgdb.Rows(ctx, tx, func(r pgx.CollectableRow) (v row, err error) { return v, r.Scan(&v.id, &v.open) },
		`select s.id, (select count(*) from (select from command_sites c where c.site = s.id and not c.cleared limit $2) n) from sites s where s.id = any($1)`,
		pgdb.Texts(sites), MaxOpen)
	if err != nil {
		return err
	}
	open := map[protocol.SiteID]int{}
	for _, r := range found {
		open[r.id] = r.open
	}
	for _, site := range sites {
		switch n, ok := open[site]; {
		case !ok:
			return protocol.Errorf(protocol.NotFound, "no site %q: colony site list shows which there are", site)
		case n >= MaxOpen:
			return protocol.Errorf(protocol.Conflict, "site %q has %d commands that have not ended, which is the limit: wait for them, or cancel some (colony command cancel)", site, n)
		}
	}
	return nil
}

// shown is how many names an error lists.
const shown = 10

func checkNodes(ctx context.Context, tx pgx.Tx, t fleet.CommandTarget) error {
	if len(t.Nodes) == 0 {
		return nil
	}
	missing, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `select n from unnest($2::text[]) as n where not exists (select from nodes where site = $1 and id = n) order by n`,
		t.Site, pgdb.Texts(t.Nodes))
	if err != nil || len(missing) == 0 {
		return err
	}
	more := ""
	if len(missing) > shown {
		missing, more = missing[:shown], " and more"
	}
	return protocol.Errorf(protocol.NotFound, "site %q has no node %s%s: colony node list --site %s shows which there are", t.Site, strings.Join(missing, ", "), more, t.Site)
}

// Away returns those of some nodes of a site that are not online, with since when; zero: it is not known. That the site is
// offline is not looked at.
func (s *Store) Away(ctx context.Context, site protocol.SiteID, nodes []protocol.NodeID) (map[protocol.NodeID]time.Time, error) {
	type row struct {
		node protocol.NodeID
		at   *time.Time
	}
	list, err := pgdb.Rows(ctx, s.db, func(r pgx.CollectableRow) (v row, err error) { return v, r.Scan(&v.node, &v.at) },
		`select u.id, n.changed_at from unnest($2::text[]) as u (id) left join nodes n on n.site = $1 and n.id = u.id where n.online is distinct from true`, site, pgdb.Texts(nodes))
	out := map[protocol.NodeID]time.Time{}
	for _, v := range list {
		out[v.node] = time.Time{}
		if v.at != nil {
			out[v.node] = *v.at
		}
	}
	return out, pgdb.Classify("look for nodes that are away", err)
}

// counts are the columns of fleet.CommandCounts, summed over some rows of command_sites.
const counts = `coalesce(sum(s.meant), 0)::bigint, coalesce(sum(s.running), 0)::bigint, coalesce(sum(s.done), 0)::bigint, coalesce(sum(s.failed), 0)::bigint,
	coalesce(sum(s.refused), 0)::bigint, coalesce(sum(s.expired), 0)::bigint, coalesce(sum(s.unknown), 0)::bigint`

const (
	open = `s.state in ('waiting', 'running')`
	// commandView is each command with what its sites that a set has say of it: $1 are ids, $2 beginnings of ids; both empty
	// stand for all sites.
	commandView = `select c.id, c.kind, c.arguments, c.actor, c.created_at, c.deadline, c.budget, v.* from commands c
		cross join lateral (select count(*) filter (where ` + open + `) as open, count(*) as sites, count(*) filter (where s.state = 'refused') as refusing,
			coalesce(min(s.code) filter (where s.state = 'refused'), '') as refusal, ` + counts + ` from command_sites s where s.command = c.id and ` + db.InSet + `) v `
)

func scanCommand(row pgx.CollectableRow) (c fleet.Command, err error) {
	var args []byte
	var budget int64
	var open int
	n := &c.Counts
	err = row.Scan(&c.ID, &c.Kind, &args, &c.Actor, &c.CreatedAt, &c.Deadline, &budget, &open, &c.SiteCount, &c.RefusedSites, &c.RefusedCode, &n.Nodes, &n.Running, &n.Done, &n.Failed, &n.Refused, &n.Expired, &n.Unknown)
	c.CreatedAt, c.Deadline, c.Budget, c.State = c.CreatedAt.UTC(), c.Deadline.UTC(), uint64(budget), fleet.CommandStateEnded
	if open > 0 {
		c.State = fleet.CommandStateOpen
	}
	if len(args) > 0 {
		c.Args = json.RawMessage(args)
	}
	return c, err
}

// Commands returns a page of the commands that a filter picks, the newest first, and the cursor of the next page. What it
// says of each is about the sites of the filter alone. A cursor that is none is of kind Invalid.
func (s *Store) Commands(ctx context.Context, f fleet.CommandFilter, p fleet.Page) (list []fleet.Command, next string, err error) {
	before, id := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "" // after all
	if p.Cursor != "" {
		if before, id, err = fleet.ParseTimeCursor(p.Cursor); err != nil {
			return nil, "", err
		}
	}
	ids, beginnings := db.Sets(f.Within)
	from := `where (c.created_at, c.id) < ($3, $4)`
	if f.Site != "" {
		ids, beginnings = []string{string(f.Site)}, []string{}
		from = `where c.id in (select command from command_sites where site = ($1::text[])[1] and created_at <= $3 and created_at >= $6) and (c.created_at, c.id) < ($3, $4)`
	}
	n := fleet.Size(p.Limit)
	list, err = pgdb.Rows(ctx, s.db, scanCommand, commandView+from+` and (v.sites > 0 or cardinality($1::text[]) + cardinality($2::text[]) = 0)
		and ($5 = '' or c.kind = $5) and c.created_at >= $6 and ($7 = '' or ($7 = 'open') = (v.open > 0))
		and ($8 = '' or strpos(c.id, lower($8)) > 0 or strpos(lower(c.actor), lower($8)) > 0 or strpos(lower(c.arguments::text), lower($8)) > 0)
		order by c.created_at desc, c.id desc limit $9`, ids, beginnings, before, id, f.Kind, f.Since, f.State, f.Text, n+1)
	if err != nil {
		return nil, "", pgdb.Classify("list commands", err)
	}
	list, next = fleet.Cut(list, n, func(last fleet.Command) string { return fleet.TimeCursor(last.CreatedAt, string(last.ID)) })
	return list, next, nil
}

// Command returns a command with its sites that a set has. The error is of kind NotFound where there is none.
func (s *Store) Command(ctx context.Context, id command.ID, within siteset.Set) (fleet.Command, error) {
	ids, beginnings := db.Sets(within)
	found, err := pgdb.Rows(ctx, s.db, scanCommand, commandView+`where c.id = $3 and (v.sites > 0 or cardinality($1::text[]) + cardinality($2::text[]) = 0)`, ids, beginnings, id)
	if err == nil && len(found) == 0 {
		return fleet.Command{}, protocol.Errorf(protocol.NotFound, "no command %q: colony command list shows which there are", id)
	}
	if err != nil {
		return fleet.Command{}, pgdb.Classify("read command", err)
	}
	c := found[0]
	c.Sites, err = pgdb.Rows(ctx, s.db, scanSite, `select s.site, s.nodes, s.selector, s.every, s.state, s.code, s.message, s.received_at, s.cancelled_at,
		s.meant, s.running, s.done, s.failed, s.refused, s.expired, s.unknown from command_sites s where s.command = $3 and `+db.InSet+` order by s.site`, ids, beginnings, id)
	return c, pgdb.Classify("read the sites of a command", err)
}

func scanSite(row pgx.CollectableRow) (s fleet.CommandSite, err error) {
	n := &s.Counts
	err = row.Scan(&s.Site, &s.Nodes, &s.Selector, &s.All, &s.State, &s.Code, &s.Message, &s.ReceivedAt, &s.CancelledAt,
		&n.Nodes, &n.Running, &n.Done, &n.Failed, &n.Refused, &n.Expired, &n.Unknown)
	return s, err
}

// Results returns a page of the results of a command that a filter picks, by site and node, and the cursor of the next
// page. A cursor that is none is of kind Invalid.
func (s *Store) Results(ctx context.Context, id command.ID, f fleet.ResultFilter, p fleet.Page) (list []fleet.CommandResult, next string, err error) {
	site, node := "", ""
	if p.Cursor != "" {
		var ok bool
		if site, node, ok = strings.Cut(p.Cursor, "/"); !ok {
			return nil, "", fleet.NotACursor(p.Cursor)
		}
	}
	ids, beginnings := db.Sets(f.Within)
	n := fleet.Size(p.Limit)
	list, err = pgdb.Rows(ctx, s.db, scanResult, `select s.command, s.site, s.node, s.state, s.code, s.message, s.output, s.cut, s.millis, s.rank, s.at from command_nodes s
		where s.command = $3 and (s.site, s.node) > ($4, $5) and ($6 = '' or s.site = $6) and ($7 = '' or s.state = $7) and `+db.InSet+`
		order by s.site, s.node limit $8`, ids, beginnings, id, site, node, f.Site, f.State, n+1)
	if err != nil {
		return nil, "", pgdb.Classify("list results of a command", err)
	}
	list, next = fleet.Cut(list, n, func(last fleet.CommandResult) string { return string(last.Site) + "/" + string(last.Node) })
	return list, next, nil
}

func scanResult(row pgx.CollectableRow) (r fleet.CommandResult, err error) {
	var millis int64
	var rank int
	err = row.Scan(&r.Command, &r.Site, &r.Node, &r.State, &r.Code, &r.Message, &r.Output, &r.Cut, &millis, &rank, &r.At)
	r.Duration, r.At, r.By = uint64(millis), r.At.UTC(), fleet.Maker(rank)
	return r, err
}

// Cancel cancels a command at its sites that a set has: what has not begun does not begin. It returns those where
// something could still come of it. The error is of kind Conflict where there is none.
func (s *Store) Cancel(ctx context.Context, id command.ID, within siteset.Set) (sites []protocol.SiteID, err error) {
	ids, beginnings := db.Sets(within)
	err = s.db.Tx(ctx, "cancel command", func(tx pgx.Tx) error {
		var err error
		if sites, err = pgdb.Rows(ctx, tx, pgx.RowTo[protocol.SiteID], `select s.site from command_sites s where s.command = $3 and `+open+` and `+db.InSet+` order by s.site`, ids, beginnings, id); err != nil {
			return err
		}
		if len(sites) == 0 {
			return protocol.Errorf(protocol.Conflict, "command %s has ended already: there is nothing to cancel", id)
		}
		if _, err = db.LockSites(ctx, tx, sites); err != nil {
			return err
		}
		// Of a site that has reported nothing, nothing may come for long.
		_, err = tx.Exec(ctx, `update command_sites s set cancelled_at = coalesce(cancelled_at, now()), given_up = (state = 'waiting'), cleared = false, changed_at = now()
			where command = $1 and site = any($2) and `+open, id, pgdb.Texts(sites))
		if err != nil {
			return err
		}
		return end(ctx, tx, []command.ID{id}, sites, fleet.CommandResult{State: command.Refused, Code: command.Cancelled, Message: "it was cancelled before its site reported anything"})
	})
	return sites, err
}

// end writes an end for the missing results of commands that were given up, of those of the sites. Where a node is known
// to run one, how far it came is unknown; other named nodes get result. The caller holds the locks of the sites.
func end(ctx context.Context, tx pgx.Tx, ids []command.ID, sites []protocol.SiteID, result fleet.CommandResult) error {
	result.By = fleet.ByCO
	unknown := fleet.CommandResult{State: command.Unknown, Message: "it had begun, and its site has reported nothing more", By: fleet.ByCO}
	list, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (fleet.CommandResult, error) {
		var id command.ID
		var site protocol.SiteID
		var node protocol.NodeID
		var began bool
		err := row.Scan(&id, &site, &node, &began)
		r := result
		if began {
			r = unknown
		}
		r.Command, r.Site, r.Node = id, site, node
		return r, err
	}, `select s.command, s.site, n.node, true from command_sites s join command_nodes n on n.command = s.command and n.site = s.site and n.state = 'running'
			where s.command = any($1) and s.site = any($2) and s.given_up
		union all select s.command, s.site, u.node, false from command_sites s cross join unnest(s.nodes) as u (node)
			where s.command = any($1) and s.site = any($2) and s.given_up and not exists (select from command_nodes n where n.command = s.command and n.site = s.site and n.node = u.node)
		order by 1, 2, 3`, pgdb.Texts(ids), pgdb.Texts(sites))
	if err != nil || len(list) == 0 {
		return err
	}
	b := &pgx.Batch{}
	db.QueueCommandResults(b, list)
	return tx.SendBatch(ctx, b).Close()
}

const (
	// grace is how long after its deadline a command is given up whose site has reported nothing, silence the same where
	// its site has it: results may wait at a site without WAN.
	grace   = time.Minute
	silence = command.MaxLifeMillis * time.Millisecond
	// giveUpAtOnce bounds the commands that one transaction gives up.
	giveUpAtOnce = 500
)

// GiveUp ends commands that are past their deadline, and of which their sites report nothing more: what is missing is
// expired, or unknown where it had begun. now is by the CO's clock. It returns whether there may be more.
func (s *Store) GiveUp(ctx context.Context, now time.Time) (more bool, err error) {
	type key struct {
		id   command.ID
		site protocol.SiteID
	}
	const due = `not given_up and state in ('waiting', 'running') and deadline < $1 and (state = 'waiting' or deadline < $2)`
	err = s.db.Tx(ctx, "give up commands", func(tx pgx.Tx) error {
		more = false
		// What was cancelled is kept from its site until its deadline.
		if _, err := tx.Exec(ctx, `update command_sites set changed_at = clock_timestamp() where not cleared and state = 'cancelled' and deadline < $1 and changed_at < deadline`, now); err != nil {
			return err
		}
		list, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (k key, err error) { return k, row.Scan(&k.id, &k.site) },
			`select command, site from command_sites where `+due+` order by deadline limit $3`, now.Add(-grace), now.Add(-silence), giveUpAtOnce)
		if err != nil || len(list) == 0 {
			return err
		}
		more = len(list) == giveUpAtOnce
		ids, sites := make([]command.ID, len(list)), make([]protocol.SiteID, len(list))
		for i, k := range list {
			ids[i], sites[i] = k.id, k.site
		}
		locked := slices.Compact(slices.Sorted(slices.Values(sites)))
		if _, err := db.LockSites(ctx, tx, locked); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update command_sites s set given_up = true, cleared = false, changed_at = now() from unnest($3::text[], $4::text[]) as u (command, site)
			where s.command = u.command and s.site = u.site and `+due, now.Add(-grace), now.Add(-silence), pgdb.Texts(ids), pgdb.Texts(sites)); err != nil {
			return err
		}
		return end(ctx, tx, ids, locked, fleet.CommandResult{State: command.Expired, Message: "its deadline passed, and its site reported nothing of it"})
	})
	return more, err
}

// Pending returns the commands of which the broker may have something, of a site, or of all where it is empty; only what
// changed since a time.
func (s *Store) Pending(ctx context.Context, site protocol.SiteID, since time.Time) ([]fleet.PendingCommand, error) {
	where := `s.changed_at >= $1`
	args := []any{since}
	if site != "" {
		where, args = `s.site = $1 and s.changed_at >= $2`, []any{site, since}
	}
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (p fleet.PendingCommand, err error) {
		var budget int64
		err = row.Scan(&p.Site, &p.Nodes, &p.Selector, &p.All, &p.ID, &p.Kind, &p.Encoded, &p.Actor, &p.CreatedAt, &p.Deadline, &budget, &p.State, &p.Cancelled, &p.ChangedAt)
		p.Budget = uint64(budget)
		return p, err
	}, `select s.site, s.nodes, s.selector, s.every, c.id, c.kind, c.args, c.actor, c.created_at, c.deadline, c.budget, s.state, s.cancelled_at is not null, s.changed_at
		from command_sites s join commands c on c.id = s.command where not s.cleared and `+where+` order by s.site, s.created_at, c.id`, args...)
	return list, pgdb.Classify("read commands to publish", err)
}

// Cleared records that the broker has nothing more of commands that have ended, as they were read: of one that changed since
// the site has to learn once again that it is not there any more.
func (s *Store) Cleared(ctx context.Context, list []fleet.PendingCommand) error {
	ids, sites, seen := make([]string, len(list)), make([]string, len(list)), make([]time.Time, len(list))
	for i := range list {
		ids[i], sites[i], seen[i] = string(list[i].ID), string(list[i].Site), list[i].ChangedAt
	}
	_, err := s.db.Exec(ctx, `update command_sites s set cleared = true from unnest($1::text[], $2::text[], $3::timestamptz[]) as u (command, site, seen)
		where s.command = u.command and s.site = u.site and s.changed_at = u.seen and s.state not in ('waiting', 'running')`, ids, sites, seen)
	return pgdb.Classify("record which commands are cleared", err)
}
