package link

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/lo/desired"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/sim"
)

const site = "plant"

var colonyBinary = flag.String("binary", "../../bin/colony", "the program that the tests run as CO and LO")

func TestMain(m *testing.M) {
	flag.Parse()
	if what := os.Getenv(childEnv); what != "" {
		os.Exit(child(what))
	}
	os.Exit(pgtest.Main(m))
}

// A rig is a CO and an LO as processes, with a database of their own. Nothing
// runs until startCO and startLO.
type rig struct {
	t       testing.TB
	dir     string
	program string // colony
	db      *pgxpool.Pool
	url     string // of the database
	co      *process
	lo      *process
	http    *http.Client

	coOptions co.Options
	loOptions lo.Options
}

// newRig prepares a rig. The LO connects to the CO without anything between, until
// the caller says otherwise.
func newRig(t testing.TB) *rig {
	t.Helper()
	program, err := filepath.Abs(*colonyBinary)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: these tests run the built program: make build", err)
	}
	r := &rig{
		t: t, dir: t.TempDir(), program: program, url: pgtest.NewOwn(t).URL(),
		http: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	if r.db, err = pgxpool.New(t.Context(), r.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.db.Close)
	remote := filepath.Join(r.dir, "deployments.git")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	ports := freeport.Ports(t, 4)
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	r.coOptions, r.loOptions = co.DefaultOptions(), lo.DefaultOptions()
	c, l := &r.coOptions, &r.loOptions
	c.StateDir, c.DatabaseURL, c.MQTT, c.HTTP, c.Git.Remote = filepath.Join(r.dir, "co"), r.url, addr(0), addr(1), remote
	c.PresenceGrace = 5 * time.Second
	l.Site, l.StateDir, l.MQTT, l.HTTP = site, filepath.Join(r.dir, "lo"), addr(2), addr(3)
	l.CO.MQTT, l.PresenceGrace = []string{"tcp://" + c.MQTT}, 5*time.Second
	r.co = newProcess(t, "co", "co", program, r.dir)
	r.lo = newProcess(t, "lo", "lo", program, r.dir)
	t.Cleanup(func() {
		r.lo.Stop()
		r.co.Stop()
	})
	return r
}

// startCO starts the CO and waits until it serves.
func (r *rig) startCO() {
	r.t.Helper()
	r.co.start(r.coOptions)
	r.serves(r.co, r.coOptions.HTTP)
}

// desire makes deployments what the LO wants on all of its nodes, before its
// start and after the CO's: by an epoch so far above the CO's that the CO goes on above it only where a person
// accepts that. The LO
// leaves it to the nodes to get over a failure.
func (r *rig) desire(names ...protocol.DeploymentName) {
	r.t.Helper()
	want := protocol.SiteDesired{V: protocol.Version, Site: site, Position: protocol.Position{Epoch: 2 * protocol.MaxEpochJump, Generation: 1 << 40}}
	for _, name := range names {
		spec := protocol.Marshal(&protocol.DeploymentSpec{
			V: protocol.Version, ID: string(name), Deployment: name, App: string(name), AppVersion: "1.0.0",
			Components: []protocol.Component{{Name: "main", Containers: []protocol.Container{{Name: "main", Image: "registry.example/" + string(name) + "@" + string(protocol.DigestOf(nil))}}}},
		})
		want.Deployments = append(want.Deployments, protocol.SiteEntry{
			Deployment: name, Digest: protocol.DigestOf(spec), Size: uint64(len(spec)), Spec: spec,
			Policy: protocol.Policy{Attempts: 1 << 20, BackoffMillis: uint32(time.Hour.Milliseconds())},
		})
	}
	d, err := desired.Open(desired.Options{Disk: disk.OS, Dir: filepath.Join(r.loOptions.StateDir, "desired"), Site: site, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	if adopted, err := d.Offer(r.t.Context(), protocol.Marshal(&want)); err != nil || !adopted {
		r.t.Fatalf("the LO's desired state is not taken: %t, %v", adopted, err)
	}
}

// startLO starts the LO and waits until nodes can connect.
func (r *rig) startLO() {
	r.t.Helper()
	r.lo.start(r.loOptions)
	r.serves(r.lo, r.loOptions.HTTP)
}

func (r *rig) serves(p *process, addr string) {
	r.t.Helper()
	eventually(r.t, time.Minute, p.Name()+" serves", func() error {
		if err := p.Running(); err != nil {
			r.t.Fatal(err)
		}
		resp, err := r.http.Get("http://" + addr + "/healthz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
}

// status is what the LO says of itself.
func (r *rig) status() (s lo.Status, err error) {
	resp, err := r.http.Get("http://" + r.loOptions.HTTP + "/status")
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// settled waits until the LO has acknowledged every report of a fleet.
func settled(t *testing.T, f *sim.Fleet) {
	t.Helper()
	eventually(t, time.Minute, "every report is acknowledged by the LO", func() error {
		if !f.Settled() {
			return fmt.Errorf("%+v", f.Stats())
		}
		return nil
	})
}

// fleet starts simulated nodes at the LO.
func (r *rig) fleet(o sim.Options) *sim.Fleet {
	r.t.Helper()
	o.Site, o.URL, o.Logger = site, "tcp://"+r.loOptions.MQTT, slog.New(slog.DiscardHandler)
	f, err := sim.New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	testpart.Start(r.t, f)
	return f
}

// query reads rows of the CO's database.
func query[T any](r *rig, sql string, args ...any) []T {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rows, err := r.db.Query(ctx, sql, args...)
	if err != nil {
		r.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// A process is a CO or an LO.
type process struct {
	*testproc.Process
	t      testing.TB
	before []string // words of a command that runs the program, such as nsenter
	args   []string // the program and its role
	config string   // path
}

// newProcess returns a process of a role, which does not run yet. Its files are in dir, by name.
func newProcess(t testing.TB, name, role, program, dir string) *process {
	t.Cleanup(func() { testproc.CheckLog(t, filepath.Join(dir, name+".log")) })
	return &process{
		Process: testproc.New(t, name, filepath.Join(dir, name+".log")), t: t,
		args: []string{program, role}, config: filepath.Join(dir, name+".yaml"),
	}
}

// start writes the configuration and runs the program with it.
func (p *process) start(options any) {
	p.t.Helper()
	b, err := configfile.Marshal(options)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.config, b, 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.Start(slices.Concat(p.before, p.args, []string{"--config", p.config, "--log-level", "warn"})...)
}

var errNotYet = errors.New("not yet")

// eventually waits until a check returns nil.
var eventually = testpart.Within
