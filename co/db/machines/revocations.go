package machinedb

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

// isRevoked reports whether a key was revoked.
func isRevoked(ctx context.Context, tx pgx.Tx, key string) (revoked bool, err error) {
	err = tx.QueryRow(ctx, `select exists (select from revoked_keys where key = $1)`, key).Scan(&revoked)
	return revoked, err
}

// ofLO ends the name of an LO, after its site.
var ofLO = strings.TrimPrefix(identity.OfLO("s").DNS(), "s")

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

func (s *Store) revocations(ctx context.Context) (lists []protocol.Revocations, err error) {
	err = s.db.Tx(ctx, "read revoked keys", func(tx pgx.Tx) error {
		lists = nil
		if _, err := tx.Exec(ctx, `lock table revocation_lists in share row exclusive mode`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `delete from revoked_keys where not_after < now()`); err != nil {
			return err
		}
		// Of more than a list has room for, those of LOs and authorities stay, and of nodes those that were revoked last.
		rows, err := tx.Query(ctx, `select s.site, k.key, k.not_after from (select site from revocation_lists union select site from revoked_keys) s
			left join lateral (select key, not_after from revoked_keys where site = s.site order by name = site || $2 desc, revoked_at desc, key limit $1) k on true order by s.site, k.key`, protocol.MaxRevoked, ofLO)
		if err != nil {
			return err
		}
		if lists, err = readLists(rows); err != nil {
			return err
		}
		for i := range lists {
			m := &lists[i]
			digest := protocol.DigestOf(protocol.Marshal(m)) // without its number
			err := tx.QueryRow(ctx, `insert into revocation_lists as l (site, number, digest) values ($1, (extract(epoch from now()) * 1000)::bigint, $2)
				on conflict (site) do update set digest = excluded.digest,
					number = case when l.digest = excluded.digest then l.number else greatest(l.number + 1, excluded.number) end
				returning number`, m.Site, string(digest)).Scan(&m.Number)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return lists, err
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
