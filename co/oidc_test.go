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
	"github.com/colonyfleet/colony/co/access/token"
	"github.com/colonyfleet/colony/co/api/gate"
	"github.com/colonyfleet/colony/co/db"
	accessdb "github.com/colonyfleet/colony/co/db/access"
	"github.com/colonyfleet/colony/internal/oidctest"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
)

var people = map[string]oidctest.Claims{
	"u-ann": {"preferred_username": "ann", "groups": []string{"admins"}},
	"u-bob": {"preferred_username": "bob", "groups": []string{"everybody", "plant-operators"}},
	"u-eve": {"preferred_username": "eve", "groups": []string{"marketing"}},
}

// vouched has an OpenID provider vouch for people.
func vouched(issuer string) func(*co.Options) {
	return func(o *co.Options) {
		o.Access.Required = true
		o.Access.OIDC = oidc.Config{Issuer: issuer, ClientID: oidctest.ClientID, Refresh: time.Second, Roles: []oidc.Binding{
			{Group: "admins", Role: "admin"}, {Group: "everybody", Role: "read-only"}, {Group: "plant-operators", Role: "operator", Sites: []string{"plant*"}},
		}}
	}
}

// TestPeople has people of a real provider use the API: each what their groups have, and the audit names the
// person.
func TestPeople(t *testing.T) {
	t.Parallel()
	idp := oidctest.Start(t, oidctest.Options{Accounts: people})
	b := start(t, vouched(idp.Issuer))
	ann, bob, eve := idp.IDToken("u-ann"), idp.IDToken("u-bob"), idp.IDToken("u-eve")
	status, said := b.ask(http.MethodGet, "/api/v1/sign-in", "", "")
	var how access.SignIn
	if err := json.Unmarshal([]byte(said), &how); err != nil || status != http.StatusOK || how.Issuer != idp.Issuer || how.ClientID != oidctest.ClientID || len(how.Scopes) != 3 {
		t.Errorf("how to sign in: %d %s", status, said)
	}
	testpart.Eventually(t, "the provider's keys are read", func() bool {
		status, _ := b.ask(http.MethodGet, "/api/v1/principal", ann, "")
		return status == http.StatusOK
	})
	for _, tt := range []struct {
		name, who, method, path, body string
		want                          int
	}{
		{"an admin creates a site", ann, http.MethodPost, "/api/v1/sites", `{"id":"plant"}`, http.StatusCreated},
		{"an operator of some sites", bob, http.MethodPut, "/api/v1/sites/plant/data-rules", `{"rules":[{"name":"a","direction":"up","topics":["a/#"]}]}`, http.StatusOK},
		{"an operator elsewhere", bob, http.MethodPut, "/api/v1/sites/quay/data-rules", `{"rules":[]}`, http.StatusForbidden},
		{"a reader of all", bob, http.MethodGet, "/api/v1/proposals", "", http.StatusOK},
		{"an operator is no admin", bob, http.MethodGet, "/api/v1/tokens", "", http.StatusForbidden},
		{"nobody", eve, http.MethodGet, "/api/v1/principal", "", http.StatusForbidden},
		{"nobody does something", eve, http.MethodPost, "/api/v1/sites", `{"id":"x"}`, http.StatusForbidden},
		{"a registry's client", ann, http.MethodGet, "/v2/", "", http.StatusOK},
	} {
		if status, said := b.ask(tt.method, tt.path, tt.who, tt.body); status != tt.want || strings.Contains(said, "marketing") {
			t.Errorf("%s: %d %s, want %d", tt.name, status, said, tt.want)
		}
	}
	if _, said := b.ask(http.MethodGet, "/api/v1/principal", eve, ""); !strings.Contains(said, "oidc:eve is signed in") || !strings.Contains(said, "ask an administrator") {
		t.Error(said)
	}
	if _, said := b.ask(http.MethodGet, "/api/v1/principal", bob, ""); !strings.Contains(said, `"further":[{"role":"read-only"}]`) || !strings.Contains(said, `"subject":"u-bob"`) {
		t.Error(said)
	}
	var audit struct {
		Items []struct{ Principal, Subject, Issuer, Operation, Role string }
	}
	_, said = b.ask(http.MethodGet, "/api/v1/audit?principal=oidc:bob&kind=intent", ann, "")
	if err := json.Unmarshal([]byte(said), &audit); err != nil || len(audit.Items) != 1 || audit.Items[0].Subject != "u-bob" || audit.Items[0].Issuer != idp.Issuer {
		t.Errorf("the audit: %s %v", said, err)
	}
	testpart.Eventually(t, "the rows are in the chain", func() bool {
		_, said = b.ask(http.MethodGet, "/api/v1/audit/verification", ann, "")
		var chain struct{ Rows int }
		return json.Unmarshal([]byte(said), &chain) == nil && chain.Rows >= 4
	})
	if !strings.Contains(said, `"findings":[]`) {
		t.Errorf("the chain of the audit: %s", said)
	}
	if _, said := b.ask(http.MethodGet, "/openapi.json", ann, ""); !strings.Contains(said, `"openIdConnectUrl":"`+idp.Issuer+`/.well-known/openid-configuration"`) {
		t.Error("the description does not name the provider")
	}
}

// TestPersonsStreamEnds has streams of events end with their token, and with the key that proves it.
func TestPersonsStreamEnds(t *testing.T) {
	t.Parallel()
	idp := oidctest.Start(t, oidctest.Options{Accounts: people})
	b := start(t, vouched(idp.Issuer))
	now := time.Now()
	claims := func(end time.Time) oidctest.Claims {
		return oidctest.Claims{"iss": idp.Issuer, "aud": oidctest.ClientID, "sub": "u-bob", "iat": now.Unix(), "exp": end.Unix(), "groups": []string{"everybody"}}
	}
	short, long := oidctest.Sign(t, idp.Keys[0], claims(now.Add(20*time.Second)), nil), oidctest.Sign(t, idp.Keys[0], claims(now.Add(time.Hour)), nil)
	stream := func(text string) <-chan time.Time {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+b.co.HTTPAddr()+"/api/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Authorization", "Bearer "+text)
		var resp *http.Response
		testpart.Eventually(t, "the stream is open", func() bool {
			if resp, err = http.DefaultClient.Do(req); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != http.StatusOK {
				_ = resp.Body.Close()
			}
			return resp.StatusCode == http.StatusOK
		})
		t.Cleanup(func() { _ = resp.Body.Close() })
		ended := make(chan time.Time, 1)
		go func() {
			_, _ = io.Copy(io.Discard, resp.Body) // however it ends
			ended <- time.Now()
		}()
		return ended
	}
	ofShort, ofLong := stream(short), stream(long)
	select {
	case at := <-ofShort:
		if at.Before(now.Add(18 * time.Second)) { // exp is in whole seconds
			t.Errorf("the stream ended %s before its token", now.Add(20*time.Second).Sub(at))
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the stream does not end with its token")
	}
	if status, said := b.ask(http.MethodGet, "/api/v1/sites", short, ""); status != http.StatusUnauthorized || !strings.Contains(said, "has ended: log in again") {
		t.Errorf("%d %s", status, said)
	}
	select {
	case <-ofLong:
		t.Fatal("the stream of another token ended, too")
	default:
	}
	idp.Kill()
	idp.Keys[0] = oidctest.NewKey(t, "second")
	idp.Run()
	select {
	case <-ofLong:
	case <-time.After(2 * time.Minute):
		t.Fatal("the stream goes on after the provider has withdrawn the key")
	}
}

// TestProviderAway has a CO start without its provider: its own tokens count, and people once the provider is there.
func TestProviderAway(t *testing.T) {
	t.Parallel()
	idp := oidctest.New(t, oidctest.Options{Accounts: people})
	b := start(t, vouched(idp.Issuer))
	_, own := b.tokenOf("root", access.Admin, time.Hour)
	now := time.Now().Unix()
	text := oidctest.Sign(t, idp.Keys[0], oidctest.Claims{"iss": idp.Issuer, "aud": oidctest.ClientID, "sub": "u-bob", "iat": now, "exp": now + 600, "groups": []string{"everybody"}}, nil)
	if status, said := b.ask(http.MethodGet, "/api/v1/sites", own, ""); status != http.StatusOK {
		t.Errorf("%d %s", status, said)
	}
	if status, said := b.ask(http.MethodGet, "/api/v1/sites", text, ""); status != http.StatusServiceUnavailable || !strings.Contains(said, "tokens of Colony itself count") {
		t.Errorf("%d %s", status, said)
	}
	if status, said := b.ask(http.MethodGet, "/readyz", "", ""); status != http.StatusOK {
		t.Errorf("a CO without its provider serves no sites: %d %s", status, said)
	}
	up := func(want string) bool {
		_, said := b.ask(http.MethodGet, "/metrics", own, "")
		return strings.Contains(said, "colony_co_oidc_up "+want+"\n")
	}
	if !up("0") {
		t.Error("the metric does not say that the provider is away")
	}
	idp.Run()
	testpart.Eventually(t, "people are known", func() bool {
		status, _ := b.ask(http.MethodGet, "/api/v1/sites", text, "")
		return status == http.StatusOK
	})
	idp.Kill()
	testpart.Eventually(t, "the metric says that the provider is away", func() bool { return up("0") })
	for name, each := range map[string]string{"the CO's own": own, "a person's": text} {
		if status, said := b.ask(http.MethodGet, "/api/v1/sites", each, ""); status != http.StatusOK {
			t.Errorf("%s token does not count while the provider is away: %d %s", name, status, said)
		}
	}
}

// BenchmarkAuthenticate compares tokens of a provider with Colony's own, seen before and not.
func BenchmarkAuthenticate(b *testing.B) {
	idp := oidctest.Start(b, oidctest.Options{})
	c := oidc.Config{Issuer: idp.Issuer, ClientID: oidctest.ClientID, Roles: []oidc.Binding{{Group: "everybody", Role: "read-only"}}}
	quiet := slog.New(slog.DiscardHandler)
	provider, err := oidc.New(c, quiet, prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	pool, err := db.Open(b.Context(), pgtest.New(b), db.Options{Logger: quiet, Registerer: prometheus.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	signer, err := token.Open(b.TempDir() + "/key")
	if err != nil {
		b.Fatal(err)
	}
	g, err := gate.New(b.Context(), gate.Options{Store: accessdb.New(pool), Groups: accessdb.New(pool), Signer: signer, Provider: provider, Logger: quiet, Registerer: prometheus.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	made, err := access.NewToken(access.Request{Name: "ann", Role: "read-only", Life: time.Hour}, access.Console, now)
	if err != nil {
		b.Fatal(err)
	}
	_, own, err := g.Create(b.Context(), made)
	if err != nil {
		b.Fatal(err)
	}
	person := func(id int) string {
		return oidctest.Sign(b, idp.Keys[0], oidctest.Claims{"iss": idp.Issuer, "aud": oidctest.ClientID, "sub": "u", "jti": id, "iat": now.Unix(), "exp": now.Unix() + 3600, "groups": []string{"everybody"}}, nil)
	}
	for name, text := range map[string]string{"own": own, "person": person(0)} {
		b.Run(name+"/cached", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := g.Authenticate(b.Context(), text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("own/signature", func(b *testing.B) {
		for b.Loop() {
			if _, err := signer.Read(own); err != nil {
				b.Fatal(err)
			}
		}
	})
	texts := make([]string, 200)
	for i := range texts {
		texts[i] = person(i + 1)
	}
	b.Run("person/first", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if i%len(texts) == 0 { // what was seen is forgotten
				b.StopTimer()
				if provider, err = oidc.New(c, quiet, prometheus.NewRegistry()); err != nil {
					b.Fatal(err)
				}
				if _, _, err := provider.Verify(b.Context(), person(0)); err != nil { // which reads the keys
					b.Fatal(err)
				}
				b.StartTimer()
			}
			if _, _, err := provider.Verify(b.Context(), texts[i%len(texts)]); err != nil {
				b.Fatal(err)
			}
		}
	})
}
