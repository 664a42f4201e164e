// Package oidctest runs a real OpenID provider for tests: oidc-provider, as a process of Node.js.
package oidctest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
	"github.com/colonyfleet/colony/internal/tlstest"
)

// modules is where scripts/setup installs oidc-provider.
const modules = "/usr/local/lib/colony-test-peers/node_modules"

//go:embed provider.mjs
var script []byte

// What the provider has beside the options of Start.
const (
	// ClientID is a public client, with device codes, authorization codes and refresh tokens.
	ClientID = "colony"
	// Audience is the resource that access tokens of Robot are for.
	Audience = "urn:colony:api"
)

// Claims are those of an account.
type Claims map[string]any

// Options of a provider. The zero value has no account.
type Options struct {
	// Accounts are claims by subject, such as groups.
	Accounts map[string]Claims
	// Life of ID tokens. Default: 10 minutes.
	Life time.Duration
	// TLS has it serve https.
	TLS bool
}

// A Provider is the process. Its methods are for one goroutine at a time.
type Provider struct {
	// Issuer is its address.
	Issuer string
	// Keys are those that it publishes; it signs with the first one.
	Keys []jose.JSONWebKey
	// CA is the file with the authority of its certificate; "" without TLS.
	CA string

	t       testing.TB
	o       Options
	port    int
	config  string
	process *testproc.Process
	http    *http.Transport
}

// NewKey returns a key to sign with.
func NewKey(t testing.TB, id string) jose.JSONWebKey {
	t.Helper()
	key := testpart.Must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))
	return jose.JSONWebKey{Key: key, KeyID: id, Use: "sig", Algorithm: string(jose.RS256)}
}

// New returns a provider with one key that does not run yet.
func New(t testing.TB, o Options) *Provider {
	t.Helper()
	if _, err := os.Stat(filepath.Join(modules, "oidc-provider")); err != nil {
		t.Fatalf("%v: run scripts/setup --with-test-peers as root", err)
	}
	if o.Life == 0 {
		o.Life = 10 * time.Minute
	}
	dir, port := t.TempDir(), freeport.Ports(t, 1)[0]
	if err := os.WriteFile(filepath.Join(dir, "provider.mjs"), script, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &Provider{
		Issuer: fmt.Sprintf("http://127.0.0.1:%d", port), Keys: []jose.JSONWebKey{NewKey(t, "first")},
		t: t, o: o, port: port, config: filepath.Join(dir, "config.json"), process: testproc.New(t, "oidc-provider", filepath.Join(dir, "log")),
		http: &http.Transport{},
	}
	if o.TLS {
		p.CA, p.Issuer = filepath.Join(dir, "chain.pem"), strings.Replace(p.Issuer, "http:", "https:", 1)
		p.http.TLSClientConfig = &tls.Config{RootCAs: tlstest.Write(t, p.CA, p.key(), time.Now().Add(time.Hour)), MinVersion: tls.VersionTLS12}
	}
	t.Cleanup(p.http.CloseIdleConnections)
	t.Cleanup(p.process.Stop)
	return p
}

// Start returns a provider that runs.
func Start(t testing.TB, o Options) *Provider {
	t.Helper()
	p := New(t, o)
	p.Run()
	return p
}

// key is the file of the key of its certificate.
func (p *Provider) key() string { return filepath.Join(filepath.Dir(p.config), "key.pem") }

// Run starts the process with the keys of now, and returns once it serves.
func (p *Provider) Run() {
	p.t.Helper()
	b, err := json.Marshal(map[string]any{
		"issuer": p.Issuer, "port": p.port, "chain": p.CA, "key": p.key(), "jwks": jose.JSONWebKeySet{Keys: p.Keys}, "accounts": p.o.Accounts, "idTokenSeconds": int(p.o.Life / time.Second),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.config, b, 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.process.Start("node", filepath.Join(filepath.Dir(p.config), "provider.mjs"), modules, p.config)
	testpart.Eventually(p.t, "the provider serves", func() bool {
		if err := p.process.Running(); err != nil {
			p.t.Fatal(err)
		}
		resp, err := p.client().Get(p.Issuer + "/.well-known/openid-configuration")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	})
}

func (p *Provider) client() *http.Client { return &http.Client{Transport: p.http} }

// Kill ends the process; what it has issued, it forgets.
func (p *Provider) Kill() { p.process.Kill() }

// Sign returns a token of claims that a key signs, with headers beside alg and kid.
func Sign(t testing.TB, key jose.JSONWebKey, claims Claims, headers map[string]any) string {
	t.Helper()
	o := (&jose.SignerOptions{}).WithType("JWT")
	for name, v := range headers {
		o = o.WithHeader(jose.HeaderKey(name), v)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(key.Algorithm), Key: key}, o)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// IDToken signs an account in, by a device code, and returns its ID token.
func (p *Provider) IDToken(account string) string {
	p.t.Helper()
	var device struct {
		Code string `json:"device_code"`
		URI  string `json:"verification_uri_complete"`
	}
	p.post("/device/auth", url.Values{"client_id": {ClientID}, "scope": {"openid profile groups"}}, &device)
	p.Approve(device.URI, account)
	var tokens struct {
		ID string `json:"id_token"`
	}
	p.post("/token", url.Values{"client_id": {ClientID}, "grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {device.Code}}, &tokens)
	return tokens.ID
}

// Robot returns an access token for Audience of a program, which is of the group robots.
func (p *Provider) Robot() string {
	p.t.Helper()
	var tokens struct {
		Access string `json:"access_token"`
	}
	p.post("/token", url.Values{"client_id": {"robot"}, "client_secret": {"robots-only"}, "grant_type": {"client_credentials"}, "resource": {Audience}, "scope": {"fleet"}}, &tokens)
	return tokens.Access
}

func (p *Provider) post(path string, form url.Values, out any) {
	p.t.Helper()
	resp, err := p.client().PostForm(p.Issuer+path, form)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(b, out) != nil {
		p.t.Fatalf("%s: %s %s %v", path, resp.Status, b, err)
	}
}

// as names the account to the provider in each request.
type as struct {
	account string
	next    http.RoundTripper
}

// RoundTrip adds the header.
func (a as) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Test-Account", a.account)
	return a.next.RoundTrip(r)
}

var hidden = regexp.MustCompile(`name="(xsrf|user_code)"[^>]*value="([^"]*)"`)

// Approve plays the browser of a person that opens an address, signs in as an account and agrees. It returns what the
// last page said; an error fails the test. It may be called by any goroutine.
func (p *Provider) Approve(address, account string) string {
	p.t.Helper()
	page, err := p.approve(address, account)
	if err != nil {
		p.t.Errorf("sign in at %s: %v", address, err)
	}
	return page
}

func (p *Provider) approve(address, account string) (string, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return "", err
	}
	browser := &http.Client{Jar: jar, Transport: as{account, p.http}}
	at, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	code := at.Query().Get("user_code")
	resp, err := browser.Get(address)
	for range 4 {
		if err != nil {
			return "", err
		}
		page, readErr := io.ReadAll(resp.Body)
		if err := errors.Join(readErr, resp.Body.Close()); err != nil {
			return "", err
		}
		form := url.Values{"user_code": {code}, "confirm": {"yes"}}
		for _, field := range hidden.FindAllStringSubmatch(string(page), -1) {
			if field[2] != "" {
				form.Set(field[1], field[2])
			}
		}
		if !form.Has("xsrf") {
			if resp.StatusCode != http.StatusOK || strings.Contains(string(page), "error") {
				return "", fmt.Errorf("%s: %s\n%s", resp.Request.URL, resp.Status, page)
			}
			return string(page), nil
		}
		at.RawQuery = ""
		resp, err = browser.PostForm(at.String(), form)
	}
	return "", errors.New("it does not come to an end")
}
