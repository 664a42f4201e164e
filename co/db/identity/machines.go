// Package identitydb is the CO's record of join tokens and of the machines that were enrolled
// with them. Errors are of the protocol's kinds, or refusals of package identity.
package identitydb

import (
	"cmp"
	"context"
	"crypto/x509"
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

// A Store is the record. Its methods may be called concurrently.
type Store struct {
	db      *db.DB
	refused identity.Tally
}

// New returns the record in a database, which stays the caller's to close.
func New(pool *db.DB) *Store { return &Store{db: pool} }

// kinds are the tiers that a token can be for.
var kinds = map[identity.Tier]string{identity.LO: "lo", identity.EN: "en"}

// keepTokens is how long a token is kept after its end, so that its user reads why it is refused.
const keepTokens = `30 days`

// AddToken records a token, and its site where there is none of that name. Tokens that ended
// long ago are removed.
func (s *Store) AddToken(ctx context.Context, t fleet.JoinToken) error {
	return s.db.Tx(ctx, "add join token", func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`delete from join_tokens where expires_at < now() - interval '` + keepTokens + `'`)
		b.Queue(`insert into sites (id) values ($1) on conflict do nothing`, t.Site)
		b.Queue(`insert into join_tokens (id, site, kind, secret, uses, replace, expires_at) values ($1, $2, $3, $4, $5, $6, $7)`,
			t.ID, t.Site, kinds[t.Tier], t.Secret, t.Uses, t.Replace, t.Expires)
		return tx.SendBatch(ctx, b).Close()
	})
}

// NodeTokens returns the tokens of nodes that have not ended, the names that they do not open, FormerNodes, and what was decided about keys, by site; all sites that
// have any token are in it.
func (s *Store) NodeTokens(ctx context.Context) (map[protocol.SiteID]protocol.SiteTokens, error) {
	rows, err := s.db.Query(ctx, `select site, id, secret, uses, expires_at, created_at, replace, kind = 'en' and expires_at > now() from join_tokens order by id`)
	if err != nil {
		return nil, pgdb.Classify("read join tokens", err)
	}
	defer rows.Close()
	out := map[protocol.SiteID]protocol.SiteTokens{}
	for rows.Next() {
		var site protocol.SiteID
		var t protocol.NodeToken
		var expires, made time.Time
		var counts bool
		if err := rows.Scan(&site, &t.ID, &t.Secret, &t.Uses, &expires, &made, &t.Replace, &counts); err != nil {
			return nil, pgdb.Classify("read join tokens", err)
		}
		t.ExpiresMillis, t.MadeMillis = expires.UnixMilli(), made.UnixMilli()
		m := out[site]
		if counts {
			m.Tokens = append(m.Tokens, t)
		}
		out[site] = m
	}
	if err := rows.Err(); err != nil {
		return nil, pgdb.Classify("read join tokens", err)
	}
	former, err := s.FormerNodes(ctx)
	for site, nodes := range former {
		m := out[site]
		m.Nodes = nodes
		out[site] = m
	}
	if err != nil {
		return nil, err
	}
	revoked, err := s.revokedNodes(ctx)
	for site, nodes := range revoked {
		m := out[site]
		m.Revoked = nodes
		out[site] = m
	}
	if err != nil {
		return nil, err
	}
	decided, err := s.decided(ctx)
	for site, keys := range decided {
		m := out[site]
		m.Decided = keys
		out[site] = m
	}
	return out, err
}

// A token is a row of join_tokens with what the database knows of its time.
type token struct {
	site          protocol.SiteID
	kind          string
	secret        []byte
	uses, used    int
	replace, late bool
	// older says that the key of the machine was revoked after the token was made.
	older bool
}

// Admit implements identity's rules for a claim at time now: the token's secret, site, kind, time and
// uses, and that no machine with another key has the name. It records the machine and the use of the
// token. A claim that was admitted before, by token and key, is admitted again and uses nothing.
//
// The refusal of a machine that has proved something is an event, once an hour for each machine and
// code.
func (s *Store) Admit(ctx context.Context, c identity.Claim) error {
	var refusal *identity.Refusal
	err := s.db.Tx(ctx, "enrol a machine", func(tx pgx.Tx) error {
		var err error
		if refusal, err = admit(ctx, tx, c); err != nil || refusal != nil {
			return err
		}
		return db.WriteEvents(ctx, tx, []fleet.Event{{
			Kind: fleet.MachineEnrolled, Site: c.Name.Site, Node: c.Name.Node, Message: fmt.Sprintf("%s with join token %s, from %s", c.Name.DNS(), c.Token, c.Remote),
		}})
	})
	if err != nil || refusal == nil {
		return err
	}
	if !refusal.Code.Proved() {
		return refusal
	}
	text, report := s.refused.Add(c.Name.DNS()+" "+string(refusal.Code), refusal.Error(), time.Now())
	if !report {
		return refusal
	}
	err = s.db.Tx(ctx, "record that a machine was refused", func(tx pgx.Tx) error {
		return db.WriteEvents(ctx, tx, []fleet.Event{{
			Kind: fleet.MachineRefused, Site: c.Name.Site, Node: c.Name.Node, Message: fmt.Sprintf("%s, from %s: %s", c.Name.DNS(), c.Remote, text),
		}})
	})
	if err != nil {
		return err
	}
	return refusal
}

func admit(ctx context.Context, tx pgx.Tx, c identity.Claim) (*identity.Refusal, error) {
	var t token
	err := tx.QueryRow(ctx, `select site, kind, secret, uses, used, replace, expires_at <= now(),
			exists (select from revoked_keys r where r.name = $2 and r.revoked_at >= t.created_at) from join_tokens t where id = $1 for update`, c.Token, c.Name.DNS()).
		Scan(&t.site, &t.kind, &t.secret, &t.uses, &t.used, &t.replace, &t.late, &t.older)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && !identity.SecretMatches(t.secret, c.Secret):
		return identity.Refuse(identity.TokenUnknown, "there is no such join token: make one with colony site add"), nil
	case err != nil:
		return nil, err
	case t.site != c.Name.Site || t.kind != kinds[c.Name.Tier]:
		return identity.Refuse(identity.WrongSite, "join token %s is not for %s, but for site %s (%s)", c.Token, c.Name, t.site, t.kind), nil
	}
	// Two machines with one name take turns: each has a row to lock.
	var key, by string
	err = tx.QueryRow(ctx, `insert into machines (name, site, key, token) values ($1, $2, '', '')
		on conflict (name) do update set name = excluded.name returning key, token`, c.Name.DNS(), c.Name.Site).Scan(&key, &by)
	if err != nil {
		return nil, err
	}
	refuse := func(code identity.Code, format string, args ...any) (*identity.Refusal, error) {
		if key == "" {
			if _, err := tx.Exec(ctx, `delete from machines where name = $1`, c.Name.DNS()); err != nil {
				return nil, err
			}
		}
		return identity.Refuse(code, format, args...), nil
	}
	revoked, err := isRevoked(ctx, tx, c.Key)
	if err != nil {
		return nil, err
	}
	switch {
	case revoked:
		return refuse(identity.Revoked, "the key of this machine was revoked: remove the directory identity of its state directory, so that it makes another one, and give it a new join token")
	case key == c.Key && by == c.Token:
		return nil, nil
	case t.late:
		return refuse(identity.TokenExpired, "the time of join token %s is over: make a new one", c.Token)
	case t.used >= t.uses:
		return refuse(identity.TokenExhausted, "join token %s was used %d times: make a new one", c.Token, t.used)
	case key != "" && key != c.Key && !t.replace:
		return refuse(identity.NameTaken, "another machine is enrolled as %s: give this one another name, or make a token with --replace if it takes the place of that one", c.Name)
	case t.older && !(t.replace && t.uses == 1):
		return refuse(identity.Revoked, "the key of %s was revoked after join token %s was made, which the machine with that key may have: make a new one with colony site add %s", c.Name, c.Token, t.site)
	}
	b := &pgx.Batch{}
	b.Queue(`update join_tokens set used = used + 1 where id = $1`, c.Token)
	if key != "" {
		db.QueueRevoke(b, c.Name.DNS(), c.Key)
	}
	b.Queue(`insert into machines (name, site, key, token) values ($1, $2, $3, $4) on conflict (name) do update
		set key = excluded.key, token = excluded.token, authority = '', enrolled_at = now(), issued_at = now()`, c.Name.DNS(), c.Name.Site, c.Key, c.Token)
	return nil, tx.SendBatch(ctx, b).Close()
}

// Renewed decides whether a machine that proved its key may have a new certificate: it is
// enrolled, with this key.
func (s *Store) Renewed(ctx context.Context, p identity.Peer) error {
	var key string
	err := s.db.QueryRow(ctx, `select key from machines where name = $1`, p.Name.DNS()).Scan(&key)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && key != p.Key {
		return identity.Refuse(identity.NotEnrolled, "%s is not enrolled with this key: it was removed, or another machine has taken its place; enrol it with a new join token", p.Name)
	}
	return pgdb.Classify("renew a certificate", err)
}

// Issued records the last certificate of a machine, or refuses it where the machine was removed
// or replaced meanwhile.
func (s *Store) Issued(ctx context.Context, n identity.Name, c *x509.Certificate) error {
	if c.IsCA {
		return s.issuedAuthority(ctx, n, c)
	}
	done, err := s.db.Exec(ctx, `update machines set serial = $2, not_after = greatest(not_after, $3), issued_at = now() where name = $1 and key = $4`, n.DNS(), identity.SerialOf(c), c.NotAfter, identity.KeyName(c))
	if err == nil && done.RowsAffected() == 0 {
		return identity.Refuse(identity.NotEnrolled, "%s is not enrolled with this key any more: it was removed, or another machine has just taken its place; enrol it with a new join token", n)
	}
	return pgdb.Classify("record a certificate", err)
}

// issuedAuthority records the certificate of a site's authority. A key that was revoked gets none.
func (s *Store) issuedAuthority(ctx context.Context, n identity.Name, c *x509.Certificate) error {
	return s.db.Tx(ctx, "record the authority of a site", func(tx pgx.Tx) error {
		if revoked, err := isRevoked(ctx, tx, identity.KeyName(c)); err != nil || revoked {
			return cmp.Or(err, error(identity.Refuse(identity.Revoked, "the key of the authority of site %s was revoked: remove the directory identity of the state directory of this LO, so that it makes another one, and give it a new join token", n.Site)))
		}
		// A thief of the LO's key could have an authority of his own certified, which would never be
		// revoked.
		done, err := tx.Exec(ctx, `update machines set authority = $2, authority_not_after = greatest(authority_not_after, $3) where name = $1 and authority in ('', $2)`, n.DNS(), identity.KeyName(c), c.NotAfter)
		if err == nil && done.RowsAffected() == 0 {
			return identity.Refuse(identity.NotEnrolled, "the authority of site %s was enrolled with another key: where that is lost, make a join token with colony site add %s, and write it to the file of identity.tokenFile of this LO", n.Site, n.Site)
		}
		return err
	})
}
