package identitydb

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// Revoke revokes the keys of a machine, and forgets it. The error is of kind NotFound where no machine
// of that name is known to be enrolled.
func (s *Store) Revoke(ctx context.Context, n identity.Name) (fleet.Revocation, error) {
	out := fleet.Revocation{Site: n.Site, Node: n.Node}
	err := s.db.Tx(ctx, "revoke a machine", func(tx pgx.Tx) error {
		var key string
		err := tx.QueryRow(ctx, `select key from machines where name = $1 and key <> '' for update`, n.DNS()).Scan(&key)
		if errors.Is(err, pgx.ErrNoRows) {
			return protocol.Errorf(protocol.NotFound, "no machine is known to be enrolled as %s: the CO knows of a node once its site has reported it, see the events", n)
		}
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		db.QueueRevoke(b, n.DNS(), "")
		b.Queue(`select max(not_after) from revoked_keys where name = $1`, n.DNS()).QueryRow(func(row pgx.Row) error { return row.Scan(&out.Until) })
		db.QueueEvents(b, []fleet.Event{{Kind: fleet.MachineRevoked, Site: n.Site, Node: n.Node, Message: fmt.Sprintf("the certificates of %s no longer count", n.DNS())}})
		return tx.SendBatch(ctx, b).Close()
	})
	return out, err
}

// RevokedKey returns a key that was revoked, by identity.KeyName; NotFound where it was not.
func (s *Store) RevokedKey(ctx context.Context, key string) (fleet.RevokedKey, error) {
	out := fleet.RevokedKey{Key: key}
	var name string
	err := s.db.QueryRow(ctx, `select site, name, authority, removed, revoked_at, not_after from revoked_keys where key = $1`, key).
		Scan(&out.Site, &name, &out.Authority, &out.Removed, &out.Revoked, &out.Until)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, protocol.Errorf(protocol.NotFound, "the key %.64s was not revoked", key)
	}
	if err != nil {
		return out, pgdb.Classify("read a revoked key", err)
	}
	n, err := identity.ParseName(name)
	if err != nil {
		return out, protocol.Errorf(protocol.Internal, "revoked key %s: %w", key, err)
	}
	out.Node = n.Node
	return out, nil
}

const pendingRevocations = ` from revocation_lists l join sites s on s.id = l.site where l.adopted <> l.number`

// PendingRevocations returns the first sites, by id, that do not go by their present lists of revoked keys, as
// far as they have reported, and how many there are.
func (s *Store) PendingRevocations(ctx context.Context, limit int) (list []fleet.PendingRevocation, total int, err error) {
	if err := s.db.QueryRow(ctx, `select count(*)`+pendingRevocations).Scan(&total); err != nil {
		return nil, 0, pgdb.Classify("count the lists of revoked keys that sites do not go by", err)
	}
	list, err = pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (p fleet.PendingRevocation, err error) {
		return p, row.Scan(&p.Site, &p.Number, &p.Made, &p.Adopted, &p.Online)
	}, `select l.site, l.number, l.made_at, l.adopted, s.online`+pendingRevocations+` order by l.site limit $1`, limit)
	return list, total, pgdb.Classify("list the lists of revoked keys that sites do not go by", err)
}

// isRevoked reports whether a key was revoked.
func isRevoked(ctx context.Context, tx pgx.Tx, key string) (revoked bool, err error) {
	err = tx.QueryRow(ctx, `select exists (select from revoked_keys where key = $1)`, key).Scan(&revoked)
	return revoked, err
}

// ofLO ends the name of an LO, after its site.
var ofLO = strings.TrimPrefix(identity.OfLO("s").DNS(), "s")

// ofEN ends the name of a node, after its site.
var ofEN = strings.TrimPrefix(identity.OfNode("s", "n").DNS(), "n.s")

// Revocations returns the list of each site that ever had one, in the order of the sites, after those
// keys were removed whose certificates have ended. A list that is not the one of before has a greater
// number, by the time: so it is greater also after the database was restored. above are the keys of LOs and
// of authorities, in hex: those that the CO itself may meet.
func (s *Store) Revocations(ctx context.Context) (lists []protocol.Revocations, above []string, err error) {
	if lists, err = s.revocations(ctx); err != nil {
		return nil, nil, err
	}
	above, err = pgdb.Rows(ctx, s.db, pgx.RowTo[string], `select key from revoked_keys where name = site || $1 order by key`, ofLO)
	return lists, above, pgdb.Classify("read the revoked keys of LOs", err)
}

// revocations reads the lists, and gives numbers to those that have changed, of which there are seldom any:
// only then others that do so have to wait.
func (s *Store) revocations(ctx context.Context) (lists []protocol.Revocations, err error) {
	changed := false
	read := func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `delete from revoked_keys where not_after < now()`); err != nil {
			return err
		}
		// Of more than a list has room for, those of LOs and authorities stay, and of nodes those that were revoked last.
		rows, err := tx.Query(ctx, `select s.site, k.key, k.not_after from (select site from revocation_lists union select site from revoked_keys) s
			left join lateral (select key, not_after from revoked_keys where site = s.site order by name = site || $2 desc, revoked_at desc, key limit $1) k on true order by s.site, k.key`, protocol.MaxRevoked, ofLO)
		if err != nil {
			return err
		}
		lists, err = readLists(rows)
		return err
	}
	err = s.db.Tx(ctx, "read revoked keys", func(tx pgx.Tx) error {
		err := read(ctx, tx)
		if err == nil {
			var next *pgx.Batch
			next, err = number(ctx, tx, lists)
			changed = err == nil && next.Len() > 0
		}
		return err
	})
	if err != nil || !changed {
		return lists, err
	}
	err = s.db.Tx(ctx, "number lists of revoked keys", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `lock table revocation_lists in share row exclusive mode`); err != nil {
			return err
		}
		if err := read(ctx, tx); err != nil {
			return err
		}
		next, err := number(ctx, tx, lists)
		if err != nil {
			return err
		}
		return tx.SendBatch(ctx, next).Close()
	})
	return lists, err
}

// number gives lists the numbers on record. The batch makes those of the lists that are not on record as they are.
func number(ctx context.Context, tx pgx.Tx, lists []protocol.Revocations) (*pgx.Batch, error) {
	type record struct {
		number uint64
		digest string
	}
	known := map[protocol.SiteID]record{}
	var site protocol.SiteID
	var r record
	rows, err := tx.Query(ctx, `select site, number, digest from revocation_lists`)
	if err != nil {
		return nil, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&site, &r.number, &r.digest}, func() error {
		known[site] = r
		return nil
	}); err != nil {
		return nil, err
	}
	b := &pgx.Batch{}
	for i := range lists {
		m := &lists[i]
		digest := string(protocol.DigestOf(protocol.Marshal(m))) // without its number
		if old, ok := known[m.Site]; ok && old.digest == digest {
			m.Number = old.number
			continue
		}
		b.Queue(`insert into revocation_lists as l (site, number, digest) values ($1, (extract(epoch from now()) * 1000)::bigint, $2)
			on conflict (site) do update set digest = excluded.digest, made_at = excluded.made_at, number = greatest(l.number + 1, excluded.number)
			returning number`, m.Site, digest).QueryRow(func(row pgx.Row) error { return row.Scan(&m.Number) })
	}
	return b, nil
}

// readLists makes lists without numbers of rows of site, key and end, sorted by the first two; a row
// without a key is of a list that is empty.
func readLists(rows pgx.Rows) (lists []protocol.Revocations, err error) {
	defer rows.Close()
	for rows.Next() {
		var site protocol.SiteID
		var key *string
		var end *time.Time
		if err := rows.Scan(&site, &key, &end); err != nil {
			return nil, err
		}
		if len(lists) == 0 || lists[len(lists)-1].Site != site {
			lists = append(lists, protocol.Revocations{V: protocol.Version, Site: site})
		}
		if key == nil {
			continue
		}
		raw, err := hex.DecodeString(*key)
		if err != nil {
			return nil, protocol.Errorf(protocol.Internal, "revoked key %.80q of site %s: %w", *key, site, err)
		}
		m := &lists[len(lists)-1]
		m.Keys = append(m.Keys, protocol.RevokedKey{Key: raw, EndMillis: end.UnixMilli()})
	}
	return lists, rows.Err()
}

// revokedNodes returns, by site, the nodes whose keys were revoked after one of the site's tokens was made that have not
// ended, with when that was: those tokens do not open these names.
func (s *Store) revokedNodes(ctx context.Context) (map[protocol.SiteID][]protocol.RevokedNode, error) {
	rows, err := s.db.Query(ctx, `select k.site, k.name, max(k.revoked_at) from revoked_keys k
		join (select site, min(created_at) as first from join_tokens where kind = 'en' and expires_at > now() group by site) t on t.site = k.site
		where not k.authority and k.revoked_at >= t.first group by k.site, k.name order by k.site, k.name`)
	if err != nil {
		return nil, pgdb.Classify("read nodes that were revoked", err)
	}
	out := map[protocol.SiteID][]protocol.RevokedNode{}
	var site protocol.SiteID
	var name string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&site, &name, &at}, func() error {
		if n, err := identity.ParseName(name); err == nil && n.Tier == identity.EN {
			out[site] = append(out[site], protocol.RevokedNode{Node: n.Node, AtMillis: at.UnixMilli()})
		}
		return nil
	})
	return out, pgdb.Classify("read nodes that were revoked", err)
}

// FormerNodes returns, by site, the nodes whose last certificate may be by an authority of the site
// that was revoked since: the present LO knows them only by what is recorded here.
func (s *Store) FormerNodes(ctx context.Context) (map[protocol.SiteID][]protocol.EnrolledNode, error) {
	rows, err := s.db.Query(ctx, `select m.site, m.name, m.key from machines m
		join (select site, max(revoked_at) as at from revoked_keys where authority group by site) r on r.site = m.site
		where m.issued_at <= r.at and m.key <> '' order by m.site, m.name`)
	if err != nil {
		return nil, pgdb.Classify("read nodes of former authorities", err)
	}
	defer rows.Close()
	out := map[protocol.SiteID][]protocol.EnrolledNode{}
	for rows.Next() {
		var site protocol.SiteID
		var name, key string
		if err := rows.Scan(&site, &name, &key); err != nil {
			return nil, pgdb.Classify("read nodes of former authorities", err)
		}
		n, err := identity.ParseName(name)
		raw, badKey := hex.DecodeString(key)
		if err == nil && badKey == nil && n.Tier == identity.EN {
			out[site] = append(out[site], protocol.EnrolledNode{Node: n.Node, Key: raw})
		}
	}
	return out, pgdb.Classify("read nodes of former authorities", rows.Err())
}
