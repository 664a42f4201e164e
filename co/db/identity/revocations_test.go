package identitydb_test

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	identitydb "github.com/colonyfleet/colony/co/db/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

func key(of string) string {
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:])
}

// lists returns the keys of each list in hex, and its number, by site.
func lists(t *testing.T, s *identitydb.Store) (keys map[protocol.SiteID][]string, numbers map[protocol.SiteID]uint64) {
	t.Helper()
	all, _, err := s.Revocations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys, numbers = map[protocol.SiteID][]string{}, map[protocol.SiteID]uint64{}
	for _, m := range all {
		keys[m.Site], numbers[m.Site] = []string{}, m.Number
		for _, k := range m.Keys {
			keys[m.Site] = append(keys[m.Site], hex.EncodeToString(k.Key))
		}
	}
	return keys, numbers
}

func exec(t *testing.T, pool *db.DB, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// authority returns the certificate of a site's authority.
func authority(t *testing.T, site protocol.SiteID) *x509.Certificate {
	t.Helper()
	cert, err := identitytest.Root(t, time.Now()).IssueSite(site, identitytest.Key(t).Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// TestRevoke revokes the LO of a site: its key and that of its authority are on the list of the site
// until their certificates have ended, with numbers that only grow, and it gets nothing any more.
func TestRevoke(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	for _, id := range []string{"a", "b", "c"} {
		add(t, s, fleet.JoinToken{ID: id, Site: "plant1", Replace: true})
	}
	if got, _ := lists(t, s); len(got) != 0 {
		t.Errorf("lists %v before anything was revoked", got)
	}
	if _, err := s.Revoke(t.Context(), identity.OfLO("plant1")); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("a machine that is not enrolled: %v", err)
	}
	if err := s.Admit(t.Context(), claim("a", "plant1", key("lo1"))); err != nil {
		t.Fatal(err)
	}
	issuer := authority(t, "plant1")
	if err := s.Issued(t.Context(), identity.OfLO("plant1"), issuer); err != nil {
		t.Fatal(err)
	}
	out, err := s.Revoke(t.Context(), identity.OfLO("plant1"))
	if err != nil || out.Site != "plant1" || out.Until.Before(issuer.NotAfter) {
		t.Errorf("revoked: %+v, %v, want until after %s", out, err, issuer.NotAfter)
	}
	if last := events(t, pool); last[len(last)-1] != "machine_revoked the certificates of plant1.lo.colony.internal no longer count" {
		t.Errorf("events %q", last)
	}
	want := []string{key("lo1"), identity.KeyName(issuer)}
	slices.Sort(want)
	got, first := lists(t, s)
	if !slices.Equal(got["plant1"], want) || first["plant1"] == 0 {
		t.Errorf("list %v number %v, want %v", got, first, want)
	}
	if _, again := lists(t, s); again["plant1"] != first["plant1"] {
		t.Errorf("the same list has the numbers %v and %v", first, again)
	}
	if err := s.Renewed(t.Context(), identity.Peer{Name: identity.OfLO("plant1"), Key: key("lo1")}); identity.CodeOf(err) != identity.NotEnrolled {
		t.Errorf("its renewal: %v", err)
	}
	if err := s.Admit(t.Context(), claim("b", "plant1", key("lo1"))); identity.CodeOf(err) != identity.Revoked {
		t.Errorf("its key with a new token: %v", err)
	}
	if err := s.Admit(t.Context(), claim("b", "plant1", key("lo2"))); err != nil {
		t.Errorf("its successor: %v", err)
	}
	if err := s.Issued(t.Context(), identity.OfLO("plant1"), issuer); identity.CodeOf(err) != identity.Revoked {
		t.Errorf("the former authority of the successor: %v", err)
	}
	// Replaced by a third, without a word of revocation: it is on the list as well. The number grows
	// also where the one on record is ahead of the time.
	exec(t, pool, `update revocation_lists set number = number + 1000000000`)
	if err := s.Admit(t.Context(), claim("c", "plant1", key("lo3"))); err != nil {
		t.Fatal(err)
	}
	got, third := lists(t, s)
	if len(got["plant1"]) != 3 || !slices.Contains(got["plant1"], key("lo2")) || third["plant1"] != first["plant1"]+1000000001 {
		t.Errorf("list %v number %v after %v", got, third, first)
	}
	exec(t, pool, `update revoked_keys set not_after = now() - interval '1 s'`)
	if got, last := lists(t, s); len(got["plant1"]) != 0 || got["plant1"] == nil || last["plant1"] <= third["plant1"] {
		t.Errorf("after the end of all: list %v number %v", got, last)
	}
}

// TestFormerNodes checks that a new LO learns the keys of the nodes that the former one had enrolled,
// until they have certificates of the new one.
func TestFormerNodes(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	add(t, s, fleet.JoinToken{ID: "a", Site: "plant1"})
	if err := s.Admit(t.Context(), claim("a", "plant1", key("lo1"))); err != nil {
		t.Fatal(err)
	}
	if err := s.Issued(t.Context(), identity.OfLO("plant1"), authority(t, "plant1")); err != nil {
		t.Fatal(err)
	}
	for _, n := range []protocol.NodeID{"g1", "g2"} {
		exec(t, pool, `insert into machines (name, site, key, token) values ($1, 'plant1', $2, '')`, identity.OfNode("plant1", n).DNS(), key(string(n)))
	}
	former := func() []protocol.EnrolledNode {
		t.Helper()
		all, err := s.FormerNodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all["plant1"]
	}
	if got := former(); len(got) != 0 {
		t.Errorf("%v, and nothing was revoked", got)
	}
	if _, err := s.Revoke(t.Context(), identity.OfLO("plant1")); err != nil {
		t.Fatal(err)
	}
	if got := former(); len(got) != 2 || got[0].Node != "g1" || hex.EncodeToString(got[0].Key) != key("g1") {
		t.Errorf("after the revocation: %v", got)
	}
	exec(t, pool, `update machines set issued_at = now() where name like 'g1.%'`)
	if got := former(); len(got) != 1 || got[0].Node != "g2" {
		t.Errorf("after g1 has another certificate: %v", got)
	}
}

// TestWhoIsRevokedFirst checks that an LO and its authority are on the list of their site, and are all that the
// CO itself goes by, however many nodes were revoked; and that a revocation lasts for a year.
func TestWhoIsRevokedFirst(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	add(t, s, fleet.JoinToken{ID: "a", Site: "plant1"})
	if err := s.Admit(t.Context(), claim("a", "plant1", key("lo1"))); err != nil {
		t.Fatal(err)
	}
	issuer := authority(t, "plant1")
	if err := s.Issued(t.Context(), identity.OfLO("plant1"), issuer); err != nil {
		t.Fatal(err)
	}
	if err := s.Issued(t.Context(), identity.OfLO("plant1"), authority(t, "plant1")); identity.CodeOf(err) != identity.NotEnrolled {
		t.Errorf("another key of the authority: %v", err)
	}
	out, err := s.Revoke(t.Context(), identity.OfLO("plant1"))
	if err != nil || time.Until(out.Until) < 365*24*time.Hour {
		t.Errorf("revoked %+v, %v: want a year at least", out, err)
	}
	exec(t, pool, `insert into revoked_keys (key, site, name, revoked_at, not_after) select encode(sha256(n::text::bytea), 'hex'), 'plant1', n || '.plant1.en.colony.internal',
		now() + interval '1 h', '9999-01-01' from generate_series(1, $1) n`, protocol.MaxRevoked+1)
	got, above, err := s.Revocations(t.Context())
	if err != nil || len(got) != 1 || len(got[0].Keys) != protocol.MaxRevoked {
		t.Fatalf("%d lists, %v; want one that is full", len(got), err)
	}
	want := []string{key("lo1"), identity.KeyName(issuer)}
	slices.Sort(want)
	if !slices.Equal(above, want) {
		t.Errorf("the CO goes by %q, want %q", above, want)
	}
	for _, k := range want {
		if !slices.ContainsFunc(got[0].Keys, func(r protocol.RevokedKey) bool { return hex.EncodeToString(r.Key) == k }) {
			t.Errorf("the list of the site is without %s", k)
		}
	}
}

// TestRevokedKey reads back what was revoked and what was removed.
func TestRevokedKey(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	add(t, s, fleet.JoinToken{ID: "a", Site: "plant1"})
	if err := s.Admit(t.Context(), claim("a", "plant1", key("lo1"))); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `insert into machines (name, site, key, token) values ($1, 'plant1', $2, '')`, identity.OfNode("plant1", "g1").DNS(), key("g1"))
	if _, err := s.RevokedKey(t.Context(), key("lo1")); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("a key that was not revoked: %v", err)
	}
	if _, err := s.Revoke(t.Context(), identity.OfLO("plant1")); err != nil {
		t.Fatal(err)
	}
	err := pool.Tx(t.Context(), "remove a node", func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		db.QueueRevokeRemoved(b, identity.OfNode("plant1", "g1").DNS())
		return tx.SendBatch(t.Context(), b).Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	for of, want := range map[string]fleet.RevokedKey{"lo1": {Site: "plant1"}, "g1": {Site: "plant1", Node: "g1", Removed: true}} {
		got, err := s.RevokedKey(t.Context(), key(of))
		if err != nil || got.Revoked.IsZero() || !got.Until.After(time.Now().Add(300*24*time.Hour)) {
			t.Errorf("%s: %+v, %v", of, got, err)
		}
		want.Key, want.Revoked, want.Until = key(of), got.Revoked, got.Until
		if got != want {
			t.Errorf("%s: %+v, want %+v", of, got, want)
		}
	}
}

// TestPendingRevocations lists a site until it goes by its list, and writes no list that has not changed.
func TestPendingRevocations(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	for _, site := range []protocol.SiteID{"plant1", "plant2"} {
		id := "t" + string(site)
		add(t, s, fleet.JoinToken{ID: id, Site: site})
		if err := s.Admit(t.Context(), claim(id, string(site), key(id))); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Revoke(t.Context(), identity.OfLO(site)); err != nil {
			t.Fatal(err)
		}
	}
	_, numbers := lists(t, s)
	pending := func(limit int, want ...protocol.SiteID) []fleet.PendingRevocation {
		t.Helper()
		list, total, err := s.PendingRevocations(t.Context(), limit)
		if err != nil || total != len(want) {
			t.Fatalf("%d sites (%v), want %v", total, err, want)
		}
		for i, p := range list {
			if p.Site != want[i] || p.Number != numbers[p.Site] || p.Adopted != 0 || p.Online || p.Made.IsZero() {
				t.Errorf("%+v, want site %s with list %d", p, want[i], numbers[want[i]])
			}
		}
		return list
	}
	if got := pending(1, "plant1", "plant2"); len(got) != 1 {
		t.Errorf("limit 1: %v", got)
	}
	exec(t, pool, `update revocation_lists set adopted = number where site = 'plant1'`)
	pending(10, "plant2")
	rows := func() (list []string) {
		t.Helper()
		list, err := pgdb.Rows(t.Context(), pool, pgx.RowTo[string], `select site || ' ' || xmin from revocation_lists order by site`)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	before := rows()
	lists(t, s)
	if got := rows(); !slices.Equal(got, before) {
		t.Errorf("lists were written that have not changed: %v, before %v", got, before)
	}
}

// TestTokenOfBefore has tokens that were made before a key was revoked not open its name, but for one that lets a
// single successor take its place; and tells sites which names of nodes that are.
func TestTokenOfBefore(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	add(t, s, fleet.JoinToken{ID: "first", Site: "plant1"})
	add(t, s, fleet.JoinToken{ID: "old", Site: "plant1", Uses: 2})
	add(t, s, fleet.JoinToken{ID: "single", Site: "plant1", Replace: true})
	admit := func(what, token, k string, want identity.Code) {
		t.Helper()
		if err := s.Admit(t.Context(), claim(token, "plant1", key(k))); (err == nil) != (want == "") || err != nil && identity.CodeOf(err) != want {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	revoke := func() {
		t.Helper()
		if _, err := s.Revoke(t.Context(), identity.OfLO("plant1")); err != nil {
			t.Fatal(err)
		}
	}
	admit("the first", "first", "lo1", "")
	revoke()
	admit("a token of before", "old", "lo2", identity.Revoked)
	admit("a token of before that replaces, for one use", "single", "lo3", "")
	revoke()
	add(t, s, fleet.JoinToken{ID: "new", Site: "plant1"})
	admit("a token of after", "new", "lo4", "")

	revoked := func() []protocol.RevokedNode {
		t.Helper()
		all, err := s.NodeTokens(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all["plant1"].Revoked
	}
	exec(t, pool, `insert into machines (name, site, key, token) values ($1, 'plant1', $2, '')`, identity.OfNode("plant1", "g1").DNS(), key("g1"))
	add(t, s, fleet.JoinToken{ID: "nodes", Site: "plant1", Tier: identity.EN, Uses: 9})
	if got := revoked(); len(got) != 0 {
		t.Errorf("before a node is revoked: %v", got)
	}
	if _, err := s.Revoke(t.Context(), identity.OfNode("plant1", "g1")); err != nil {
		t.Fatal(err)
	}
	all, err := s.NodeTokens(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := all["plant1"]; len(got.Revoked) != 1 || got.Revoked[0].Node != "g1" || len(got.Tokens) != 1 || got.Tokens[0].MadeMillis > got.Revoked[0].AtMillis || got.Tokens[0].MadeMillis == 0 {
		t.Errorf("after it was: %+v, want g1, not before the token", got)
	}
	exec(t, pool, `update join_tokens set expires_at = now() where id = 'nodes'`)
	add(t, s, fleet.JoinToken{ID: "later", Site: "plant1", Tier: identity.EN})
	if got := revoked(); len(got) != 0 {
		t.Errorf("with tokens of after alone: %v", got)
	}
}
