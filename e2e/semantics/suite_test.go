// Package semantics runs each Compose key that Colony supports on real containers, through
// the compiler of the CO and the agent of a node, and shows that what is seen there is the
// work of the key: without it, the same check fails.
package semantics

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/en/agent"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/engines"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/en/probe"
	"github.com/colonyfleet/colony/en/state"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// patience bounds every wait for something that must happen.
const patience = 2 * time.Minute

// A node is an agent on a containerd of its own.
type node struct {
	daemon *containerdtest.Daemon
	engine engines.Engine
	runner *agent.Runner
	store  *state.Store
	images map[string]string // by the name in compose.yaml, the pinned reference
	client *ociclient.Client
	opts   engines.Options
	stop   func(t *testing.T)

	mu         sync.Mutex // protects what follows
	generation uint64
	desired    map[protocol.DeploymentName]protocol.Assignment
	removals   map[protocol.DeploymentName]protocol.Position
	reports    map[protocol.DeploymentName]protocol.DeploymentStatus
}

// newNode starts a node with the images "tools", which waits, and "volumes", which
// declares /data as a volume.
func newNode(t *testing.T, pool string) *node {
	t.Helper()
	n := &node{
		daemon: containerdtest.Start(t), images: map[string]string{},
		desired: map[protocol.DeploymentName]protocol.Assignment{}, removals: map[protocol.DeploymentName]protocol.Position{}, reports: map[protocol.DeploymentName]protocol.DeploymentStatus{},
	}
	registry, program := containerdtest.NewRegistry(t), containerdtest.Toolbox(t)
	files := map[string]string{"bin/": "", "bin/sh": string(program), "data/": "", "data/seed": "seed\n"}
	n.images["tools"] = registry.Add(t, "tools", containerdtest.Image{Program: program, Cmd: []string{"wait"}, Env: []string{"COLOUR=red"}, Files: files})
	n.images["volumes"] = registry.Add(t, "volumes", containerdtest.Image{Program: program, Cmd: []string{"wait"}, Volumes: []string{"/data"}, Files: files})
	n.images["spoken"] = registry.Add(t, "spoken", containerdtest.Image{Program: program, Entrypoint: []string{"/toolbox", "wait"}, Cmd: []string{"of", "image"}, Files: files})
	n.images["broken"] = registry.Add(t, "broken", containerdtest.Image{Program: program, Cmd: []string{"exit", "1", "broken"}, Volumes: []string{"/data"}, Files: files})
	n.images["checked"] = registry.Add(t, "checked", containerdtest.Image{Program: program, Cmd: []string{"wait"}, Health: []string{"/toolbox", "append", "/count"}, Files: files})
	n.images["sick"] = registry.Add(t, "sick", containerdtest.Image{Program: program, Cmd: []string{"wait"}, Health: []string{"/toolbox", "cat", "/none"}, Files: files})
	n.client = ociclient.New(ociclient.Options{Timeout: patience})
	t.Cleanup(n.client.Close)
	n.opts = engines.Default()
	n.opts.Address, n.opts.StateDir, n.opts.Pool = n.daemon.Socket, filepath.Join(n.daemon.Dir, "e"), pool
	n.opts.CDIDirs = []string{cdiFiles(t)}
	n.opts.Init = filepath.Join(t.TempDir(), "colony-init")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", n.opts.Init, "github.com/colonyfleet/colony/cmd/colony-init")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build colony-init: %v\n%s", err, out)
	}
	n.start(t)
	t.Cleanup(func() {
		n.stop(t)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		e, err := engines.Open(n.opts, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		list, err := e.List(ctx)
		if err != nil {
			t.Errorf("list: %v", err)
		}
		var removed []protocol.DeploymentName
		for _, s := range list {
			removed = append(removed, s.ID.Deployment)
		}
		if err := e.Sweep(ctx, engine.SweepOptions{Removed: removed}); err != nil {
			t.Errorf("sweep: %v", err)
		}
		if err := e.Halt(ctx); err != nil {
			t.Errorf("halt: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// start starts the agent, on what an earlier one left.
func (n *node) start(t *testing.T) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	store, held, err := state.Open(disk.OS, filepath.Join(n.daemon.Dir, "s"), nil, log)
	if err != nil {
		t.Fatal(err)
	}
	e, err := engines.Open(n.opts, log)
	if err != nil {
		t.Fatal(err)
	}
	check, err := trust.New(trust.Node{Node: "node"}, nil, held.Trust)
	if err != nil {
		t.Fatal(err)
	}
	limits := plan.DefaultLimits()
	limits.RestartBase = 100 * time.Millisecond
	r, err := agent.New(agent.Options{
		Node: "node", Engine: e, Host: e, Store: store, Uplink: n, Probe: probe.New(e, nil).Probe, Logger: log, Limits: limits,
		Agent: held.Agent, Desired: held.Desired, Records: held.Records, Counter: held.Counter, Volumes: held.Volumes, Check: check,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Start(t.Context())
	r.Connected(true)
	n.engine, n.runner, n.store = e, r, store
	n.stop = func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, err := range []error{r.Stop(ctx), e.Close(), store.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// Report receives what the agent reports.
func (n *node) Report(_ context.Context, m protocol.DeploymentStatus, _ bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reports[m.Deployment] = m
	return nil
}

// ReportAll receives what the agent holds after each connection.
func (n *node) ReportAll(context.Context, protocol.NodeReport) error { return nil }

// Archive and Image make a node the resolver of the compiler.
func (n *node) Archive(context.Context, string, string) ([]byte, protocol.Digest, error) {
	return nil, "", protocol.Errorf(protocol.Internal, "not asked")
}

func (n *node) Image(_ context.Context, ref string) (string, error) {
	if pinned := n.images[ref]; pinned != "" {
		return pinned, nil
	}
	return "", protocol.Errorf(protocol.NotFound, "no image %s", ref)
}

// Health reads the check of an image from the registry, as the CO does.
func (n *node) Health(ctx context.Context, ref string) (*protocol.Health, error) {
	return n.client.Health(ctx, ref)
}

// archived is a resolver that has one archive.
type archived struct {
	*node
	tgz []byte
}

func (a archived) Archive(context.Context, string, string) ([]byte, protocol.Digest, error) {
	return a.tgz, protocol.DigestOf(a.tgz), nil
}

// compile makes the spec of a deployment with one component "app".
func (n *node) compile(name protocol.DeploymentName, compose string, files map[string]string) (*protocol.DeploymentSpec, error) {
	all := maps.Clone(files)
	if all == nil {
		all = map[string]string{}
	}
	all["compose.yaml"] = compose
	d := &v1rc3.Deployment{
		ID: "a3e2f5dc-912e-494f-8395-52cf3769bc06",
		Metadata: v1rc3.DeploymentMetadata{
			Name: string(name), Namespace: "colony", DeviceID: "plant/node",
		},
		Spec: v1rc3.DeploymentSpec{ApplicationID: "app", Profile: v1rc3.DeploymentProfile{Type: v1rc3.Compose, Components: []v1rc3.Component{{
			Name: "app", Properties: v1rc3.Properties{Repository: "oci://r/app", Revision: "1"},
		}}}},
	}
	_, spec, err := compiler.Compile(context.Background(), d, archived{n, pack(all)})
	return spec, err
}

// pack makes a Compose archive.
func pack(files map[string]string) []byte {
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		// A bytes.Buffer never fails, and the sizes are right.
		_ = tw.WriteHeader(&tar.Header{Name: "app/" + name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[name]))})
		_, _ = tw.Write([]byte(files[name]))
	}
	_, _ = tw.Close(), zw.Close()
	return b.Bytes()
}

// A deployed is a deployment on a node, or the same file under another implementation.
type deployed struct {
	*node
	name protocol.DeploymentName
	spec *protocol.DeploymentSpec
	peer peer // nil: on the node
}

// A peer is another implementation that runs a file.
type peer interface {
	// exec runs a command in a container of a service.
	exec(service string, command []string) (engine.ExecResult, error)
	// status returns what is known of it, without Colony's own words.
	status(service string) (engine.Status, error)
	// containers returns how many there are.
	containers() (int, error)
	// log returns what it wrote.
	log(service string) ([]byte, error)
	// stop asks it to end.
	stop(service string) error
}

// errNotCompared is of a check that looks at what only Colony says.
var errNotCompared = errors.New("the check looks at what Colony alone reports")

// deploy compiles a file and gives it to the agent, as a new deployment or a new version.
func (n *node) deploy(name protocol.DeploymentName, compose string, files map[string]string) (*deployed, error) {
	spec, err := n.compile(name, compose, files)
	if err != nil {
		return nil, err
	}
	encoded := protocol.Marshal(spec)
	n.mu.Lock()
	n.desired[name] = protocol.Assignment{Deployment: name, Digest: protocol.DigestOf(encoded), Spec: encoded, Attempt: n.desired[name].Attempt + 1}
	n.mu.Unlock()
	return &deployed{n, name, spec, nil}, n.assign()
}

// remove takes a deployment off the node.
func (d *deployed) remove() error {
	d.mu.Lock()
	delete(d.desired, d.name)
	d.removals[d.name] = protocol.Position{Epoch: 1, Generation: d.generation + 1}
	d.mu.Unlock()
	return d.assign()
}

// assign gives the agent what is desired now.
func (n *node) assign() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.generation++
	at := protocol.Position{Epoch: 1, Generation: n.generation}
	m := protocol.NodeDesired{V: protocol.Version, Node: "node", Position: at}
	for _, name := range slices.Sorted(maps.Keys(n.desired)) {
		m.Assignments = append(m.Assignments, n.desired[name])
	}
	for _, name := range slices.Sorted(maps.Keys(n.removals)) {
		m.Removals = append(m.Removals, protocol.NodeRemoval{Deployment: name, Site: n.removals[name], Volumes: true})
	}
	return n.runner.Accept(context.Background(), protocol.Marshal(m))
}

// report returns the last report about this version of the deployment.
func (d *deployed) report() protocol.DeploymentStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.reports[d.name]; m.Digest == d.desired[d.name].Digest && m.Attempt == d.desired[d.name].Attempt {
		return m
	}
	return protocol.DeploymentStatus{}
}

// installed returns an error until the deployment is INSTALLED.
func (d *deployed) installed() error {
	if d.peer != nil {
		_, err := d.peer.status("a")
		return err
	}
	if m := d.report(); m.State != lifecycle.Installed {
		return fmt.Errorf("the deployment is %s: %s %s", m.State, m.Code, m.Message)
	}
	return nil
}

// failed returns an error until the deployment is FAILED for a reason with this text.
func (d *deployed) failed(code protocol.Code, text string) error {
	if d.peer != nil {
		return errNotCompared
	}
	if m := d.report(); m.State != lifecycle.Failed || m.Code != code || !strings.Contains(m.Message, text) {
		return fmt.Errorf("the deployment is %s: %s %q, want FAILED: %s with %q", m.State, m.Code, m.Message, code, text)
	}
	return nil
}

// settled reports whether nothing will change by itself any more.
func (d *deployed) settled() bool {
	s := d.report().State
	return s == lifecycle.Installed || s == lifecycle.Failed
}

func (d *deployed) id(service string) engine.ID {
	return engine.ID{Deployment: d.name, Component: "app", Name: service}
}

// exec runs the toolbox in a container of the deployment.
func (d *deployed) exec(service string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	command := append([]string{"/toolbox"}, args...)
	var r engine.ExecResult
	var err error
	if d.peer != nil {
		r, err = d.peer.exec(service, command)
	} else {
		r, err = d.engine.Exec(ctx, d.id(service), command)
	}
	out := strings.TrimSpace(string(r.Output))
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("%q in %s ended with %d: %s", args, service, r.ExitCode, out)
	}
	return out, err
}

// status returns what the engine says of a container.
func (d *deployed) status(service string) (engine.Status, error) {
	if d.peer != nil {
		return d.peer.status(service)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := d.engine.List(ctx)
	if err != nil {
		return engine.Status{}, err
	}
	at := slices.IndexFunc(all, func(s engine.Status) bool { return s.ID == d.id(service) })
	if at < 0 {
		return engine.Status{}, fmt.Errorf("no container %s", service)
	}
	return all[at], nil
}

// restarts returns how often a container was started again.
func (d *deployed) restarts(service string) (uint32, error) {
	if d.peer != nil {
		st, err := d.peer.status(service)
		return st.Restarts, err
	}
	for _, c := range d.report().Components {
		if c.Container == service {
			return c.Restarts, nil
		}
	}
	return 0, fmt.Errorf("components %+v, want %s", d.report().Components, service)
}

// ports returns the ports of the node that a container has.
func (d *deployed) ports(service string) ([]protocol.Port, error) {
	if d.peer != nil {
		st, err := d.peer.status(service)
		return st.Ports, err
	}
	for _, c := range d.report().Components {
		if c.Container == service {
			return c.Ports, nil
		}
	}
	return nil, fmt.Errorf("components %+v, want %s", d.report().Components, service)
}

// log returns what a container wrote.
func (d *deployed) log(service string) ([]byte, error) {
	if d.peer != nil {
		return d.peer.log(service)
	}
	files, err := filepath.Glob(filepath.Join(d.opts.StateDir, "containers", string(d.name)+"-"+service+"-*", "output", "std*"))
	if err != nil || len(files) != 2 {
		return nil, fmt.Errorf("%d outputs (%v)", len(files), err)
	}
	var all []byte
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, b...)
	}
	return all, nil
}

// halt asks a container to end, and waits for that.
func (d *deployed) halt(service string) error {
	if d.peer != nil {
		return d.peer.stop(service)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return d.engine.Stop(ctx, d.id(service), 0)
}

// await polls until check returns nil.
func await(t *testing.T, check func() error) {
	t.Helper()
	if err := poll(t, patience, func() bool { return false }, check); err != nil {
		t.Fatal(err)
	}
}

// poll calls check until it returns nil, or over returns true, or a time has passed, and
// returns its last error.
func poll(t *testing.T, d time.Duration, over func() bool, check func() error) error {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	for {
		last := over()
		err := check()
		if err == nil || last {
			return err
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return err
		case <-t.Context().Done():
			return err
		}
	}
}
