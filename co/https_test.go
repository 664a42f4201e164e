package co_test

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/https"
)

// TestSitesFetchWithCertificates has an LO fetch what its site runs at identity.http, while the API wants a token
// for it; other clients get nothing there, and none can write there.
func TestSitesFetchWithCertificates(t *testing.T) {
	t.Parallel()
	o := identified(t)
	o.Identity.HTTP, o.Access.Required = "127.0.0.1:0", true
	root := rootOf(t, o)
	b := &bench{t: t, co: startCO(t, o), options: o}
	_, admin := b.tokenOf("ann", access.Admin, time.Hour)
	_, reader := b.tokenOf("wall", access.ReadOnly, time.Hour)

	lo := identity.OfLO("plant1")
	clock := identity.NewClock(time.Now, identity.Floor{}, nil)
	status, said := b.ask(http.MethodPost, "/api/v1/sites/plant1/join-tokens", admin, "{}")
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, said)
	}
	_, text, _ := strings.Cut(said, `"token":"`)
	text, _, _ = strings.Cut(text, `"`)
	token, err := identity.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	got, err := enrol.Join(t.Context(), enrol.Machine{
		Name: lo, Server: identity.OfCO(), Addresses: []string{b.co.EnrolAddr()}, Key: key(t).Key, Authority: key(t).Key, Clock: clock,
	}, token)
	if err != nil {
		t.Fatal(err)
	}
	site := identity.NewHolder(clock)
	site.Set(got.Machine)
	node := identity.NewHolder(clock)
	k := key(t)
	authority, err := identity.OpenSite(got.Authority.Chain[0], root.Root(), got.Authority.Key)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := authority.Issue(identity.OfNode("plant1", "n1"), k.Key.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	node.Set(&identity.Credential{Key: k.Key, Chain: chain, Root: root.Root()})

	base := "https://" + b.co.HTTPSAddr()
	const spec = "/api/v1/specs/sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	for _, tt := range []struct {
		who          *identity.Holder
		method, path string
		want         int
	}{
		{site, http.MethodGet, spec, http.StatusNotFound},
		{site, http.MethodGet, "/v2/a/manifests/1", http.StatusNotFound},
		{site, http.MethodHead, "/v2/a/manifests/1", http.StatusNotFound},
		{site, http.MethodGet, "/v2/", http.StatusOK},
		{site, http.MethodPost, "/v2/a/blobs/uploads/", http.StatusMethodNotAllowed},
		{site, http.MethodGet, "/api/v1/sites", http.StatusNotFound},
		{site, http.MethodGet, "/metrics", http.StatusNotFound},
		{node, http.MethodGet, "/v2/", http.StatusForbidden},
	} {
		c := https.NewClient(https.ClientOptions{Base: base, Key: "co.http", Holder: tt.who, Server: identity.OfCO(), Logger: slog.New(slog.DiscardHandler)})
		req, err := http.NewRequestWithContext(t.Context(), tt.method, base+tt.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Errorf("%s %s: %v", tt.method, tt.path, err)
			continue
		}
		said, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		c.CloseIdleConnections()
		if resp.StatusCode != tt.want {
			t.Errorf("%s %s: %s %s, want %d", tt.method, tt.path, resp.Status, said, tt.want)
		}
	}
	for _, path := range []string{spec, "/v2/a/manifests/1", "/v2/"} {
		if status, said := b.ask(http.MethodGet, path, "", ""); status != http.StatusUnauthorized {
			t.Errorf("%s at the API without a token: %d %s", path, status, said)
		}
	}
	if status, said := b.ask(http.MethodGet, spec, reader, ""); status != http.StatusNotFound {
		t.Errorf("%s at the API with a token: %d %s", spec, status, said)
	}
}
