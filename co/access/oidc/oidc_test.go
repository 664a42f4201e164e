package oidc

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/internal/oidctest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// A log is what a provider has written.
type log struct {
	mu   sync.Mutex // protects what follows
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

var accounts = map[string]oidctest.Claims{
	"u-ann": {"preferred_username": "ann@plant.example", "groups": []string{"north-operators", "everybody"}},
	"u-eve": {"preferred_username": "eve", "groups": []string{"marketing"}},
}

func config(issuer string) Config {
	return Config{
		Issuer: issuer, ClientID: oidctest.ClientID, Audience: oidctest.Audience, Refresh: time.Second,
		Roles: []Binding{{"everybody", "read-only", nil}, {"north-operators", "operator", []string{"north-*", "depot"}}, {"robots", "operator", []string{"lab"}}},
	}
}

// start returns a provider that follows the keys of an issuer until the test ends.
func start(t testing.TB, c Config) (*Provider, *prometheus.Registry, *log) {
	t.Helper()
	if err := c.Validate(nil); err != nil {
		t.Fatal(err)
	}
	l, r := &log{}, prometheus.NewRegistry()
	p, err := New(c, slog.New(slog.NewTextHandler(l, nil)), r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return p, r, l
}

// good are the claims of an ID token that counts.
func good(issuer string) oidctest.Claims {
	now := time.Now().Unix()
	return oidctest.Claims{"iss": issuer, "aud": oidctest.ClientID, "sub": "u-x", "iat": now, "exp": now + 600, "groups": []string{"everybody"}, "preferred_username": "x"}
}

func with(c oidctest.Claims, name string, v any) oidctest.Claims {
	out := oidctest.Claims{}
	for k, each := range c {
		out[k] = each
	}
	out[name] = v
	if v == nil {
		delete(out, name)
	}
	return out
}

// raw returns a token of claims with a header and a signature of one's own.
func raw(t *testing.T, header, claims map[string]any, sign func(input string) []byte) string {
	t.Helper()
	part := func(v any) string {
		return base64.RawURLEncoding.EncodeToString(testpart.Must[[]byte](t)(json.Marshal(v)))
	}
	input := part(header) + "." + part(claims)
	return input + "." + base64.RawURLEncoding.EncodeToString(sign(input))
}

// TestRealTokens has a person and a program of a real provider.
func TestRealTokens(t *testing.T) {
	t.Parallel()
	idp := oidctest.Start(t, oidctest.Options{Accounts: accounts})
	p, _, l := start(t, config(idp.Issuer))
	text := idp.IDToken("u-ann")
	ann, theirs, err := p.Verify(t.Context(), text)
	if err != nil || !theirs {
		t.Fatal(theirs, err)
	}
	if ann.Name != "oidc:ann@plant.example" || ann.Subject != "u-ann" || ann.Issuer != idp.Issuer || ann.Token == "" || time.Until(ann.Expires) > 11*time.Minute || !p.Holds(ann) {
		t.Errorf("%+v", ann)
	}
	for _, tt := range []struct {
		need    access.Need
		allowed bool
	}{
		{access.Need{Permission: access.WriteDeployments, Reach: access.OneSite, Site: "north-1"}, true},
		{access.Need{Permission: access.WriteDeployments, Reach: access.OneSite, Site: "south"}, false},
		{access.Need{Permission: access.ReadFleet, Reach: access.OneSite, Site: "south"}, true},
		{access.Need{Permission: access.ReadFleet, Reach: access.WholeFleet}, true},
		{access.Need{Permission: access.WriteMachines, Reach: access.OneSite, Site: "north-1"}, false},
	} {
		if err := ann.Allows(tt.need); (err == nil) != tt.allowed {
			t.Errorf("%+v: %v", tt.need, err)
		}
	}
	again, _, err := p.Verify(t.Context(), text)
	if err != nil || again.Token != ann.Token {
		t.Errorf("again: %+v %v", again, err)
	}
	robot, _, err := p.Verify(t.Context(), idp.Robot())
	if err != nil || robot.Subject != "robot" || robot.Name != "oidc:robot" || robot.Role != access.Operator || !slices.Equal(robot.Sites, []string{"lab"}) {
		t.Errorf("a program: %+v %v", robot, err)
	}
	eve, _, err := p.Verify(t.Context(), idp.IDToken("u-eve"))
	if err != nil || eve.Role != "" {
		t.Fatalf("%+v %v", eve, err)
	}
	if err := eve.Allows(access.Need{Permission: access.Authenticated, Reach: access.Picked}); err == nil || !strings.Contains(err.Error(), "ask an administrator") || strings.Contains(err.Error(), "marketing") {
		t.Error(err)
	}
	if !strings.Contains(l.String(), "marketing") {
		t.Errorf("the log does not say which groups a person without a role has:\n%s", l)
	}
}

// TestRefusedTokens shows what does not count, signed with the provider's own key where an attacker could have that.
func TestRefusedTokens(t *testing.T) {
	t.Parallel()
	idp := oidctest.Start(t, oidctest.Options{Accounts: accounts})
	p, _, l := start(t, config(idp.Issuer))
	own, ok := idp.Keys[0].Key.(*rsa.PrivateKey)
	if !ok {
		t.Fatal("no RSA key")
	}
	claims := good(idp.Issuer)
	now := time.Now().Unix()
	mac := func(secret []byte) func(string) []byte {
		return func(input string) []byte {
			h := hmac.New(sha256.New, secret)
			h.Write([]byte(input))
			return h.Sum(nil)
		}
	}
	der, err := x509.MarshalPKIXPublicKey(&own.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	foreign := oidctest.NewKey(t, "first") // another key of the same name
	sign := func(c oidctest.Claims) string { return oidctest.Sign(t, idp.Keys[0], c, nil) }
	unsigned := func(string) []byte { return nil }
	broken := sign(claims)
	broken = broken[:len(broken)-6] + "AAAAAA"
	const refused = "not one that counts"
	for name, tt := range map[string]struct{ text, shown, logged string }{
		"none":                  {raw(t, map[string]any{"alg": "none"}, claims, unsigned), refused, "none"},
		"None":                  {raw(t, map[string]any{"alg": "None", "kid": "first"}, claims, unsigned), refused, "None"},
		"a public key as HMAC":  {raw(t, map[string]any{"alg": "HS256", "kid": "first"}, claims, mac(public)), refused, "HS256"},
		"a DER key as HMAC":     {raw(t, map[string]any{"alg": "HS256", "kid": "first"}, claims, mac(der)), refused, "HS256"},
		"another algorithm":     {oidctest.Sign(t, jose.JSONWebKey{Key: own, KeyID: "first", Algorithm: "RS512"}, claims, nil), refused, "no key"},
		"a foreign key":         {oidctest.Sign(t, foreign, claims, nil), refused, "no key"},
		"of another client":     {oidctest.Sign(t, idp.Keys[0], claims, map[string]any{"typ": "at+jwt"}), refused, "want the clientID"},
		"an unknown key":        {oidctest.Sign(t, oidctest.NewKey(t, "second"), claims, nil), refused, "no key"},
		"a key in the header":   {oidctest.Sign(t, foreign, claims, map[string]any{"jwk": foreign.Public(), "jku": "http://127.0.0.1:1/keys"}), refused, "no key"},
		"a damaged signature":   {broken, refused, "no key"},
		"an extension":          {oidctest.Sign(t, idp.Keys[0], claims, map[string]any{"crit": []string{"exp"}, "exp": 1}), refused, ""},
		"another audience":      {sign(with(claims, "aud", "shop")), refused, "shop"},
		"no audience":           {sign(with(claims, "aud", nil)), refused, "the token is for"},
		"another client's":      {sign(with(with(claims, "aud", []string{oidctest.ClientID, "shop"}), "azp", "shop")), refused, "made for the client"},
		"who was logged out":    {oidctest.Sign(t, idp.Keys[0], claims, map[string]any{"typ": "logout+jwt"}), refused, "logout+jwt"},
		"an event":              {sign(with(claims, "events", map[string]any{"http://schemas.openid.net/event/backchannel-logout": map[string]any{}})), refused, "reports an event"},
		"expired":               {sign(with(claims, "exp", now-1)), "has ended", "has ended"},
		"expired and foreign":   {oidctest.Sign(t, foreign, with(claims, "exp", now-1), nil), refused, "no key"},
		"expired and another's": {sign(with(with(claims, "exp", now-1), "aud", "shop")), refused, "shop"},
		"made long ago":         {sign(with(with(claims, "iat", now-90000), "exp", now+90000)), "has ended", "has ended"},
		"made in the future":    {sign(with(with(claims, "iat", now+600), "exp", now+1200)), "clock of the provider", "from"},
		"not yet":               {sign(with(claims, "nbf", now+600)), "clock of the provider", "from"},
		"without an end":        {sign(with(claims, "exp", nil)), refused, "when it ends"},
		"without a beginning":   {sign(with(claims, "iat", nil)), refused, "when it was made"},
		"without a subject":     {sign(with(claims, "sub", nil)), refused, "subject"},
		"a long subject":        {sign(with(claims, "sub", strings.Repeat("x", 300))), refused, "300 bytes"},
	} {
		who, theirs, err := p.Verify(t.Context(), tt.text)
		if !theirs || protocol.KindOf(err) != protocol.Denied || !strings.Contains(err.Error(), tt.shown) || who.Name != "" {
			t.Errorf("%s: %v %v %+v", name, theirs, err, who)
		}
		for _, secret := range []string{"shop", idp.Issuer, `"` + oidctest.ClientID, "first", "HS256"} {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the refusal says %q: %v", name, secret, err)
			}
		}
		if _, err := p.verify(t.Context(), tt.text); err == nil || !strings.Contains(err.Error(), tt.logged) {
			t.Errorf("%s: the log says %v, want %q", name, err, tt.logged)
		}
	}
	if !strings.Contains(l.String(), "a token of the OpenID provider is refused") {
		t.Error("the log has no line about what was refused")
	}
	for name, text := range map[string]string{
		"nothing": "", "no JWT": "a.b", "no JSON": "a.!.c", "long": strings.Repeat("x", 1<<20),
		"another issuer":       sign(with(claims, "iss", "https://login.example")),
		"another issuer's end": sign(with(claims, "iss", idp.Issuer+"/")), "no issuer": sign(with(claims, "iss", nil)),
	} {
		if who, theirs, err := p.Verify(t.Context(), text); theirs || err != nil || who.Name != "" {
			t.Errorf("%s: %v %v %+v", name, theirs, err, who)
		}
	}
	// The honest ones beside them.
	for name, text := range map[string]string{
		"as it is": sign(claims), "an access token": oidctest.Sign(t, idp.Keys[0], with(claims, "aud", oidctest.Audience), map[string]any{"typ": "at+jwt"}),
		"several audiences": sign(with(with(claims, "aud", []string{"shop", oidctest.ClientID}), "azp", oidctest.ClientID)),
		"a clock ahead":     sign(with(claims, "nbf", now+30)),
	} {
		if who, _, err := p.Verify(t.Context(), text); err != nil || who.Role != access.ReadOnly {
			t.Errorf("%s: %+v %v", name, who, err)
		}
	}
}

// TestRotation has the provider take another key, and withdraw the first one.
func TestRotation(t *testing.T) {
	t.Parallel()
	idp := oidctest.Start(t, oidctest.Options{Accounts: accounts})
	p, _, _ := start(t, config(idp.Issuer))
	first := idp.IDToken("u-ann")
	ann, _, err := p.Verify(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	idp.Kill()
	idp.Keys = append([]jose.JSONWebKey{oidctest.NewKey(t, "second")}, idp.Keys...)
	idp.Run()
	second := idp.IDToken("u-ann")
	testpart.Eventually(t, "the new key counts", func() bool {
		_, _, err := p.Verify(t.Context(), second)
		return err == nil
	})
	if _, _, err := p.Verify(t.Context(), first); err != nil || !p.Holds(ann) {
		t.Errorf("the key of before does not count any more, and the provider has it: %v", err)
	}
	idp.Kill()
	idp.Keys = idp.Keys[:1]
	idp.Run()
	testpart.Eventually(t, "the key that was withdrawn does not count any more", func() bool {
		_, _, err := p.Verify(t.Context(), first)
		return protocol.KindOf(err) == protocol.Denied && !p.Holds(ann)
	})
	if _, _, err := p.Verify(t.Context(), second); err != nil {
		t.Error(err)
	}
}

// TestProviderAway has the provider be away at the start, and later.
func TestProviderAway(t *testing.T) {
	t.Parallel()
	idp := oidctest.New(t, oidctest.Options{Accounts: accounts})
	p, r, l := start(t, config(idp.Issuer))
	up := func() float64 {
		families, err := r.Gather()
		if err != nil || len(families) != 1 || families[0].GetName() != "colony_co_oidc_up" {
			t.Fatal(families, err)
		}
		return families[0].GetMetric()[0].GetGauge().GetValue()
	}
	text := oidctest.Sign(t, idp.Keys[0], good(idp.Issuer), nil)
	if _, theirs, err := p.Verify(t.Context(), text); !theirs || protocol.KindOf(err) != protocol.Unavailable || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("before the provider was there: %v %v", theirs, err)
	}
	testpart.Eventually(t, "the log says that the provider is away", func() bool { return strings.Contains(l.String(), "connection refused") })
	if up() != 0 {
		t.Error("the provider is up")
	}
	idp.Run()
	testpart.Eventually(t, "the provider's keys are read", func() bool { return up() == 1 })
	if _, _, err := p.Verify(t.Context(), text); err != nil {
		t.Error(err)
	}
	idp.Kill()
	testpart.Eventually(t, "the provider is away", func() bool { return up() == 0 })
	other := oidctest.Sign(t, idp.Keys[0], with(good(idp.Issuer), "sub", "u-y"), nil)
	for _, each := range []string{text, other} {
		if who, _, err := p.Verify(t.Context(), each); err != nil || !p.Holds(who) {
			t.Errorf("the known key does not count while the provider is away: %v", err)
		}
	}
}

// TestBounded verifies more tokens than are kept.
func TestBounded(t *testing.T) {
	t.Parallel()
	idp := oidctest.Start(t, oidctest.Options{})
	p, _, _ := start(t, config(idp.Issuer))
	claims := good(idp.Issuer)
	for i := range mostKnown + 10 {
		if _, _, err := p.Verify(t.Context(), oidctest.Sign(t, idp.Keys[0], with(claims, "jti", i), nil)); err != nil {
			t.Fatal(err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.known); n == 0 || n > mostKnown {
		t.Errorf("%d tokens are kept", n)
	}
}
