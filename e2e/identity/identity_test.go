package identity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/client/clienttest"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/backup"
	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/en/state"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

func logger(t *testing.T, name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil)).With("tier", name)
}

// A fleet is a CO and an LO, which serve machines with certificates alone.
type fleet struct {
	t       *testing.T
	dir     string
	co      *co.CO
	lo      *lo.LO
	options co.Options // of the CO
	site    lo.Options
	stopCO  func()
	stopLO  func()
	apiBase string
	rootKey string // file of the root key of what the CO signs
}

func newFleet(t *testing.T, database string) *fleet {
	t.Helper()
	f, o := prepare(t, database)
	f.startCO(o)
	f.site = f.certifiedLO()
	f.startLO(f.site)
	f.write(f.site.Identity.TokenFile, f.token("join-tokens", map[string]any{}))
	return f
}

// prepare returns a fleet of which nothing runs yet, with the options of a CO that has a root.
func prepare(t *testing.T, database string) (*fleet, co.Options) {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir()}
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT, o.Git.Remote = filepath.Join(f.dir, "co"), database, "127.0.0.1:0", "127.0.0.1:0", filepath.Join(f.dir, "remote.git")
	o.Identity, o.Logger = co.IdentityOptions{Enrol: "127.0.0.1:0", MQTT: "127.0.0.1:0"}, logger(t, "co")
	if err := git.InitBare(t.Context(), o.Git.Remote, "main"); err != nil {
		t.Fatal(err)
	}
	files, err := store.Open(nil, store.Dir(o.StateDir))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := files.InitRoot(time.Now()); err != nil {
		t.Fatal(err)
	}
	o.Signing.Dir = filepath.Join(f.dir, "keys")
	if _, err := keys.Init(o.Signing.Dir); err != nil {
		t.Fatal(err)
	}
	f.rootKey = filepath.Join(o.Signing.Dir, keys.RootPublic)
	return f, o
}

// certifiedLO returns the options of an LO that enrols at the CO.
func (f *fleet) certifiedLO() lo.Options {
	l := lo.DefaultOptions()
	l.RootKeyFile = f.rootKey
	l.Site, l.StateDir, l.MQTT, l.HTTP, l.Logger = "plant1", filepath.Join(f.dir, "lo"), "127.0.0.1:0", "127.0.0.1:0", logger(f.t, "lo")
	l.CO.MQTT, l.CO.Enrol = []string{"tls://" + f.co.MachineAddr()}, []string{f.co.EnrolAddr()}
	l.Identity = lo.IdentityOptions{TokenFile: filepath.Join(f.dir, "lo.token"), Enrol: "127.0.0.1:0", MQTT: "127.0.0.1:0"}
	return l
}

// startLO starts an LO, which the nodes that are started later connect to.
func (f *fleet) startLO(l lo.Options) {
	f.t.Helper()
	var err error
	if f.lo, err = lo.New(l); err != nil {
		f.t.Fatal(err)
	}
	f.stopLO = testpart.Start(f.t, f.lo)
}

// startCO starts a CO.
func (f *fleet) startCO(o co.Options) {
	f.t.Helper()
	var err error
	if f.co, err = co.New(o); err != nil {
		f.t.Fatal(err)
	}
	f.options, f.stopCO = o, testpart.Start(f.t, f.co)
	f.apiBase = "http://" + f.co.HTTPAddr() + "/api/v1"
}

// source is a CO that is backed up, or restored into.
func (f *fleet) source(name, database string) backup.Source {
	s := backup.Source{DatabaseURL: database, StateDir: filepath.Join(f.dir, name), Remote: f.options.Git.Remote, Version: "1"}
	s.Root = store.At(nil, store.Dir(s.StateDir))
	return s
}

// known checks that the CO knows a node as online.
func (f *fleet) known(name string) func() error {
	return func() error {
		var n struct{ Online bool }
		if err := get(f.apiBase+"/nodes/plant1/"+name, &n); err != nil || !n.Online {
			return fmt.Errorf("online %v: %w", n.Online, err)
		}
		return nil
	}
}

func (f *fleet) write(path, text string) {
	f.t.Helper()
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// token makes a join token of the site by the API.
func (f *fleet) token(kind string, body map[string]any) string {
	f.t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := http.Post(f.apiBase+"/sites/plant1/"+kind, "application/json", bytes.NewReader(raw))
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	var out struct{ Token string }
	if err != nil || resp.StatusCode != http.StatusCreated || json.Unmarshal(answer, &out) != nil {
		f.t.Fatalf("make a token: %s %s %v", resp.Status, answer, err)
	}
	return out.Token
}

// node starts the agent of a node with a token, and returns what stops it.
func (f *fleet) node(name, token string) (stop func()) {
	f.t.Helper()
	return f.startEN(f.certifiedEN(name, token))
}

// certifiedEN returns the options of an agent that enrols at the LO with a token.
func (f *fleet) certifiedEN(name, token string) en.Options {
	f.t.Helper()
	o := en.DefaultOptions()
	o.Site, o.Node, o.StateDir, o.Logger, o.Runtime = "plant1", protocol.NodeID(name), f.t.TempDir(), logger(f.t, name), memory.New(memory.Options{})
	o.LO.MQTT, o.LO.Enrol = []string{"tls://" + f.lo.MachineAddr()}, []string{f.lo.EnrolAddr()}
	o.Identity.TokenFile, o.RootKeyFile = filepath.Join(f.t.TempDir(), "token"), f.rootKey
	f.write(o.Identity.TokenFile, token)
	return o
}

// startEN starts an agent.
func (f *fleet) startEN(o en.Options) (stop func()) {
	f.t.Helper()
	e, err := en.New(o)
	if err != nil {
		f.t.Fatal(err)
	}
	return testpart.Start(f.t, e)
}

// eventually waits until check returns nil.
func (f *fleet) eventually(what string, check func() error) {
	f.t.Helper()
	testpart.Within(f.t, patience, what, check)
}

// nodes returns the nodes that are online, as the LO says.
func (f *fleet) nodes() (map[string]bool, error) {
	var out struct {
		Nodes []struct {
			Node   string
			Online bool
		}
	}
	if err := get("http://"+f.lo.HTTPAddr()+"/status", &out); err != nil {
		return nil, err
	}
	online := map[string]bool{}
	for _, n := range out.Nodes {
		online[n.Node] = n.Online
	}
	return online, nil
}

func (f *fleet) online(name string) func() error {
	return func() error {
		all, err := f.nodes()
		if err == nil && !all[name] {
			err = fmt.Errorf("nodes %v", all)
		}
		return err
	}
}

func get(url string, out any) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// metric returns the lines of the LO's metrics that begin with a text.
func (f *fleet) metric(begin string) (lines []string) {
	f.t.Helper()
	resp, err := http.Get("http://" + f.lo.HTTPAddr() + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, begin) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// commit commits a file to the deployments repo.
func (f *fleet) commit(path, text string) {
	f.t.Helper()
	dir := filepath.Join(f.t.TempDir(), "clone")
	git := func(args ...string) {
		f.t.Helper()
		cmd := exec.CommandContext(f.t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			f.t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("clone", "-q", f.options.Git.Remote, dir)
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700); err != nil {
		f.t.Fatal(err)
	}
	f.write(filepath.Join(dir, path), text)
	git("-C", dir, "add", ".")
	git("-C", dir, "commit", "-q", "-m", "commit of a test")
	git("-C", dir, "push", "-q")
}

// followsSigned has a site desire something, stops an agent once it has followed its LO, and checks that this was by
// what the LO signed.
func (f *fleet) followsSigned(o en.Options, stop func()) {
	f.t.Helper()
	f.commit("sites/plant1/site.yaml", "apiVersion: colony/v1\nkind: Site\nmetadata:\n  id: plant1\nspec: {}\n")
	f.eventually("the node follows its LO", func() error {
		_, err := os.Stat(filepath.Join(o.StateDir, "trust.cbor"))
		return err
	})
	stop()
	s, held, err := state.Open(disk.OS, o.StateDir, nil, o.Logger)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		f.t.Error(err)
	}
	if !held.Trust.LOSigns {
		f.t.Error("the node has followed an LO that does not sign")
	}
}

// TestFleet enrols an LO at the CO and nodes at the LO, by tokens of the API, and sees them
// online at the CO. Then the CO is away: another node enrols, a second box with its name does
// not, and neither does a client without a certificate get in.
func TestFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t, pgtest.New(t))
	g1 := f.certifiedEN("g1", f.token("node-tokens", map[string]any{}))
	stopG1 := f.startEN(g1)
	shared := f.token("node-tokens", map[string]any{"uses": 3})
	f.eventually("g1 is online at the CO", f.known("g1"))
	f.node("g2", shared) // so that the LO has the token by now
	f.eventually("g2 is online", f.online("g2"))
	f.followsSigned(g1, stopG1)
	f.startEN(g1)
	f.eventually("g1 is online once more", f.online("g1"))

	f.stopCO()
	f.node("g3", shared)
	f.eventually("g3 is online without the CO", f.online("g3"))
	f.node("g1", shared)
	f.eventually("a second box g1 is refused", func() error {
		if got := f.metric(`colony_lo_enrolments_refused_total{code="name_taken"}`); len(got) == 0 {
			return fmt.Errorf("refused: %v", f.metric("colony_lo_enrolments_refused"))
		}
		return nil
	})
	if err := f.attempt(f.lo.MQTTAddr(), nil, "g1.plant1"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a client without a certificate as g1: %v", err)
	}
	if err := f.attempt(f.lo.MQTTAddr(), nil, "plc@plant1"); err != nil {
		t.Errorf("a client that is no part of Colony: %v", err)
	}
	h := f.certified("g4", shared)
	if err := f.attempt(f.lo.MachineAddr(), h, "g4.plant1"); err != nil {
		t.Errorf("g4: %v", err)
	}
	if err := f.attempt(f.lo.MachineAddr(), h, "g1.plant1"); err == nil {
		t.Error("g4 got in as g1")
	}
}

// certified enrols a machine that the test plays.
func (f *fleet) certified(node, token string) *identity.Holder {
	f.t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		f.t.Fatal(err)
	}
	parsed, err := identity.ParseToken(token)
	if err != nil {
		f.t.Fatal(err)
	}
	h := identity.NewHolder(identity.NewClock(time.Now, identity.Floor{}, nil))
	got, err := enrol.Join(f.t.Context(), enrol.Machine{
		Name: identity.OfNode("plant1", protocol.NodeID(node)), Server: identity.OfLO("plant1"), Addresses: []string{f.lo.EnrolAddr()}, Key: key, Clock: h.Clock(),
	}, parsed)
	if err != nil {
		f.t.Fatal(err)
	}
	h.Set(got.Machine)
	return h
}

// attempt connects once by a user name, by TLS where there is a certificate, and returns why
// it is refused.
func (f *fleet) attempt(addr string, h *identity.Holder, user string) error {
	f.t.Helper()
	o := client.Options{
		URLs: []string{"tcp://" + addr}, ClientID: user, Username: user,
		Subscriptions: []client.Subscription{{Filter: topic.ForTail(topic.Data, "plant1", "#"), QoS: 1}},
	}
	if h != nil {
		o.URLs, o.TLS = []string{"tls://" + addr}, h.ClientTLS(identity.OfLO("plant1"))
	}
	return clienttest.Attempt(f.t, o)
}

// TestRestoredCO restores a backup of the CO on another machine: the LO and the node, which have
// certificates of before, are online there, and the certificate is renewed.
func TestRestoredCO(t *testing.T) {
	t.Parallel()
	f := newFleet(t, pgtest.NewOwn(t).URL())
	f.node("g1", f.token("node-tokens", map[string]any{}))
	f.eventually("g1 is online at the CO", f.known("g1"))
	from, to := f.source("co", f.options.DatabaseURL), f.source("co-2", pgtest.NewOwn(t).URL())
	saved := filepath.Join(f.dir, "backup")
	if _, err := backup.Create(t.Context(), from, saved); err != nil {
		t.Fatal(err)
	}
	o := f.options
	o.Identity = co.IdentityOptions{Enrol: f.co.EnrolAddr(), MQTT: f.co.MachineAddr()}
	f.stopCO()
	if _, err := backup.Restore(t.Context(), to, saved, backup.Choices{}); err != nil {
		t.Fatal(err)
	}
	o.StateDir, o.DatabaseURL = to.StateDir, to.DatabaseURL
	f.startCO(o)
	f.eventually("g1 is online at the CO that was restored", f.known("g1"))

	files, err := store.Open(nil, store.Dir(filepath.Join(f.dir, "lo")))
	if err != nil {
		t.Fatal(err)
	}
	m := enrol.Machine{Name: identity.OfLO("plant1"), Server: identity.OfCO(), Addresses: []string{f.co.EnrolAddr()}, Clock: identity.NewClock(time.Now, identity.Floor{}, nil)}
	h := identity.NewHolder(m.Clock)
	c, err := files.Load(store.Machine)
	if err != nil {
		t.Fatal(err)
	}
	h.Set(c)
	m.Key = c.Key
	if m.Authority, err = files.Key(store.Issuer); err != nil {
		t.Fatal(err)
	}
	if _, err := enrol.Renew(t.Context(), m, h); err != nil {
		t.Errorf("the LO renews at the CO that was restored: %v", err)
	}
}
