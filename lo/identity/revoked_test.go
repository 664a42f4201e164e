package identity_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/disk"
	loidentity "github.com/colonyfleet/colony/lo/identity"
	"github.com/colonyfleet/colony/protocol"
)

// A site has Machines, and what they reported.
type site struct {
	*loidentity.Machines
	reports []string
	revoked []string
	fail    error
}

func openSite(t *testing.T, dir string) *site {
	t.Helper()
	s := &site{}
	var err error
	s.Machines, err = loidentity.Open(loidentity.Options{
		Site: "plant1", Dir: dir, Disk: disk.OS, Clock: identity.NewClock(func() time.Time { return now }, identity.Floor{}, nil), Logger: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(),
		Changed:    func(keys []string) { s.revoked = slices.Sorted(slices.Values(keys)) },
		Report: func(_ context.Context, kind protocol.EventKind, n protocol.NodeID, m protocol.Enrolment) error {
			if s.fail == nil {
				s.reports = append(s.reports, fmt.Sprintf("%s %s %s renewal %v from %s", kind, n, m.Code, m.Renewal, m.Remote))
			}
			return s.fail
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	set(t, s.Machines)
	return s
}

// TestRevoked goes through what becomes of a node whose key is revoked, by the CO or by a successor,
// with a restart in between.
func TestRevoked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSite(t, dir)
	for _, c := range []identity.Claim{claim("two", "g1", "k1"), claim("two", "g2", "k2")} {
		if err := s.Admit(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.revoked) != 0 {
		t.Errorf("revoked %v", s.revoked)
	}
	if err := s.Admit(t.Context(), claim("instead", "g1", "k3")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"k1"}; !slices.Equal(s.revoked, want) {
		t.Errorf("after g1 was replaced: revoked %v, want %v", s.revoked, want)
	}
	s = openSite(t, dir)
	s.SetListed([]string{"k2"})
	if want := []string{"k1", "k2"}; !slices.Equal(s.revoked, want) {
		t.Errorf("after a restart and a list: revoked %v, want %v", s.revoked, want)
	}
	renew := func(node, key string, withdrawn bool) identity.Code {
		t.Helper()
		err := s.Renewed(t.Context(), identity.Peer{Name: identity.OfNode("plant1", protocol.NodeID(node)), Key: key, Withdrawn: withdrawn})
		if err == nil {
			return ""
		}
		return identity.CodeOf(err)
	}
	for _, c := range []struct {
		node, key string
		withdrawn bool
		want      identity.Code
	}{
		{"g1", "k1", false, identity.Revoked},
		{"g1", "k3", false, ""},
		{"g1", "k3", true, ""}, // known by its key, also with another certificate
		{"g2", "k2", false, identity.Revoked},
		{"g9", "k9", true, identity.Revoked}, // a thief of the former authority made it
		{"g9", "k9", false, ""},
	} {
		if got := renew(c.node, c.key, c.withdrawn); got != c.want {
			t.Errorf("renewal of %s with %s, withdrawn %v: %q, want %q", c.node, c.key, c.withdrawn, got, c.want)
		}
	}
	if err := s.Admit(t.Context(), claim("one", "g2", "k2")); identity.CodeOf(err) != identity.Revoked {
		t.Errorf("a revoked key with a token: %v", err)
	}
	if err := s.Admit(t.Context(), claim("one", "g2", "k4")); err != nil {
		t.Errorf("the name of a node that was revoked, with another key: %v", err)
	}
	s.SetListed(nil)
	if want := []string{"k1"}; !slices.Equal(s.revoked, want) {
		t.Errorf("after the CO's list is empty: revoked %v, want what was replaced here: %v", s.revoked, want)
	}
}

// TestKnownFromTheCO checks that an LO that took the place of another one knows the nodes by the keys that
// the CO has sent, and none that was revoked.
func TestKnownFromTheCO(t *testing.T) {
	t.Parallel()
	s := openSite(t, t.TempDir())
	key := func(b byte) (raw []byte, name string) {
		raw = make([]byte, 32)
		raw[31] = b
		return raw, fmt.Sprintf("%x", raw)
	}
	raw1, k1 := key(1)
	raw2, k2 := key(2)
	s.SetListed([]string{k2})
	if err := s.SetTokens(protocol.Marshal(&protocol.SiteTokens{V: protocol.Version, Site: "plant1", Nodes: []protocol.EnrolledNode{{Node: "g1", Key: raw1}, {Node: "g2", Key: raw2}}})); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		node protocol.NodeID
		key  string
		want bool
	}{{"g1", k1, true}, {"g1", k2, false}, {"g2", k2, false}} {
		err := s.Renewed(t.Context(), identity.Peer{Name: identity.OfNode("plant1", c.node), Key: c.key, Withdrawn: true})
		if (err == nil) != c.want {
			t.Errorf("renewal of %s with %.4s: %v, want it: %v", c.node, c.key, err, c.want)
		}
	}
}

// TestReports checks what is reported to the CO: each certificate, which is a renewal from the second on, and each
// refusal of a machine that has proved something, once.
func TestReports(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSite(t, dir)
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	root, err := identity.NewRoot(k, now)
	if err != nil {
		t.Fatal(err)
	}
	n := identity.OfNode("plant1", "g1")
	chain, err := root.Issue(n, k.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	name := identity.KeyName(chain[0])
	if err := s.Issued(t.Context(), n, chain[0]); identity.CodeOf(err) != identity.NotEnrolled {
		t.Errorf("a certificate of a node that is not enrolled: %v", err)
	}
	if err := s.Admit(t.Context(), claim("one", "g1", name)); err != nil {
		t.Fatal(err)
	}
	s.fail = errors.New("the journal is full")
	if err := s.Issued(t.Context(), n, chain[0]); err != nil {
		t.Errorf("with a full journal: %v", err)
	}
	s.fail = nil
	for range 2 {
		if err := s.Issued(t.Context(), n, chain[0]); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		s.Refused(t.Context(), n, "10.0.0.5:1", identity.Refuse(identity.NameTaken, "x"))
		s.Refused(t.Context(), n, "10.0.0.5:2", identity.Refuse(identity.NameTaken, "x")) // another port
		s.Refused(t.Context(), n, "10.0.0.6:1", identity.Refuse(identity.NameTaken, "x"))
		s.Refused(t.Context(), n, "10.0.0.5:1", identity.Refuse(identity.TokenUnknown, "x"))
		s.Refused(t.Context(), identity.Name{}, "10.0.0.5:1", identity.Refuse(identity.Invalid, "x"))
	}
	if want := []string{
		"machine_enrolled g1  renewal false from 192.0.2.1:5", "machine_enrolled g1  renewal true from 192.0.2.1:5",
		"machine_refused g1 name_taken renewal false from 10.0.0.5:1", "machine_refused g1 name_taken renewal false from 10.0.0.6:1",
	}; !slices.Equal(s.reports, want) {
		t.Errorf("reports %q, want %q", s.reports, want)
	}
	s = openSite(t, dir)
	if err := s.Issued(t.Context(), n, chain[0]); err != nil {
		t.Error(err)
	}
	want := []string{"machine_enrolled g1  renewal true from 192.0.2.1:5"}
	if !slices.Equal(s.reports, want) {
		t.Errorf("after a restart: %q, want %q", s.reports, want)
	}
}

// TestRevokedAsks has a machine whose key was revoked ask by one name after the other, from several addresses, without
// a token and with one that it has: that is reported once, and the refusal of another one is.
func TestRevokedAsks(t *testing.T) {
	t.Parallel()
	s := openSite(t, t.TempDir())
	s.SetListed([]string{"k1"})
	refused := func(want identity.Code, n identity.Name, remote string, err error) {
		t.Helper()
		r, ok := errors.AsType[*identity.Refusal](err)
		if !ok || r.Code != want {
			t.Fatalf("%s: %v, want %s", n, err, want)
		}
		s.Refused(t.Context(), n, remote, r)
	}
	for i := range 400 {
		c := claim("two", fmt.Sprintf("g%d", i), "k1")
		c.Remote = fmt.Sprintf("192.0.2.%d:5", i%200)
		refused(identity.Revoked, c.Name, c.Remote, s.Admit(t.Context(), c))
		c.Token, c.Secret = "", nil
		refused(identity.Revoked, c.Name, c.Remote, s.Apply(t.Context(), c))
	}
	n := identity.OfNode("plant1", "honest")
	refused(identity.NotEnrolled, n, "192.0.2.1:5", s.Renewed(t.Context(), identity.Peer{Name: n, Key: "k2", Expired: true}))
	if want := []string{"machine_refused g0 revoked renewal false from 192.0.2.0:5", "machine_refused honest not_enrolled renewal false from 192.0.2.1:5"}; !slices.Equal(s.reports, want) {
		t.Errorf("%d reports %.200q, want %q", len(s.reports), s.reports, want)
	}
}

// TestTokenOfBefore has tokens that were made before a key was revoked, which the machine with that key may have, not
// open its name, where the CO says when that was, and where it was replaced here.
func TestTokenOfBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSite(t, dir)
	token := func(id string, uses uint32, replace bool, made int64) protocol.NodeToken {
		return protocol.NodeToken{ID: id, Secret: identity.HashSecret(secret), Uses: uses, ExpiresMillis: now.Add(time.Hour).UnixMilli(), Replace: replace, MadeMillis: made}
	}
	old := []protocol.NodeToken{token("many", 9, false, 100), token("manyreplace", 9, true, 100), token("single", 1, true, 100)}
	send := func(tokens []protocol.NodeToken, revoked ...protocol.RevokedNode) {
		t.Helper()
		if err := s.SetTokens(protocol.Marshal(&protocol.SiteTokens{V: protocol.Version, Site: "plant1", Tokens: tokens, Revoked: revoked})); err != nil {
			t.Fatal(err)
		}
	}
	admit := func(what, token, node, key string, want identity.Code) {
		t.Helper()
		if err := s.Admit(t.Context(), claim(token, node, key)); (err == nil) != (want == "") || err != nil && identity.CodeOf(err) != want {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	send(old)
	admit("a name of which nothing was revoked", "many", "g1", "k1", "")
	send(old, protocol.RevokedNode{Node: "g1", AtMillis: 200})
	s.SetListed([]string{"k1"})
	s = openSite(t, dir) // which has other tokens
	send(old, protocol.RevokedNode{Node: "g1", AtMillis: 200})
	s.SetListed([]string{"k1"})
	admit("its token with another key", "many", "g1", "k2", identity.Revoked)
	admit("a token of before with many uses that replaces", "manyreplace", "g1", "k2", identity.Revoked)
	admit("another name", "many", "g3", "k3", "")
	admit("a token of before for the successor alone", "single", "g1", "k4", "")
	s.SetListed([]string{"k1", "k4"})
	send(append(old, token("new", 1, false, 300)), protocol.RevokedNode{Node: "g1", AtMillis: 200})
	admit("a token of after", "new", "g1", "k5", "")

	admit("replaced here", "manyreplace", "g3", "k6", "")
	admit("the successor once more, as its answer was lost", "manyreplace", "g3", "k6", "")
	admit("the one that was replaced, with another key", "manyreplace", "g3", "k7", identity.Revoked)
	send(append(old, token("later", 1, true, 400)))
	admit("with a token of after", "later", "g3", "k8", "")
	send([]protocol.NodeToken{token("last", 2, false, 500)})
	admit("a name that no token of before bars", "last", "g4", "k9", "")
}
