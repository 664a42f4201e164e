package fleetdb_test

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	identitydb "github.com/colonyfleet/colony/co/db/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// keyOf is a name of a key for each text.
func keyOf(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

// TestEnrolments has an LO report the certificates of its nodes, refusals and lists: the CO knows the keys,
// revokes that of a node whose name another one took, and never takes a revoked one back.
func TestEnrolments(t *testing.T) {
	t.Parallel()
	pool := openDB(t)
	s, machines := fleetdb.New(pool), identitydb.New(pool)
	end := time.Now().Add(identity.LeafLife)
	j := &journal{epoch: "e"}
	enrolled := func(node protocol.NodeID, of string, renewal bool) {
		j.add(protocol.MachineEnrolled, node, &protocol.Enrolment{V: 1, Key: keyOf(of), Serial: of, EndMillis: end.UnixMilli(), Remote: "10.0.0.5:1", Renewal: renewal})
	}
	enrolled("g1", "one", false)
	enrolled("g1", "one", true)
	enrolled("g2", "two", false)
	j.add(protocol.MachineEnrolled, "g3", &protocol.Enrolment{V: 1, Key: keyOf("three"), Serial: "three", EndMillis: end.UnixMilli()}) // from where is not known
	j.add(protocol.MachineRefused, "g1", &protocol.Enrolment{V: 1, Remote: "10.0.0.6:1", Code: "name_taken", Reason: "another gateway"})
	enrolled("g1", "other", false) // took its place
	enrolled("g1", "one", true)    // reported late
	j.add(protocol.RevocationsAdopted, "", &protocol.RevocationsReport{V: 1, Number: 7, Keys: 2})
	j.add(protocol.ClocksDiffer, "", &protocol.ClocksReport{V: 1, AheadMillis: 400 * 24 * 3_600_000})
	j.add(protocol.ClocksDiffer, "", &protocol.ClocksReport{V: 1})
	j.add(protocol.RevocationsRefused, "", &protocol.RevocationsReport{V: 1, Number: 7, Keys: 2, Reason: "stale: it is"})
	j.add(protocol.MachineEnrolled, "", &protocol.Enrolment{V: 1, Key: keyOf("x")})
	if _, err := j.send(t.Context(), s, 1, len(j.events), 0); err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(t.Context(), fleet.EventFilter{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		got = append(got, e.Kind+" "+string(e.Node)+" "+e.Message)
	}
	want := []string{
		"machine_enrolled g1 at the LO of its site, from 10.0.0.5:1", "machine_enrolled g2 at the LO of its site, from 10.0.0.5:1", "machine_enrolled g3 at the LO of its site",
		"machine_refused g1 from 10.0.0.6:1: name_taken: another gateway", "machine_enrolled g1 at the LO of its site, from 10.0.0.5:1",
		"revocations_adopted  list 7 of 2 keys", "revocations_refused  stale: it is", "clocks_differ  the certificate of the CO begins 400 days ahead of the site's clock: set the clock of the CO, or that of the site, whichever is wrong; the site goes by its own", "clocks_differ  the clocks of the site and of the CO agree again", "anomaly  a certificate without its node, or without the SHA-256 of its key",
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	known := func() []string {
		t.Helper()
		list, err := pgdb.Rows(t.Context(), pool, pgx.RowTo[string], `select name || ' ' || key from machines order by name`)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	revoked := func() (keys []string) {
		t.Helper()
		lists, _, err := machines.Revocations(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range lists {
			for _, k := range m.Keys {
				keys = append(keys, hex.EncodeToString(k.Key))
			}
		}
		return keys
	}
	name := func(of string) string { return hex.EncodeToString(keyOf(of)) }
	if got, want := known(), []string{"g1.home.en.colony.internal " + name("other"), "g2.home.en.colony.internal " + name("two"), "g3.home.en.colony.internal " + name("three")}; !slices.Equal(got, want) {
		t.Errorf("machines %q, want %q", got, want)
	}
	var adopted int64
	if _, _, err := machines.Revocations(t.Context()); err != nil {
		t.Fatal(err)
	}
	j.add(protocol.RevocationsAdopted, "", &protocol.RevocationsReport{V: 1, Number: 8, Keys: 2})
	if _, err := j.send(t.Context(), s, len(j.events), len(j.events), 1); err != nil {
		t.Fatal(err)
	}
	if err := pool.QueryRow(t.Context(), `select adopted from revocation_lists where site = 'home'`).Scan(&adopted); err != nil || adopted != 8 {
		t.Errorf("the site goes by list %d (%v), want 8", adopted, err)
	}
	if got := revoked(); !slices.Equal(got, []string{name("one")}) {
		t.Errorf("revoked %q, want the key of the first g1", got)
	}
	// No LO can give a node the key of another machine, and have that revoked by the next one.
	before := len(j.events)
	if _, err := pool.Exec(t.Context(), `insert into machines (name, site, key, authority, token) values ('other.lo.colony.internal', 'other', $1, $2, '')`, name("lo"), name("authority")); err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{"lo", "authority", "two"} {
		enrolled("g9", of, false)
		enrolled("g9", of+" later", false)
	}
	if _, err := j.send(t.Context(), s, before+1, len(j.events), 2); err != nil {
		t.Fatal(err)
	}
	if got := revoked(); slices.Contains(got, name("lo")) || slices.Contains(got, name("authority")) || slices.Contains(got, name("two")) {
		t.Errorf("revoked %q: the keys of an LO, an authority or another node are among them", got)
	}
	if _, err := machines.Revoke(t.Context(), identity.OfNode("home", "g2")); err != nil {
		t.Error(err)
	}
	if got := revoked(); !slices.Contains(got, name("two")) {
		t.Errorf("revoked %q, want that of g2 among them", got)
	}
}
