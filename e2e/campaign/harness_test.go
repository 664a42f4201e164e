package campaign

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/engines"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

const (
	site = "plant"
	node = "gw-1"
	// patience bounds every wait for something that must happen.
	patience = 2 * time.Minute
)

// together is how many tests run at a time, whatever the number of processors: they wait for restarts more than they work.
const together = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", together); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(pgtest.Main(m))
}

// A release is a folder with the programs of one release.
type release string

// built is the release that make build leaves.
func built(t testing.TB) release {
	t.Helper()
	dir, err := filepath.Abs("../../bin")
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, "colony-en"))
	}
	if err != nil {
		t.Fatalf("%v: the campaigns run the built programs: make build", err)
	}
	return release(dir)
}

// A tier is one role of the fleet as a process.
type tier struct {
	*testproc.Process
	role    string // co, lo or en
	program []string
	config  string // path
	state   string
}

// start runs the program with its configuration.
func (p *tier) start() {
	p.Start(append(p.program[:len(p.program):len(p.program)], "--config", p.config)...)
}

// A colony is a CO, an LO and an agent with the parts that they need.
type colony struct {
	t          testing.TB
	dir        string
	db         *pgxpool.Pool
	daemon     *containerdtest.Daemon
	co, lo, en *tier
	http       string // of the CO
	loHTTP     string
	loMQTT     string
	port       int // of the sample on the gateway
	engine     engines.Options
	// admit gives a machine a join token, also in the place of one of its name; see certify.
	admit func(*tier)
}

// newColony prepares a fleet whose tiers are of the given releases. Nothing runs but
// PostgreSQL and containerd. The configurations have only keys that 0.2.0 knows.
func newColony(t testing.TB, central, local, agent release) *colony {
	t.Helper()
	c := &colony{t: t, daemon: containerdtest.Start(t), admit: func(*tier) {}}
	c.dir = filepath.Join(c.daemon.Dir, "f") // short, because Unix sockets have short names
	if err := os.MkdirAll(filepath.Join(c.dir, "apps"), 0o755); err != nil {
		t.Fatal(err)
	}
	url := pgtest.NewOwn(t).URL()
	var err error
	if c.db, err = pgxpool.New(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.db.Close)
	remote := filepath.Join(c.dir, "deployments.git")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	ports := freeport.Ports(t, 5)
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	c.http, c.loHTTP, c.loMQTT, c.port = addr(0), addr(1), addr(2), ports[4]
	c.co, c.lo, c.en = c.tier(central, "co"), c.tier(local, "lo"), c.tier(agent, "en")
	c.engine = engines.Default()
	c.engine.Address, c.engine.StateDir = c.daemon.Socket, filepath.Join(c.en.state, "engine")
	c.configure(c.co, "databaseURL: %q\nhttp: %s\nmqtt: %s\ngit: {remote: %s, interval: 500ms}\nimport: {roots: [%s]}\npresenceGrace: 5s\n",
		url, c.http, addr(3), remote, filepath.Join(c.dir, "apps"))
	c.configure(c.lo, "site: %s\nhttp: %s\nmqtt: %s\nco: {mqtt: [\"tcp://%s\"], http: \"http://%s\", keepAlive: 5s, maxBackoff: 500ms}\npresenceGrace: 5s\n",
		site, c.loHTTP, c.loMQTT, addr(3), c.http)
	c.configure(c.en, "site: %s\nnode: %s\nlabels: {role: gateway}\nlo: {mqtt: [\"tcp://%s\"], keepAlive: 5s}\nengine: {address: %s, mirror: \"http://%s\", mirrorOnly: true}\nminHealthy: 3s\n",
		site, node, c.loMQTT, c.daemon.Socket, c.loHTTP)
	t.Cleanup(c.end)
	return c
}

func (c *colony) tier(r release, role string) *tier {
	p := &tier{
		Process: testproc.New(c.t, role, filepath.Join(c.dir, role+".log")), role: role,
		config: filepath.Join(c.dir, role+".yaml"), state: filepath.Join(c.dir, role), program: []string{filepath.Join(string(r), "colony"), role},
	}
	if role == "en" {
		p.program = []string{filepath.Join(string(r), "colony-en")}
	}
	return p
}

func (c *colony) configure(p *tier, format string, args ...any) {
	c.t.Helper()
	text := fmt.Sprintf(format, args...) + fmt.Sprintf("stateDir: %s\n", p.state)
	if err := os.WriteFile(p.config, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// end stops the tiers and the containers.
func (c *colony) end() {
	for _, p := range []*tier{c.en, c.lo, c.co} {
		p.Kill()
		if c.t.Failed() {
			c.keep(p)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := engines.Open(c.engine, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Error(err)
		return
	}
	defer e.Close()
	list, err := e.List(ctx)
	if err != nil {
		c.t.Error(err)
	}
	var removed []protocol.DeploymentName
	for _, s := range list {
		removed = append(removed, s.ID.Deployment)
	}
	if err := errors.Join(e.Halt(ctx), e.Sweep(ctx, engine.SweepOptions{Removed: removed})); err != nil {
		c.t.Error(err)
	}
}

// keep copies the log of a tier to where it outlives the test.
func (c *colony) keep(p *tier) {
	b, err := os.ReadFile(p.Log())
	to := filepath.Join(os.TempDir(), "colony-campaign-"+p.role+".log")
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	c.t.Logf("the whole log of %s is in %s (%v)", p.role, to, err)
}

// up starts the fleet, and makes the samples known: hello in three versions, of which
// 1.2.0-exits fails, and keeper, which has a volume.
func (c *colony) up() {
	c.t.Helper()
	c.co.start()
	c.serves(c.co, c.http, "/readyz")
	c.admit(c.lo)
	c.lo.start()
	c.serves(c.lo, c.loHTTP, "/healthz")
	c.admit(c.en)
	c.en.start()
	c.eventually("the node is online", c.online)
	c.push()
	c.must("app", "import", filepath.Join(c.dir, "apps"))
}

// push stores the samples' images and components in the CO's registry.
func (c *colony) push() {
	c.t.Helper()
	reg := ociclient.New(ociclient.Options{Hosts: map[string]string{"registry.colony": c.http}})
	defer reg.Close()
	for name, program := range map[string]string{"hello": "../../bin/samples/hello", "faulty": "../../bin/samples/faulty"} {
		content, err := os.ReadFile(program)
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := reg.PushImage(c.t.Context(), "registry.colony/samples/"+name+":1.0.0", image.Image{
			Architecture: runtime.GOARCH, Entrypoint: []string{"/app"}, Files: map[string]archive.File{"/app": {Mode: 0o755, Content: content}},
		}); err != nil {
			c.t.Fatal(err)
		}
	}
	component := func(name, version string, files fstest.MapFS) {
		c.t.Helper()
		tgz, err := archive.Build(name, files)
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := reg.PushArchive(c.t.Context(), "oci://registry.colony/samples/compose/"+name, version, tgz); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0-exits"} {
		b, err := os.ReadFile(filepath.Join("../../examples/components", "hello-"+version, "compose.yaml"))
		if err != nil {
			c.t.Fatal(err)
		}
		component("hello", version, fstest.MapFS{"compose.yaml": {Data: b, Mode: 0o644}})
		c.copyApp("../../examples/registry/hello-"+version, "hello-"+version)
	}
	component("keeper", "1.0.0", fstest.MapFS{"compose.yaml": {Mode: 0o644, Data: []byte(
		"services:\n  keeper:\n    image: registry.colony/samples/hello:1.0.0\n    restart: always\n    volumes: ['data:/data']\nvolumes: {data: {}}\n")}})
	c.copyApp("../testdata/apps/keeper", "keeper")
}

func (c *colony) copyApp(from, name string) {
	c.t.Helper()
	to := filepath.Join(c.dir, "apps", name)
	if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil { // a second registry gets the same
		c.t.Fatal(err)
	}
}

// serves waits until a tier answers at a path.
func (c *colony) serves(p *tier, addr, path string) {
	c.t.Helper()
	c.eventually(p.role+" serves", func() error {
		if err := p.Running(); err != nil {
			c.t.Fatal(err)
		}
		return getJSON("http://"+addr+path, nil)
	})
}

var client = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// getJSON reads what a URL answers with 200 into v, unless v is nil.
func getJSON(url string, v any) error {
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, resp.Status, b)
	}
	if v == nil {
		return nil
	}
	return json.Unmarshal(b, v)
}

// get reads a path of the CO's API.
func (c *colony) get(path string, v any) error { return getJSON("http://"+c.http+"/api/v1"+path, v) }

// cli runs the command line of the CO's release.
func (c *colony) cli(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.co.program[0], args...)
	cmd.Env = append(os.Environ(), "COLONY_URL=http://"+c.http)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("colony %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func (c *colony) must(args ...string) string {
	c.t.Helper()
	out, err := c.cli(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *colony) online() error {
	var n fleet.Node
	err := c.get("/nodes/"+site+"/"+node, &n)
	if err == nil && (!n.Online || n.Inventory == nil) {
		err = errors.New("the node is offline")
	}
	return err
}

// runs returns nil where a deployment is INSTALLED at a version, at the CO and at the LO,
// and the site has adopted what the CO wants of it.
func (c *colony) runs(name, version string) error {
	var d fleet.Deployment
	if err := c.get("/deployments/"+site+"/"+name, &d); err != nil {
		return err
	}
	if d.State != lifecycle.Installed || len(d.Nodes) != 1 || d.Nodes[0].AppVersion != version || d.Nodes[0].State != lifecycle.Installed || !d.SiteOnline {
		return fmt.Errorf("%s is %s %q, on %+v", name, d.State, d.Problem, d.Nodes)
	}
	s, err := c.site()
	if err != nil {
		return err
	}
	for _, n := range s.Nodes {
		for _, held := range n.Deployments {
			if held.Deployment != protocol.DeploymentName(name) {
				continue
			}
			if !n.Online || !n.Reported || held.State != lifecycle.Installed || held.Digest != d.Digest || held.Unassigned {
				return fmt.Errorf("at the LO %s is %+v, want INSTALLED with %s; the node is %+v", name, held, d.Digest, n)
			}
			return nil
		}
	}
	return fmt.Errorf("the LO has no %s: %+v", name, s.Nodes)
}

// site returns what the LO says of itself and its nodes.
func (c *colony) site() (s lo.Status, err error) {
	return s, getJSON("http://"+c.loHTTP+"/status", &s)
}

// greets returns nil where the sample answers with a text.
func (c *colony) greets(want string) error {
	resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", c.port))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && !bytes.Contains(b, []byte(want)) {
		err = fmt.Errorf("the sample says %q, want %q", b, want)
	}
	return err
}

// query reads one number from the CO's database.
func (c *colony) query(sql string, args ...any) (n int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rows, err := c.db.Query(ctx, sql, args...)
	if err != nil {
		return 0, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
}

// eventually waits until check returns nil.
func (c *colony) eventually(what string, check func() error) {
	c.t.Helper()
	testpart.Within(c.t, patience, what, check)
}
