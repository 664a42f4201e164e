package co_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/access/token"
)

// tokenOf makes a token as on the CO's own machine.
func (b *bench) tokenOf(name string, role access.Role, life time.Duration) (id, text string) {
	b.t.Helper()
	t, text, err := co.NewAccessToken(b.t.Context(), b.options, access.Request{Name: name, Role: string(role), Life: life})
	if err != nil {
		b.t.Fatal(err)
	}
	return t.ID, text
}

// revoke revokes a token, with the token text.
func (b *bench) revoke(id, text string) {
	b.t.Helper()
	if status, said := b.ask(http.MethodDelete, "/api/v1/tokens/"+id, text, ""); status != http.StatusNoContent {
		b.t.Fatalf("revoke: %d %s", status, said)
	}
}

// ask sends a request with a token, and returns the status and the body.
func (b *bench) ask(method, path, text, body string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, "http://"+b.co.HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if text != "" {
		req.Header.Set("Authorization", "Bearer "+text)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Content-Security-Policy") == "" {
		b.t.Errorf("%s %s: a browser may show it as a page: %v", method, path, resp.Header)
	}
	if resp.StatusCode == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") == "" {
		b.t.Errorf("%s %s: no WWW-Authenticate", method, path)
	}
	return resp.StatusCode, string(said)
}

var inBraces = regexp.MustCompile(`\{[a-z]+\}`)

// TestAccess plays each operation with each role, and with whatever is no token that counts.
func TestAccess(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	texts := map[access.Role]string{}
	for _, r := range access.Roles() {
		_, texts[r] = b.tokenOf("who-"+string(r), r, time.Hour)
	}
	id, revoked := b.tokenOf("leaver", access.Admin, time.Hour)
	b.revoke(id, texts[access.Admin])
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := token.New(key).Text(access.Token{ID: id, Name: "x", CreatedAt: time.Now(), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]string{"nobody": "", "revoked": revoked, "foreign": foreign, "nonsense": "x.y.z"}
	cases := 0
	for need, routes := range access.Operations() {
		for _, route := range routes {
			method, path, _ := strings.Cut(route, " ")
			path = inBraces.ReplaceAllString(path, "none")
			for who, text := range refused {
				status, said := b.ask(method, path, text, `{"none":1}`)
				open := need == access.Open || route == "GET /api/v1/specs/{digest}" // sites prove nothing here
				if want := status == http.StatusUnauthorized; want == open {
					t.Errorf("%s as %s: %d %s", route, who, status, said)
				}
				if strings.Contains(said, b.co.HTTPAddr()) || strings.Contains(said, "dev") {
					t.Errorf("%s as %s says too much: %s", route, who, said)
				}
				cases++
			}
			for role, text := range texts {
				status, said := b.ask(method, path, text, `{"none":1}`)
				if allowed := status != http.StatusForbidden && status != http.StatusUnauthorized; allowed != role.Has(need) {
					t.Errorf("%s as %s, which needs %q: %d %s", route, role, need, status, said)
				}
				cases++
			}
		}
	}
	t.Logf("%d cases", cases)
}

// TestDeviceAccountsNeedAnAdmin has an operator write the whole file of a site: the rules in it, and not the accounts.
func TestDeviceAccountsNeedAnAdmin(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("ann", access.Admin, time.Hour)
	_, operator := b.tokenOf("op", access.Operator, time.Hour)
	if status, said := b.ask(http.MethodPost, "/api/v1/sites", admin, `{"id":"plant"}`); status != http.StatusCreated {
		t.Fatalf("%d %s", status, said)
	}
	document := func(spec string) string {
		body, err := json.Marshal(map[string]string{"document": "apiVersion: colony/v1\nkind: Site\nmetadata: {id: plant}\nspec: " + spec})
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	const rule = `data: {rules: [{name: a, direction: up, topics: ['a/#']}]}`
	const proof = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	const device = `broker: {devices: [{user: plc, publish: ['#'], password: {sha256: '` + proof + `'}}]}`
	for _, tt := range []struct {
		who, spec string
		want      int
	}{
		{operator, "{" + rule + "}", http.StatusOK},
		{operator, "{" + rule + ", " + device + "}", http.StatusForbidden},
		{admin, "{" + rule + ", " + device + "}", http.StatusOK},
		{operator, "{" + device + "}", http.StatusOK},
		{operator, "{" + rule + "}", http.StatusForbidden},
		{operator, "{" + strings.Replace(device, proof, "withheld-1", 1) + ", " + rule + "}", http.StatusOK},
		{operator, "{" + strings.Replace(device, proof, "withheld-2", 1) + "}", http.StatusUnprocessableEntity},
	} {
		if status, said := b.ask(http.MethodPut, "/api/v1/sites/plant/data-rules", tt.who, document(tt.spec)); status != tt.want {
			t.Errorf("%s: %d %s, want %d", tt.spec, status, said, tt.want)
		}
	}
	_, reader := b.tokenOf("wall", access.ReadOnly, time.Hour)
	for who, want := range map[string]bool{reader: false, operator: false, admin: true} {
		for _, path := range []string{"devices", "data-rules"} {
			if status, said := b.ask(http.MethodGet, "/api/v1/sites/plant/"+path, who, ""); status != http.StatusOK || strings.Contains(said, proof) != want {
				t.Errorf("%s: the proof of the password is shown: %v, want %v: %d %s", path, !want, want, status, said)
			}
		}
	}
}

// TestTokenEndsStream has an event stream open whose token is revoked: it ends, and other streams do not.
func TestTokenEndsStream(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("ann", access.Admin, time.Hour)
	id, text := b.tokenOf("wall", access.ReadOnly, time.Hour)
	ended := make(chan error, 1)
	stream := func(ctx context.Context, text string, ended chan<- error) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.co.HTTPAddr()+"/api/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Authorization", "Bearer "+text)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		go func() {
			_, err := io.Copy(io.Discard, bufio.NewReader(resp.Body))
			ended <- err
		}()
	}
	stream(t.Context(), text, ended)
	others, cancel := context.WithCancel(t.Context())
	defer cancel()
	goesOn := make(chan error, 1)
	stream(others, admin, goesOn)
	if status, said := b.ask(http.MethodGet, "/api%2fv1%2fevents", text, ""); status != http.StatusNotFound {
		t.Errorf("another spelling of the path: %d %s", status, said)
	}
	b.revoke(id, admin)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the stream goes on")
	}
	select {
	case err := <-goesOn:
		t.Fatalf("the other stream ended, too: %v", err)
	default:
	}
}

// TestRolesOfConfiguration has a token with a role of the configuration.
func TestRolesOfConfiguration(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) {
		o.Access.Required = true
		o.Access.Roles = []access.RoleConfig{{Name: "auditor", Permissions: []access.Permission{access.ReadAudit}}}
	})
	_, admin := b.tokenOf("root", access.Admin, time.Hour)
	status, said := b.ask(http.MethodPost, "/api/v1/tokens", admin, `{"name":"ann","role":"auditor"}`)
	var made struct{ Token string }
	if err := json.Unmarshal([]byte(said), &made); err != nil || status != http.StatusCreated {
		t.Fatalf("%d %s: %v", status, said, err)
	}
	for path, want := range map[string]int{"/api/v1/audit": http.StatusOK, "/api/v1/principal": http.StatusOK, "/api/v1/sites": http.StatusForbidden, "/api/v1/tokens": http.StatusForbidden} {
		if status, said := b.ask(http.MethodGet, path, made.Token, ""); status != want {
			t.Errorf("%s: %d %s, want %d", path, status, said, want)
		}
	}
	if status, said := b.ask(http.MethodPost, "/api/v1/tokens", admin, `{"name":"ann","role":"king"}`); status != http.StatusUnprocessableEntity || !strings.Contains(said, "want one of read-only, operator, admin, auditor") {
		t.Errorf("%d %s", status, said)
	}
	o := identified(t)
	o.Access.Roles = []access.RoleConfig{{Name: "admin"}}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), `access.roles[0].name "admin": that role is always there`) {
		t.Error(err)
	}
}

// TestTokens makes tokens by the API: each change that is made with one names it in the deployments repo, its
// use is recorded, and a registry takes it as a password.
func TestTokens(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("ann", access.Admin, time.Hour)
	var made struct{ ID, Token, Name, CreatedBy string }
	status, said := b.ask(http.MethodPost, "/api/v1/tokens", admin, `{"name":"ci@plant","role":"operator","seconds":3600}`)
	if err := json.Unmarshal([]byte(said), &made); err != nil || status != http.StatusCreated || made.Name != "ci@plant" || made.CreatedBy != "ann" {
		t.Fatalf("%d %s", status, said)
	}
	for body, words := range map[string]string{
		`{"name":"Ann!","role":"admin"}`: "lower-case", `{"name":"x","role":"king"}`: "read-only", `{"name":"x","role":"admin","seconds":5}`: "a life of", `{"name":"x","role":"admin","seconds":-1}`: "a life of",
		`{"name":"x","role":"admin","seconds":9223372036854775807}`: "a life of",
	} {
		if status, said := b.ask(http.MethodPost, "/api/v1/tokens", admin, body); status != http.StatusUnprocessableEntity || !strings.Contains(said, words) {
			t.Errorf("%s: %d %s", body, status, said)
		}
	}
	if status, said := b.ask(http.MethodPost, "/api/v1/sites", admin, `{"id":"plant"}`); status != http.StatusCreated {
		t.Fatalf("%d %s", status, said)
	}
	status, said = b.ask(http.MethodPut, "/api/v1/sites/plant/data-rules", made.Token, `{"rules":[{"name":"a","direction":"up","topics":["a/#"]}]}`)
	if status >= 300 {
		t.Fatalf("%d %s", status, said)
	}
	log, err := exec.CommandContext(t.Context(), "git", "-C", b.remote, "log", "-1", "--format=%(trailers:key=Colony-Principal,valueonly)", "main").Output()
	if err != nil || strings.TrimSpace(string(log)) != "ci@plant" {
		t.Errorf("the commit is by %q, %v", log, err)
	}
	if status, said := b.ask(http.MethodGet, "/api/v1/principal", made.Token, ""); status != http.StatusOK || !strings.Contains(said, `"name":"ci@plant"`) {
		t.Errorf("%d %s", status, said)
	}
	for _, tt := range []struct {
		method, path, password string
		want                   int
	}{
		{http.MethodGet, "/v2/", "", http.StatusUnauthorized},
		{http.MethodGet, "/v2/", made.Token, http.StatusOK},
		{http.MethodGet, "/v2/a/tags/list", "", http.StatusNotFound},
		{http.MethodPost, "/v2/a/blobs/uploads/", "", http.StatusUnauthorized},
		{http.MethodPost, "/v2/a/blobs/uploads/", made.Token, http.StatusAccepted},
		{http.MethodGet, "/api/v1/status", made.Token, http.StatusUnauthorized}, // a browser sends passwords by itself
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://"+b.co.HTTPAddr()+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.password != "" {
			req.SetBasicAuth("colony", tt.password)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != tt.want {
			t.Errorf("%s %s: %s, want %d", tt.method, tt.path, resp.Status, tt.want)
		}
		if challenge := resp.Header.Get("WWW-Authenticate"); strings.HasPrefix(tt.path, "/v2/") && tt.want == http.StatusUnauthorized && !strings.HasPrefix(challenge, "Basic") {
			t.Errorf("%s %s: challenge %q", tt.method, tt.path, challenge)
		}
	}
}
