package identitydb

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// maxDecided bounds the decisions of a site that have not ended: they are one message to the site with its tokens.
const maxDecided = 1000

const (
	approved = "approved"
	rejected = "rejected"
)

// pending are the nodes of which their LOs have reported within three days that they wait, of a fleet.PendingFilter.
const pending = ` from pending_nodes p where decision = '' and last_at > now() - interval '3 days' and not exists (select from revoked_keys r where r.key = p.key)
	and ($1 = '' or site = $1) and starts_with(key, $2)
	and ($3 or site = any($4::text[]) or exists (select from unnest($5::text[]) as b where starts_with(site, b)))`

// Pending returns the first nodes without a join token that wait for a decision and that f selects, by site and
// name, and how many there are.
func (s *Store) Pending(ctx context.Context, f fleet.PendingFilter, limit int) (list []fleet.PendingNode, total int, err error) {
	picked := []any{f.Site, f.Key, f.Within.All(), f.Within.IDs(), f.Within.Beginnings()}
	if err := s.db.QueryRow(ctx, `select count(*)`+pending, picked...).Scan(&total); err != nil {
		return nil, 0, pgdb.Classify("count the nodes that wait to be approved", err)
	}
	list, err = pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (p fleet.PendingNode, err error) {
		return p, row.Scan(&p.Site, &p.Node, &p.Key, &p.Device, &p.Remote, &p.First, &p.Last, &p.Taken)
	}, `select site, node, key, device, remote, first_at, last_at, exists (select from machines m where m.name = p.node || '.' || p.site || $6 and m.key not in ('', p.key))`+
		pending+` order by site, node, key limit $7`, append(picked, ofEN, limit)...)
	return list, total, pgdb.Classify("list the nodes that wait to be approved", err)
}

// Decide records what is decided about a key: of a node that waits, or that has not come yet. The error is of
// kind NotFound where there is no such site, and Conflict where the key was revoked, is rejected and
// has enrolled, or too much is decided.
func (s *Store) Decide(ctx context.Context, d fleet.Decision) error {
	name := identity.OfNode(d.Site, d.Node)
	kind, decision := fleet.MachineRejected, rejected
	if d.Approved {
		kind, decision = fleet.MachineApproved, approved
	}
	return s.db.Tx(ctx, "decide about a node", func(tx pgx.Tx) error {
		var site protocol.SiteID
		err := tx.QueryRow(ctx, `select id from sites where id = $1 for no key update`, d.Site).Scan(&site)
		if errors.Is(err, pgx.ErrNoRows) {
			return protocol.Errorf(protocol.NotFound, "there is no site %s", d.Site)
		}
		if err != nil {
			return err
		}
		revoked, err := isRevoked(ctx, tx, d.Key)
		if err != nil {
			return err
		}
		if revoked && d.Approved {
			return protocol.Errorf(protocol.Conflict, "the key %.16s was revoked: remove the directory identity of the agent's state directory on %s, so that it makes another one", d.Key, name)
		}
		if !d.Approved {
			var enrolled bool
			if err := tx.QueryRow(ctx, `select exists (select from machines where name = $1 and key = $2)`, name.DNS(), d.Key).Scan(&enrolled); err != nil {
				return err
			}
			if enrolled {
				return protocol.Errorf(protocol.Conflict, "%s is enrolled with this key, and does not wait: colony node revoke %s/%s ends its certificates", name, d.Site, d.Node)
			}
		}
		var others int
		if err := tx.QueryRow(ctx, `select count(*) from pending_nodes where site = $1 and key <> $2 and decision <> '' and expires_at > now()`, d.Site, d.Key).Scan(&others); err != nil {
			return err
		}
		if others >= maxDecided {
			return protocol.Errorf(protocol.Conflict, "%d keys of site %s are approved or rejected, and have not enrolled: wait until some have, or until the decisions end", others, d.Site)
		}
		b := &pgx.Batch{}
		b.Queue(`insert into pending_nodes (site, key, node, decision, decided_at, decided_by, replace, expires_at) values ($1, $2, $3, $4, now(), $5, $6, $7)
			on conflict (site, key) do update set node = excluded.node, decision = excluded.decision, decided_at = excluded.decided_at, decided_by = excluded.decided_by,
				replace = excluded.replace, expires_at = excluded.expires_at`, d.Site, d.Key, d.Node, decision, d.By, d.Replace, d.Expires)
		message := fmt.Sprintf("the key %.16s of %s", d.Key, name.DNS())
		if d.Replace {
			message += ", which may take the place of another one"
		}
		if d.By != "" {
			message += ", by " + d.By
		}
		db.QueueEvents(b, []fleet.Event{{Kind: kind, Site: d.Site, Node: d.Node, Message: message}})
		return tx.SendBatch(ctx, b).Close()
	})
}

// decided returns, by site, the decisions that have not ended, sorted by key.
func (s *Store) decided(ctx context.Context) (map[protocol.SiteID][]protocol.DecidedKey, error) {
	rows, err := s.db.Query(ctx, `select site, key, node, decision = 'approved', replace, expires_at from pending_nodes where decision <> '' and expires_at > now() order by site, key`)
	if err != nil {
		return nil, pgdb.Classify("read what was decided about nodes", err)
	}
	out := map[protocol.SiteID][]protocol.DecidedKey{}
	var site protocol.SiteID
	var key string
	var d protocol.DecidedKey
	var expires time.Time
	_, err = pgx.ForEachRow(rows, []any{&site, &key, &d.Node, &d.Approved, &d.Replace, &expires}, func() (err error) {
		d.ExpiresMillis = expires.UnixMilli()
		if d.Key, err = hex.DecodeString(key); err == nil {
			out[site] = append(out[site], d)
		}
		return err
	})
	return out, pgdb.Classify("read what was decided about nodes", err)
}
