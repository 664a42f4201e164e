package https_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/https"
	"github.com/colonyfleet/colony/identity/identitytest"
)

// a fleet of one root.
type fleet struct {
	t    *testing.T
	root *identity.Authority
}

func newFleet(t *testing.T) fleet {
	t.Helper()
	return fleet{t, identitytest.Root(t, time.Now())}
}

// site returns the authority of a site.
func (f fleet) site(n identity.Name) *identity.Authority {
	f.t.Helper()
	a, _ := identitytest.Site(f.t, f.root, n.Site, time.Now())
	return a
}

func (f fleet) holder(n identity.Name) *identity.Holder {
	f.t.Helper()
	by := f.root
	if n.Tier == identity.EN {
		by = f.site(n)
	}
	return identitytest.Holder(f.t, by, f.root, n)
}

func serve(t *testing.T, o https.ServerOptions) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.Logger = slog.New(slog.DiscardHandler)
	s := https.Start(l, o, func(err error) { t.Error(err) })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return "https://" + l.Addr().String()
}

func client(t *testing.T, base string, h *identity.Holder, server identity.Name) *http.Client {
	t.Helper()
	c := https.NewClient(https.ClientOptions{Base: base, Key: "co.http", Holder: h, Server: server, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// TestWhoIsLetIn asks the LO of a site for its images with and without the right to.
func TestWhoIsLetIn(t *testing.T) {
	t.Parallel()
	ours, theirs := newFleet(t), newFleet(t)
	lo := identity.OfLO("plant")
	base := serve(t, https.ServerOptions{
		Holder: ours.holder(lo), Tier: identity.EN, Site: "plant",
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "image") }),
	})
	for what, tt := range map[string]struct {
		holder *identity.Holder
		server identity.Name
		want   string
	}{
		"node of the site":     {ours.holder(identity.OfNode("plant", "n1")), lo, "image"},
		"node of another site": {ours.holder(identity.OfNode("other", "n1")), lo, "is not let in"},
		"another LO":           {ours.holder(identity.OfLO("other")), lo, "is not let in"},
		"the CO":               {ours.holder(identity.OfCO()), lo, "is not let in"},
		"of another fleet":     {theirs.holder(identity.OfNode("plant", "n1")), lo, "error"},
		"asks somebody else":   {ours.holder(identity.OfNode("plant", "n1")), identity.OfLO("other"), "error"},
		"without certificate":  {identity.NewHolder(identity.NewClock(time.Now, identity.Floor{}, nil)), lo, "error"},
		"nobody":               {nil, lo, "error"},
	} {
		got := "error"
		resp, err := client(t, base, tt.holder, tt.server).Get(base + "/v2/")
		if err == nil {
			b, err := io.ReadAll(resp.Body)
			got = string(b)
			if err := errors.Join(err, resp.Body.Close()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q (%v), want %q", what, got, err, tt.want)
		}
	}
}

// TestRevokedInTheMiddle revokes the key of a node that has got a part of an answer: the rest does not come, and it
// is not taken for all.
func TestRevokedInTheMiddle(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	lo := identity.OfLO("plant")
	server, node := f.holder(lo), f.holder(identity.OfNode("plant", "n1"))
	revoked := make(chan struct{})
	base := serve(t, https.ServerOptions{
		Holder: server, Tier: identity.EN, Site: "plant",
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "first")
			_ = http.NewResponseController(w).Flush()
			<-revoked
			_, _ = io.WriteString(w, "second")
		}),
	})
	c := client(t, base, node, lo)
	resp, err := c.Get(base + "/v2/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "first" {
		t.Fatalf("%q, %v", first, err)
	}
	server.SetRevoked([]string{identity.KeyName(node.Credential().Chain[0])})
	close(revoked)
	if rest, err := io.ReadAll(resp.Body); err == nil || len(rest) > 0 {
		t.Errorf("after the revocation came %q, %v", rest, err)
	}
	if resp, err := c.Get(base + "/v2/"); err == nil {
		_ = resp.Body.Close()
		t.Errorf("a revoked node is let in: %s", resp.Status)
	}
}
