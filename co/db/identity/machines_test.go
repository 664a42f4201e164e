package identitydb_test

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/db"
	identitydb "github.com/colonyfleet/colony/co/db/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T) (*identitydb.Store, *db.DB) {
	t.Helper()
	pool, err := db.Open(t.Context(), pgtest.New(t), db.Options{MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return identitydb.New(pool), pool
}

// secret is that of all tokens of these tests.
var secret = []byte("0123456789abcdef")

func add(t *testing.T, s *identitydb.Store, j fleet.JoinToken) {
	t.Helper()
	j.Secret = identity.HashSecret(secret)
	if j.Tier == 0 {
		j.Tier = identity.LO
	}
	if j.Uses == 0 {
		j.Uses = 1
	}
	if j.Expires.IsZero() {
		j.Expires = time.Now().Add(time.Hour)
	}
	if err := s.AddToken(t.Context(), j); err != nil {
		t.Fatal(err)
	}
}

func claim(token, site, key string) identity.Claim {
	return identity.Claim{Token: token, Secret: secret, Name: identity.OfLO(protocol.SiteID(site)), Key: key, Remote: "192.0.2.1:5"}
}

// events returns the kinds and messages of the events that were written, in their order.
func events(t *testing.T, pool *db.DB) (list []string) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `select k || ' ' || m from event_outbox o, unnest(o.kind, o.message) with ordinality as u (k, m, n) order by o.number, n`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	return list
}

// TestAdmit goes through everything that can be wrong with a claim, in one record.
func TestAdmit(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	add(t, s, fleet.JoinToken{ID: "a", Site: "plant1"})
	add(t, s, fleet.JoinToken{ID: "twice", Site: "plant2", Uses: 2})
	add(t, s, fleet.JoinToken{ID: "late", Site: "plant3", Expires: time.Now().Add(-time.Minute)})
	add(t, s, fleet.JoinToken{ID: "node", Site: "plant1", Tier: identity.EN})
	add(t, s, fleet.JoinToken{ID: "second", Site: "plant1"})
	add(t, s, fleet.JoinToken{ID: "instead", Site: "plant1", Replace: true})
	add(t, s, fleet.JoinToken{ID: "back", Site: "plant1", Replace: true})
	wrong := claim("a", "plant1", "k1")
	wrong.Secret = []byte("another 16 bytes")
	for _, c := range []struct {
		what  string
		claim identity.Claim
		want  identity.Code // "": admitted
		event string
	}{
		{"no such token", claim("x", "plant1", "k1"), identity.TokenUnknown, ""},
		{"a wrong secret", wrong, identity.TokenUnknown, ""},
		{"another site", claim("a", "plant2", "k1"), identity.WrongSite, "machine_refused plant2.lo"},
		{"another kind of machine", claim("node", "plant1", "k1"), identity.WrongSite, "machine_refused plant1.lo"},
		{"too late", claim("late", "plant3", "k1"), identity.TokenExpired, "machine_refused plant3.lo"},
		{"the first", claim("a", "plant1", "k1"), "", "machine_enrolled plant1.lo"},
		{"the same, as its answer was lost", claim("a", "plant1", "k1"), "", "machine_enrolled plant1.lo"},
		{"replayed by another machine", claim("a", "plant1", "k2"), identity.TokenExhausted, "machine_refused plant1.lo"},
		{"another machine of the name, with a token of its own", claim("second", "plant1", "k2"), identity.NameTaken, "machine_refused plant1.lo"},
		{"the machine itself, with a new token", claim("second", "plant1", "k1"), "", "machine_enrolled plant1.lo"},
		{"a machine that takes its place", claim("instead", "plant1", "k2"), "", "machine_enrolled plant1.lo"},
		{"the machine whose place it took", claim("back", "plant1", "k1"), identity.Revoked, "machine_refused plant1.lo"},
		{"a name with two uses", claim("twice", "plant2", "k3"), "", "machine_enrolled plant2.lo"},
		{"two boxes, one name", claim("twice", "plant2", "k4"), identity.NameTaken, "machine_refused plant2.lo"},
	} {
		before := len(events(t, pool))
		err := s.Admit(t.Context(), c.claim)
		if (err == nil) != (c.want == "") || err != nil && identity.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
		added := events(t, pool)[before:]
		if c.event == "" && len(added) > 0 || c.event != "" && (len(added) != 1 || !strings.HasPrefix(added[0], c.event)) {
			t.Errorf("%s: events %q, want %q", c.what, added, c.event)
		}
	}
	before := len(events(t, pool))
	for range 20 {
		if err := s.Admit(t.Context(), claim("twice", "plant2", "k4")); identity.CodeOf(err) != identity.NameTaken {
			t.Errorf("tried for ever: %v", err)
		}
	}
	if got := events(t, pool)[before:]; len(got) != 0 {
		t.Errorf("a machine that tries for ever makes the events %q", got)
	}
	for key, want := range map[string]identity.Code{"k1": identity.NotEnrolled, "k2": ""} {
		err := s.Renewed(t.Context(), identity.Peer{Name: identity.OfLO("plant1"), Key: key})
		if (err == nil) != (want == "") || err != nil && identity.CodeOf(err) != want {
			t.Errorf("renewal with %s: %v, want %q", key, err, want)
		}
	}
	if err := s.Renewed(t.Context(), identity.Peer{Name: identity.OfLO("plant3"), Key: "k1"}); identity.CodeOf(err) != identity.NotEnrolled {
		t.Errorf("renewal of a machine that was refused: %v", err)
	}
}

// TestAdmitAtOnce has machines with keys of their own race for one token with one use, and for
// one name with a use for each.
func TestAdmitAtOnce(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	add(t, s, fleet.JoinToken{ID: "one", Site: "plant1"})
	add(t, s, fleet.JoinToken{ID: "many", Site: "plant2", Uses: 10})
	for _, token := range []struct{ id, site string }{{"one", "plant1"}, {"many", "plant2"}} {
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				errs[i] = s.Admit(context.WithoutCancel(t.Context()), claim(token.id, token.site, fmt.Sprint(i)))
			})
		}
		wg.Wait()
		admitted := 0
		for _, err := range errs {
			if err == nil {
				admitted++
			} else if c := identity.CodeOf(err); c != identity.TokenExhausted && c != identity.NameTaken {
				t.Errorf("token %s: %v", token.id, err)
			}
		}
		if admitted != 1 {
			t.Errorf("token %s: %d machines admitted, want 1", token.id, admitted)
		}
	}
}

// TestIssued checks that a certificate is recorded for the machine with its key alone: one that
// was replaced between the decision and the certificate gets none.
func TestIssued(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	var certs []*x509.Certificate
	var keys []string
	for range 2 {
		root := identitytest.Root(t, time.Now())
		c := identitytest.Issue(t, root, root, identity.OfLO("plant1"), time.Now())
		sum := identity.KeySum(c.Key.Public())
		certs, keys = append(certs, c.Chain[0]), append(keys, hex.EncodeToString(sum[:]))
	}
	add(t, s, fleet.JoinToken{ID: "a", Site: "plant1"})
	add(t, s, fleet.JoinToken{ID: "instead", Site: "plant1", Replace: true})
	for i, token := range []string{"a", "instead"} {
		if err := s.Admit(t.Context(), claim(token, "plant1", keys[i])); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Issued(t.Context(), identity.OfLO("plant1"), certs[1]); err != nil {
		t.Error(err)
	}
	if err := s.Issued(t.Context(), identity.OfLO("plant1"), certs[0]); identity.CodeOf(err) != identity.NotEnrolled {
		t.Errorf("for a machine that was replaced: %v", err)
	}
	if err := s.Issued(t.Context(), identity.OfLO("plant2"), certs[0]); identity.CodeOf(err) != identity.NotEnrolled {
		t.Errorf("for a machine that is not enrolled: %v", err)
	}
	var serial string
	if err := pool.QueryRow(t.Context(), `select serial from machines`).Scan(&serial); err != nil || serial != identity.SerialOf(certs[1]) {
		t.Errorf("recorded %q, %v, want %q", serial, err, identity.SerialOf(certs[1]))
	}
}

// TestSecretIsHashed checks that the database has no secret.
func TestSecretIsHashed(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	add(t, s, fleet.JoinToken{ID: "a", Site: "plant1"})
	var text string
	if err := pool.QueryRow(t.Context(), `select string_agg(j::text, ' ') || encode(secret, 'escape') from join_tokens j group by secret`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, string(secret)) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
		t.Errorf("the row of the token has its secret: %s", text)
	}
}

// TestUnenrolled lists the sites of before, and those whose LO has not come yet.
func TestUnenrolled(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	want := func(limit, total int, sites ...protocol.SiteID) []fleet.Unenrolled {
		t.Helper()
		list, n, err := s.Unenrolled(t.Context(), limit)
		var got []protocol.SiteID
		for _, u := range list {
			got = append(got, u.Site)
		}
		if err != nil || n != total || fmt.Sprint(got) != fmt.Sprint(sites) {
			t.Fatalf("limit %d: %d, %v, %v; want %d, %v", limit, n, got, err, total, sites)
		}
		return list
	}
	want(10, 0)
	if _, err := pool.Exec(t.Context(), `insert into sites (id, nodes) values ('old2', 0), ('old1', 3)`); err != nil {
		t.Fatal(err)
	}
	add(t, s, fleet.JoinToken{ID: "t1", Site: "new"})
	add(t, s, fleet.JoinToken{ID: "t2", Site: "plant1"})
	add(t, s, fleet.JoinToken{ID: "t3", Site: "old2", Tier: identity.EN})
	list := want(10, 4, "new", "old1", "old2", "plant1")
	if list[0].Token == nil || list[1].Token != nil || list[2].Token != nil || list[1].Nodes != 3 {
		t.Errorf("%+v: want a join token of new and of no old one, and 3 nodes of old1", list)
	}
	want(2, 4, "new", "old1")
	want(0, 4)
	if err := s.Admit(t.Context(), claim("t2", "plant1", "k1")); err != nil {
		t.Fatal(err)
	}
	want(10, 3, "new", "old1", "old2")
}
