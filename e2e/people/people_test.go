package people

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access/oidc"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/oidctest"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
	"github.com/colonyfleet/colony/internal/tlstest"
)

var colonyBinary = flag.String("binary", "../../bin/colony", "the program that the tests run")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(pgtest.Main(m))
}

const patience = 2 * time.Minute

var accounts = map[string]oidctest.Claims{
	"u-ann": {"preferred_username": "ann", "groups": []string{"fleet-admins"}},
	"u-bob": {"preferred_username": "bob", "groups": []string{"everybody", "north-operators"}},
	"u-eve": {"preferred_username": "eve", "groups": []string{"marketing"}},
}

// A world is a CO as a process, with a provider.
type world struct {
	t       *testing.T
	program string
	idp     *oidctest.Provider
	url     string
	config  string // file of the CO's configuration
	ca      string // file with the authorities of the CO and the provider
	http    *http.Client
}

// start starts them, with TLS where that is wanted; ID tokens live so long.
func start(t *testing.T, life time.Duration, secure bool) *world {
	t.Helper()
	program, err := filepath.Abs(*colonyBinary)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: these tests run the built program: make build", err)
	}
	dir := t.TempDir()
	w := &world{t: t, program: program, idp: oidctest.Start(t, oidctest.Options{Accounts: accounts, Life: life, TLS: secure}), http: http.DefaultClient, config: filepath.Join(dir, "co.yaml")}
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.Git.Remote = filepath.Join(dir, "co"), pgtest.New(t), filepath.Join(dir, "deployments.git")
	o.HTTP, o.MQTT = freeport.Addr(t), freeport.Addr(t)
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	o.Import.Roots, o.Access.Required = []string{examples}, true
	w.url = "http://" + o.HTTP
	if secure {
		w.url = "https://" + o.HTTP
		w.secure(dir, &o.Access)
	}
	o.Access.OIDC = oidc.Config{
		CA: w.idp.CA, Issuer: w.idp.Issuer, ClientID: oidctest.ClientID, Scopes: []string{"openid", "profile", "groups", "offline_access"}, Roles: []oidc.Binding{
			{Group: "fleet-admins", Role: "admin"}, {Group: "everybody", Role: "read-only"}, {Group: "north-operators", Role: "operator", Sites: []string{"@north", "depot"}},
		},
	}
	b, err := configfile.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.config, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := git.InitBare(t.Context(), o.Git.Remote, "main"); err != nil {
		t.Fatal(err)
	}
	p := testproc.New(t, "co", filepath.Join(dir, "co.log"))
	p.Start(program, "co", "--config", w.config)
	t.Cleanup(p.Stop)
	testpart.Within(t, patience, "the CO is ready and knows its provider", func() error {
		if err := p.Running(); err != nil {
			t.Fatal(err)
		}
		resp, err := w.http.Get(w.url + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
	return w
}

// secure has the CO serve TLS, and the clients trust it and the provider.
func (w *world) secure(dir string, o *co.AccessOptions) {
	o.Certificate, o.Key, w.ca = filepath.Join(dir, "api.pem"), filepath.Join(dir, "api.key"), filepath.Join(dir, "ca.pem")
	roots := tlstest.Write(w.t, o.Certificate, o.Key, time.Now().Add(time.Hour))
	var authorities []byte
	for _, file := range []string{o.Certificate, w.idp.CA} {
		b, err := os.ReadFile(file)
		if err != nil {
			w.t.Fatal(err)
		}
		authorities = append(authorities, b...)
	}
	roots.AppendCertsFromPEM(authorities)
	if err := os.WriteFile(w.ca, authorities, 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.http = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	w.t.Cleanup(w.http.CloseIdleConnections)
}

// site creates one, of which no machine knows.
func (w *world) site(token, id string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+"/api/v1/sites", strings.NewReader(fmt.Sprintf(`{"id":%q}`, id)))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusCreated {
		w.t.Fatalf("site %s: %s %v", id, resp.Status, err)
	}
}

// A person types commands, with a directory of configurations of their own.
type person struct {
	*world
	account, dir string
}

func (w *world) person(account string) *person {
	return &person{w, account, w.t.TempDir()}
}

// file is that of the contexts.
func (p *person) file() string { return filepath.Join(p.dir, "colony", "contexts.yaml") }

func (p *person) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.program, args...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+p.dir, "COLONY_URL=", "COLONY_TOKEN=", "DISPLAY=", "WAYLAND_DISPLAY=")
	return cmd
}

// colony runs a command, and returns what it says and its exit code.
func (p *person) colony(args ...string) (string, int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	cmd := p.command(ctx, args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// says runs a command that has to succeed and to say something.
func (p *person) says(words string, args ...string) {
	p.t.Helper()
	if out, code := p.colony(args...); code != 0 || !strings.Contains(out, words) {
		p.t.Errorf("colony %s: exit code %d, want 0 and %q: %s", strings.Join(args, " "), code, words, out)
	}
}

var address = regexp.MustCompile(`https?://\S+`)

// login runs colony login, opens what it shows in a browser, and returns what it says and its exit code.
func (p *person) login(args ...string) (said string, code int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	cmd := p.command(ctx, args...)
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	var open string
	testpart.Eventually(p.t, "the command shows an address", func() bool {
		for _, a := range address.FindAllString(out.String(), -1) {
			if strings.HasPrefix(a, p.idp.Issuer) {
				open = a
			}
		}
		return open != "" && strings.HasSuffix(out.String(), "\n\n")
	})
	page := p.idp.Approve(open, p.account)
	_ = cmd.Wait() // the exit code says it
	return out.String() + page, cmd.ProcessState.ExitCode()
}

// output is what a command writes.
type output struct {
	mu   sync.Mutex // protects what follows
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// TestSignIn has people sign in by a device code and by a browser, and do what their groups allow.
func TestSignIn(t *testing.T) {
	t.Parallel()
	w := start(t, 10*time.Minute, true)
	ann, bob, eve := w.person("u-ann"), w.person("u-bob"), w.person("u-eve")
	if out, code := ann.login("login", "--url", w.url, "--ca", w.ca); code != 0 || !strings.Contains(out, "as oidc:ann (admin)") || !strings.Contains(out, "shows the code") || !strings.Contains(out, "renewed by commands") {
		t.Fatalf("%d %s", code, out)
	}
	info, err := os.Stat(ann.file())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info, err)
	}
	if out, code := bob.login("login", "--url", w.url, "--ca", w.ca, "--browser", "--context", "work"); code != 0 || !strings.Contains(out, "as oidc:bob (operator)") || !strings.Contains(out, "Signed in.") {
		t.Fatalf("%d %s", code, out)
	}
	// The way in while the provider is away: a token of the CO's own machine, from standard input.
	made, code := ann.colony("co", "token", "root", "--config", w.config)
	if code != 0 {
		t.Fatal(made)
	}
	text, _, _ := strings.Cut(made, "\n")
	root := w.person("")
	cmd := root.command(t.Context(), "login", "--url", w.url, "--ca", w.ca)
	cmd.Stdin = strings.NewReader(text + "\n")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "as root (admin)") {
		t.Errorf("%v %s", err, out)
	}
	w.site(text, "north-1")
	w.site(text, "south-1")
	ann.says("group north: north-*", "group", "set", "north", "--site", "north-*")
	ann.says("north-*", "group", "list")
	bob.says("south-1", "site", "list")
	bob.says("work", "context", "list")
	for _, tt := range []struct {
		want int
		said string
		args []string
	}{
		{0, "", []string{"site", "data", "set", "north-1", "-f", rules(t, "north-1")}},
		{1, "and not for site", []string{"site", "data", "set", "south-1", "-f", rules(t, "south-1")}},
		{1, "has the role operator", []string{"token", "list"}},
	} {
		if out, code := bob.colony(tt.args...); code != tt.want || !strings.Contains(out, tt.said) {
			t.Errorf("colony %s: %d %s, want %d %q", strings.Join(tt.args, " "), code, out, tt.want, tt.said)
		}
	}
	ann.says("oidc:bob", "audit", "--principal", "oidc:bob")
	ann.says(`"subject": "u-bob"`, "audit", "--principal", "oidc:bob", "-o", "json")
	ann.says("group north: removed", "group", "remove", "north")
	if out, code := bob.colony("site", "data", "delete", "north-1"); code != 1 || !strings.Contains(out, "and not for site") {
		t.Errorf("without the group: %d %s", code, out)
	}
	if out, code := eve.login("login", "--url", w.url, "--ca", w.ca, "--device"); code != 1 || !strings.Contains(out, "oidc:eve is signed in, and has no role in this Colony: ask an administrator") {
		t.Errorf("%d %s", code, out)
	}
	if _, err := os.Stat(eve.file()); err == nil {
		t.Error("a context is kept of somebody who may do nothing")
	}
	w.idp.Kill()
	root.says("north-1", "site", "list")
	ann.says("north-1", "site", "list")
	if out, code := eve.colony("login", "--url", w.url, "--ca", w.ca, "--device"); code != 1 || !strings.Contains(out, "does not answer as one") {
		t.Errorf("the provider is away: %d %s", code, out)
	}
}

// rules returns a file with a rule of a site's data.
func rules(t *testing.T, site string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "apiVersion: colony/v1\nkind: Site\nmetadata: {id: %s}\nspec: {data: {rules: [{name: a, direction: up, topics: ['a/#']}]}}\n", site), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestRenewal has tokens that end within a minute, so that each command renews them: many at once, and one that follows
// events beyond the end of its token. Logging out ends the sign-in at the provider, too.
func TestRenewal(t *testing.T) {
	t.Parallel()
	w := start(t, 10*time.Second, false)
	ann := w.person("u-ann")
	if out, code := ann.login("login", "--url", w.url); code != 0 {
		t.Fatalf("%d %s", code, out)
	}
	first := ann.refreshToken()
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if out, code := ann.colony("site", "list"); code != 0 {
				t.Errorf("%d %s", code, out)
			}
		})
	}
	all.Wait()
	if ann.refreshToken() == first {
		t.Error("the sign-in was not renewed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	follow := ann.command(ctx, "events", "--follow")
	var out output
	follow.Stdout, follow.Stderr = &out, &out
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the command renews what it shows when the stream ends
		was := ann.refreshToken()
		testpart.Eventually(t, "the command that follows events renews its token", func() bool { return ann.refreshToken() != was })
	}
	examples, err := filepath.Abs("../../examples/registry")
	if err != nil {
		t.Fatal(err)
	}
	ann.says("hello", "app", "import", examples)
	testpart.Eventually(t, "the event is shown", func() bool { return strings.Contains(out.String(), "app_imported") })
	cancel()
	_ = follow.Wait() // it was ended
	last := ann.refreshToken()
	ann.says("logged out of "+w.url, "logout")
	b, err := os.ReadFile(ann.file())
	if err != nil || strings.Contains(string(b), last) || strings.Contains(string(b), "token:") || !strings.Contains(string(b), w.url) {
		t.Errorf("the file of contexts after colony logout: %s %v", b, err)
	}
	resp, err := http.PostForm(w.idp.Issuer+"/token", url.Values{"client_id": {oidctest.ClientID}, "grant_type": {"refresh_token"}, "refresh_token": {last}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if said, _ := io.ReadAll(resp.Body); !strings.Contains(string(said), "invalid_grant") {
		t.Errorf("the provider still renews it: %s", said)
	}
	if out, code := ann.colony("site", "list"); code != 1 || !strings.Contains(out, "log in with colony login") {
		t.Errorf("%d %s", code, out)
	}
	// A sign-in that the provider has forgotten.
	if out, code := ann.login("login", "--context", strings.TrimPrefix(w.url, "http://")); code != 0 {
		t.Fatalf("%d %s", code, out)
	}
	w.idp.Kill()
	w.idp.Run()
	testpart.Within(t, patience, "the sign-in has ended", func() error {
		if out, code := ann.colony("site", "list"); code != 1 || !strings.Contains(out, "sign in again with colony login") {
			return fmt.Errorf("%d %s", code, out)
		}
		return nil
	})
}

var refresh = regexp.MustCompile(`refresh: (\S+)`)

// refreshToken is the one that a person's file has.
func (p *person) refreshToken() string {
	p.t.Helper()
	b, err := os.ReadFile(p.file())
	m := refresh.FindSubmatch(b)
	if err != nil || m == nil {
		p.t.Fatalf("no refresh token: %v\n%s", err, b)
	}
	return string(m[1])
}
