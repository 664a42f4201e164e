package identity_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
)

// holder returns a holder of a certificate by a, at a clock that says at.
func holder(t *testing.T, a *identity.Authority, n identity.Name, at time.Time) *identity.Holder {
	t.Helper()
	key := identitytest.Key(t)
	chain, err := a.Issue(n, key.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	h := identity.NewHolder(identity.NewClock(func() time.Time { return at }, identity.Floor{}, nil))
	h.Set(&identity.Credential{Key: key, Chain: chain, Root: a.Root()})
	return h
}

// handshake connects two ends, and returns what each says, with the server's state.
func handshake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, c := range []net.Conn{a, b} {
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	s, c := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		_ = s.CloseWrite()
		done <- err
	}()
	_, clientErr = c.Read(make([]byte, 1)) // TLS 1.3: the server's refusal comes after the client's handshake
	if clientErr != nil {
		_ = b.Close()
	}
	serverErr = <-done
	return s.ConnectionState(), serverErr, clientErr
}

func TestMutualTLS(t *testing.T) {
	t.Parallel()
	root := identitytest.Root(t, now)
	site, _ := identitytest.Site(t, root, "a", now)
	foreign, _ := identitytest.Site(t, root, "b", now)
	other := identitytest.Root(t, now)
	lo := holder(t, root, identity.OfLO("a"), now)
	late := now.Add(identity.LeafLife + time.Hour)
	for _, c := range []struct {
		what   string
		client *identity.Holder
		want   identity.Name
		good   bool
	}{
		{"a node", holder(t, site, identity.OfNode("a", "n"), now), identity.OfLO("a"), true},
		{"a node of another site, whom access control stops", holder(t, foreign, identity.OfNode("b", "n"), now), identity.OfLO("a"), true},
		{"a node that expects another lo", holder(t, site, identity.OfNode("a", "n"), now), identity.OfLO("b"), false},
		{"a node that expects the co", holder(t, site, identity.OfNode("a", "n"), now), identity.OfCO(), false},
		{"a node of another fleet", holder(t, other, identity.OfNode("a", "n"), now), identity.OfLO("a"), false},
		{"a node without a certificate", identity.NewHolder(identity.NewClock(time.Now, identity.Floor{}, nil)), identity.OfLO("a"), false},
		{"a node whose clock is in 1970", holder(t, site, identity.OfNode("a", "n"), time.Unix(0, 0)), identity.OfLO("a"), true},
	} {
		_, serverErr, clientErr := handshake(t, lo.ServerTLS(), c.client.ClientTLS(c.want))
		if (serverErr == nil && clientErr == nil) != c.good {
			t.Errorf("%s: server %v, client %v, want it to connect: %v", c.what, serverErr, clientErr, c.good)
		}
	}
	client := holder(t, site, identity.OfNode("a", "n"), now)
	if _, serverErr, clientErr := handshake(t, holder(t, root, identity.OfLO("a"), time.Unix(0, 0)).ServerTLS(), client.ClientTLS(identity.OfLO("a"))); serverErr != nil || clientErr != nil {
		t.Errorf("an lo whose clock is in 1970: server %v, client %v", serverErr, clientErr)
	}
	expired := identity.NewHolder(identity.NewClock(func() time.Time { return late }, identity.Floor{}, nil))
	expired.Set(lo.Credential())
	if _, _, err := handshake(t, expired.ServerTLS(), client.ClientTLS(identity.OfLO("a"))); err == nil {
		t.Error("a client whose certificate has ended connected")
	}
	state, _, err := handshake(t, expired.EnrolTLS(), client.ClientTLS(identity.OfLO("a")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := expired.Peer(state, identity.Client); err == nil {
		t.Error("it counts where it has ended")
	}
	if p, err := expired.Former(state); err != nil || !p.Expired || p.Name != identity.OfNode("a", "n") {
		t.Errorf("for a renewal: %+v, %v", p, err)
	}
	old := client.ClientTLS(identity.OfLO("a"))
	old.MaxVersion, old.MinVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, err, _ := handshake(t, lo.ServerTLS(), old); err == nil {
		t.Error("TLS 1.2 connected")
	}
}

// TestRevocationMeetsResumption checks that a session that is resumed is verified again.
func TestRevocationMeetsResumption(t *testing.T) {
	t.Parallel()
	root := identitytest.Root(t, now)
	site, _ := identitytest.Site(t, root, "a", now)
	lo, node := holder(t, root, identity.OfLO("a"), now), holder(t, site, identity.OfNode("a", "n"), now)
	server, client := lo.ServerTLS(), node.ClientTLS(identity.OfLO("a"))
	// The tickets carry times of the machine's clock.
	server.Time, client.Time = lo.Clock().Now, lo.Clock().Now
	if _, _, err := handshake(t, server, client); err != nil {
		t.Fatal(err)
	}
	state, _, err := handshake(t, server, client)
	if err != nil || !state.DidResume {
		t.Fatalf("resumed %v: %v", state.DidResume, err)
	}
	if p, err := lo.Peer(state, identity.Client); err != nil || p.Name != identity.OfNode("a", "n") {
		t.Errorf("peer of a resumed session: %+v, %v", p, err)
	}
	for what, key := range map[string]string{
		"the node's":            identity.KeyName(node.Credential().Chain[0]),
		"that of its authority": identity.KeyName(site.Certificate()),
	} {
		lo.SetRevoked([]string{key})
		_, serverErr, clientErr := handshake(t, server, client)
		if serverErr == nil || !strings.Contains(serverErr.Error(), "revoked") || clientErr == nil {
			t.Errorf("%s revoked: server %v, client %v", what, serverErr, clientErr)
		}
		lo.SetRevoked(nil)
	}
}

// TestClock raises the floor of a clock by certificates.
func TestClock(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		root, key := identitytest.Root(t, now.Add(-time.Hour)), identitytest.Key(t)
		cert := func(begin time.Time, generation uint32) *x509.Certificate {
			root.SetGeneration(generation)
			chain, err := root.Issue(identity.OfLO("a"), key.Public(), begin.Add(time.Hour)) // which is how far it is put back
			if err != nil {
				t.Fatal(err)
			}
			if got := identity.GenerationOf(chain[0]); got != generation {
				t.Fatalf("a certificate is of generation %d, want %d", got, generation)
			}
			return chain[0]
		}
		at, saved, fail := time.Unix(0, 0), []identity.Floor{}, error(nil)
		c := identity.NewClock(func() time.Time { return at }, identity.Floor{Time: now}, func(f identity.Floor) error { saved = append(saved, f); return fail })
		raise := func(what string, begin time.Time, generation uint32, want time.Time) {
			t.Helper()
			if err := c.Raise(cert(begin, generation), root.Root()); err != fail && len(saved) > 0 {
				t.Errorf("%s: %v", what, err)
			}
			if got := c.Now(); !got.Equal(want) {
				t.Errorf("%s: now %s, want %s", what, got, want)
			}
		}
		raise("in 1970, a moment before the floor", now.Add(-time.Hour), 0, now)
		raise("a moment just above", now.Add(time.Minute), 0, now)
		if len(saved) > 0 {
			t.Errorf("stored %v, want nothing for less than an hour", saved)
		}
		time.Sleep(3 * time.Hour)
		raise("three hours later", now, 0, now.Add(3*time.Hour))
		raise("years later", now.Add(3650*day), 0, now.Add(3650*day))
		if c.For(cert(now, 0)).Before(now.Add(3650*day)) || !c.For(cert(now, 1)).Equal(now) {
			t.Error("a certificate of the generation of the floor is not judged by that, or one of the next is")
		}
		raise("the next generation", now.Add(day), 1, now.Add(day))
		raise("the generation before", now.Add(3650*day), 0, now.Add(day))
		if want := []identity.Floor{{Time: now.Add(3650 * day)}, {Generation: 1, Time: now.Add(day)}}; !slices.EqualFunc(saved, want, func(a, b identity.Floor) bool { return a.Generation == b.Generation && a.Time.Equal(b.Time) }) {
			t.Errorf("stored %v, want %v", saved, want)
		}
		at = now.Add(2 * day)
		raise("a clock that can be right, years ahead", now.Add(3650*day), 1, at)
		if got := c.Ahead(); got != 3648*day {
			t.Errorf("%s ahead", got)
		}
		raise("ahead, of the next generation", now.Add(3650*day), 2, at)
		fail = errors.New("full")
		raise("a week ahead", now.Add(9*day), 1, now.Add(9*day))
		if c.Ahead() != 0 {
			t.Errorf("%s ahead", c.Ahead())
		}
	})
}
