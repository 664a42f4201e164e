package co_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/access/oidc"
	"github.com/colonyfleet/colony/co/db"
	accessdb "github.com/colonyfleet/colony/co/db/access"
	"github.com/colonyfleet/colony/internal/oidctest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// eventStream opens a stream of events, and returns a channel that is closed when it ends.
func (b *bench) eventStream(text string) <-chan struct{} {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+b.co.HTTPAddr()+"/api/v1/events", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Authorization", "Bearer "+text)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		b.t.Fatal(resp.Status)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, resp.Body) // however it ends
	}()
	return ended
}

// ends waits for the end of a stream.
func (b *bench) ends(what string, ended <-chan struct{}) {
	b.t.Helper()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		b.t.Fatalf("%s goes on", what)
	}
}

// sitesOf returns the sites that a list and the status have for a token, or the status code.
func (b *bench) sitesOf(text string) (names string, total int, code int) {
	b.t.Helper()
	var list struct{ Items []struct{ ID string } }
	code, said := b.ask(http.MethodGet, "/api/v1/sites", text, "")
	if code != http.StatusOK {
		return "", 0, code
	}
	if err := json.Unmarshal([]byte(said), &list); err != nil {
		b.t.Fatal(err)
	}
	for _, s := range list.Items {
		names += s.ID + " "
	}
	var status struct{ Sites int }
	if _, said := b.ask(http.MethodGet, "/api/v1/status", text, ""); json.Unmarshal([]byte(said), &status) != nil {
		b.t.Fatal(said)
	}
	return strings.TrimSpace(names), status.Sites, code
}

// TestSiteGroups has a token and a person whose sites are a group, which changes: here, at another replica, and to nothing.
func TestSiteGroups(t *testing.T) {
	t.Parallel()
	idp := oidctest.Start(t, oidctest.Options{Accounts: people})
	b := start(t, vouched(idp.Issuer), func(o *co.Options) {
		o.Access.OIDC.Roles = []oidc.Binding{{Group: "plant-operators", Role: "operator", Sites: []string{"@north"}}}
	})
	_, admin := b.tokenOf("root", access.Admin, time.Hour)
	for _, site := range []string{"plant-1", "plant-2", "quay"} {
		if status, said := b.ask(http.MethodPost, "/api/v1/sites", admin, `{"id":"`+site+`"}`); status != http.StatusCreated {
			t.Fatalf("%d %s", status, said)
		}
	}
	const token = `{"name":"ci","role":"operator","sites":["@north"]}`
	if status, said := b.ask(http.MethodPost, "/api/v1/tokens", admin, token); status != http.StatusUnprocessableEntity || !strings.Contains(said, `no group of sites \"north\"`) {
		t.Errorf("a token for a group that is not there: %d %s", status, said)
	}
	local := access.Request{Name: "ci", Role: "operator", Sites: []string{"@north"}, Life: time.Hour}
	if _, _, err := co.NewAccessToken(t.Context(), b.options, local); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("such a token on the CO's machine: %v", err)
	}
	put := func(who, name, body string, want int) {
		t.Helper()
		if status, said := b.ask(http.MethodPut, "/api/v1/site-groups/"+name, who, body); status != want {
			t.Errorf("group %s %s: %d %s, want %d", name, body, status, said, want)
		}
	}
	put(admin, "north", `{"sites":["plant-1"]}`, http.StatusOK)
	put(admin, "North", `{"sites":["plant-1"]}`, http.StatusUnprocessableEntity)
	put(admin, "south", `{"sites":[]}`, http.StatusUnprocessableEntity)
	put(admin, "south", `{"sites":["@north"]}`, http.StatusUnprocessableEntity)
	put(b.scopedToken(access.Admin, "plant-*"), "north", `{"sites":["*"]}`, http.StatusForbidden)
	var made struct{ Token string }
	if status, said := b.ask(http.MethodPost, "/api/v1/tokens", admin, token); status != http.StatusCreated || json.Unmarshal([]byte(said), &made) != nil {
		t.Fatalf("%d %s", status, said)
	}
	bob := idp.IDToken("u-bob")
	holders := map[string]string{"a token": made.Token, "a person": bob}
	shows := func(names string, total int) func() bool {
		return func() bool {
			for _, text := range holders {
				if got, n, _ := b.sitesOf(text); got != names || n != total {
					return false
				}
			}
			return true
		}
	}
	testpart.Eventually(t, "they have what the group has", shows("plant-1", 1))
	change := func(what string, do func()) {
		t.Helper()
		streams := map[string]<-chan struct{}{}
		for who, text := range holders {
			streams[who] = b.eventStream(text)
		}
		goesOn := b.eventStream(admin)
		do()
		for who, ended := range streams {
			b.ends(what+": the stream of "+who, ended)
		}
		select {
		case <-goesOn:
			t.Errorf("%s: the stream of somebody else ended", what)
		default:
		}
	}
	change("wider", func() { put(admin, "north", `{"sites":["plant-*"]}`, http.StatusOK) })
	if !shows("plant-1 plant-2", 2)() {
		t.Error("the group of now does not count at once where it was changed")
	}
	if status, _ := b.ask(http.MethodGet, "/api/v1/sites/quay", bob, ""); status != http.StatusForbidden {
		t.Errorf("another site: %d", status)
	}
	pool, err := db.Open(t.Context(), b.options.DatabaseURL, db.Options{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), NoMigration: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	change("at another replica", func() {
		before, err := accessdb.New(pool).PutSiteGroup(t.Context(), access.SiteGroup{Name: "north", Sites: []string{"quay"}})
		if err != nil || strings.Join(before, ",") != "plant-*" {
			t.Fatal(before, err)
		}
	})
	if !shows("quay", 1)() {
		t.Error("the group of another replica does not count where its streams have ended")
	}
	if _, said := b.ask(http.MethodGet, "/api/v1/site-groups", admin, ""); !strings.Contains(said, `"items":[{"name":"north","sites":["quay"]}]`) {
		t.Error(said)
	}
	change("removed", func() {
		if status, said := b.ask(http.MethodDelete, "/api/v1/site-groups/north", admin, ""); status != http.StatusNoContent {
			t.Errorf("%d %s", status, said)
		}
	})
	for who, text := range holders {
		if status, said := b.ask(http.MethodGet, "/api/v1/sites", text, ""); status != http.StatusForbidden || !strings.Contains(said, "no role") {
			t.Errorf("%s without its group: %d %s", who, status, said)
		}
	}
	if status, _ := b.ask(http.MethodDelete, "/api/v1/site-groups/north", admin, ""); status != http.StatusNotFound {
		t.Errorf("removed twice: %d", status)
	}
	if _, said := b.ask(http.MethodGet, "/api/v1/audit?target=/api/v1/site-groups/", admin, ""); !strings.Contains(said, "sites of group north: plant-*; before: plant-1") || !strings.Contains(said, "sites of group north: none; before: quay") {
		t.Error(said)
	}
}
