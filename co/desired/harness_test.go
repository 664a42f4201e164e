package desired

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a Store in maps, with the rules of the real one that matter here.
type memory struct {
	mu       sync.Mutex
	sites    map[protocol.SiteID]*record
	problems []string // events deployment_invalid
	notices  []string // kind: message
	saves    int
	away     error
}

type record struct {
	body    []byte // of SaveBody
	digest  protocol.Digest
	desired []fleet.Desired
	data    fleet.SiteData
	message protocol.SiteDesired
}

func (m *memory) Sites(_ context.Context, p fleet.Page) ([]fleet.Site, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		return nil, "", m.away
	}
	// One site a page, so that the pages are walked.
	for _, id := range slices.Sorted(maps.Keys(m.sites)) {
		if string(id) > p.Cursor {
			return []fleet.Site{{ID: id}}, string(id), nil
		}
	}
	return nil, "", nil
}

func (m *memory) Desired(_ context.Context, site protocol.SiteID) ([]fleet.Desired, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.sites[site].desired), m.away
}

func (m *memory) SaveBody(_ context.Context, site protocol.SiteID, digest protocol.Digest, body []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.sites[site]
	r.digest, r.body = digest, body
	m.sites[site] = r
	return m.away
}

func (m *memory) SiteData(_ context.Context, site protocol.SiteID) (fleet.SiteData, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sites[site].data, m.away
}

func (m *memory) LastDesired(_ context.Context, site protocol.SiteID) (protocol.SiteDesired, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sites[site].message, m.away
}

func (m *memory) SaveDesired(_ context.Context, site protocol.SiteID, commit string, desired []fleet.Desired, data fleet.SiteData) (protocol.SiteDesired, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		return protocol.SiteDesired{}, false, m.away
	}
	m.saves++
	r := m.sites[site]
	if r == nil {
		r = m.add(site)
	}
	had := map[protocol.DeploymentName]string{}
	for _, d := range r.desired {
		had[d.Name] = d.Problem
	}
	next := protocol.SiteDesired{V: protocol.Version, Site: site, Epoch: "e", Generation: r.message.Generation, Commit: r.message.Commit}
	for _, d := range desired {
		if d.Entry.Digest != "" {
			next.Deployments = append(next.Deployments, d.Entry)
		}
		if d.Problem != "" && d.Problem != had[d.Name] {
			m.problems = append(m.problems, d.Problem)
		}
	}
	for _, d := range data.Rules {
		next.Data = append(next.Data, d.DataRule)
	}
	if data.Problem != "" && data.Problem != r.data.Problem {
		m.problems = append(m.problems, data.Problem)
	}
	changed := !bytes.Equal(protocol.Marshal(&next), protocol.Marshal(&r.message))
	if changed {
		next.Generation, next.Commit = next.Generation+1, commit
	}
	r.desired, r.data, r.message = slices.Clone(desired), data, next
	return next, changed, nil
}

func (m *memory) Notice(_ context.Context, e fleet.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notices = append(m.notices, e.Kind+": "+e.Message)
	return m.away
}

func (m *memory) add(site protocol.SiteID) *record {
	r := &record{message: protocol.SiteDesired{V: protocol.Version, Site: site, Epoch: "e"}}
	m.sites[site] = r
	return r
}

func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// world is a whole way down: a repo, a record, a registry, a broker.
type world struct {
	t     *testing.T
	store *memory
	loop  *Loop

	mu       sync.Mutex
	head     int
	files    map[string][]byte
	commits  map[string]string
	skipped  map[string]string
	gitAway  error
	imageErr map[string]error
	compiled map[string]int // by deployment
	brokers  error

	published chan message
	changed   chan string
	stop      func()
}

type message struct {
	site  protocol.SiteID
	bytes int
	protocol.SiteDesired
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, store: &memory{sites: map[protocol.SiteID]*record{}},
		files: map[string][]byte{}, commits: map[string]string{}, skipped: map[string]string{},
		imageErr: map[string]error{}, compiled: map[string]int{},
		published: make(chan message, 1000), changed: make(chan string, 1000),
	}
	return w
}

// start runs a Loop until the test ends or stop is called.
func (w *world) start(change ...func(*Options)) {
	w.t.Helper()
	o := Options{
		MessageLimit: 64 << 10,
		Store:        w.store, Read: w.read, Publish: w.publish, MinRetry: time.Millisecond, MaxRetry: 20 * time.Millisecond,
		Compile: func(ctx context.Context, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
			w.mu.Lock()
			w.compiled[d.Metadata.Name]++
			w.mu.Unlock()
			return compiler.Compile(ctx, d, w)
		},
		Watch: func(ctx context.Context, _ time.Duration, changed func(string)) error {
			for {
				select {
				case c := <-w.changed:
					changed(c)
				case <-ctx.Done():
					return nil
				}
			}
		},
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	if w.loop, err = New(o); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.loop.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(w.stop)
}

// commit changes files of the repo, nil removing one, and calls the watcher.
func (w *world) commit(files map[string]string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head++
	commit := hash(w.head)
	for p, content := range files {
		delete(w.files, p)
		delete(w.commits, p)
		if content != "" {
			w.files[p], w.commits[p] = []byte(content), commit
		}
	}
	w.changed <- commit
	return commit
}

// hash is the n-th commit.
func hash(n int) string {
	return strings.TrimPrefix(string(protocol.DigestOf([]byte{byte(n)})), "sha256:")[:40]
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) count(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.compiled[name]
}

func (w *world) read(context.Context) (Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Snapshot{
		Commit: hash(w.head), Files: maps.Clone(w.files), Commits: maps.Clone(w.commits), Skipped: maps.Clone(w.skipped),
	}, w.gitAway
}

func (w *world) publish(_ context.Context, site protocol.SiteID, payload []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.brokers != nil {
		return w.brokers
	}
	m := message{site: site, bytes: len(payload)}
	if err := protocol.Unmarshal(payload, &m.SiteDesired); err != nil {
		w.t.Error(err)
	}
	w.published <- m
	return nil
}

// Archive makes the archive of a component: one service, whose image is named after
// the revision.
func (w *world) Archive(_ context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	compose := fmt.Sprintf("services:\n  app:\n    image: registry.colony/app:%s\n", revision)
	if strings.HasSuffix(repository, "/large") {
		compose += "    environment:\n      PADDING: " + strings.Repeat("x", 70_000) + "\n"
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	files := tar.NewWriter(zip)
	if err := files.WriteHeader(&tar.Header{Name: "app/compose.yaml", Mode: 0o644, Size: int64(len(compose))}); err != nil {
		return nil, "", err
	}
	if _, err := files.Write([]byte(compose)); err != nil {
		return nil, "", err
	}
	if err := files.Close(); err != nil {
		return nil, "", err
	}
	if err := zip.Close(); err != nil {
		return nil, "", err
	}
	return out.Bytes(), protocol.DigestOf(out.Bytes()), nil
}

func (w *world) Image(_ context.Context, ref string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, tag, _ := strings.Cut(ref, ":")
	if err := w.imageErr[tag]; err != nil {
		return "", err
	}
	return "registry.colony/app@" + string(protocol.DigestOf([]byte(ref))), nil
}

// next returns the next message, which must be for the site.
func (w *world) next(site protocol.SiteID) message {
	w.t.Helper()
	select {
	case m := <-w.published:
		if m.site != site || m.Site != site {
			w.t.Fatalf("message for site %s, want %s: %+v", m.site, site, m)
		}
		return m
	case <-time.After(20 * time.Second):
		w.t.Fatal("nothing was published within 20 s")
		panic("unreachable")
	}
}

// until waits for a condition.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// quiet makes sure that a pass goes by without a message.
func (w *world) quiet() {
	w.t.Helper()
	passed := make(chan struct{})
	w.set(func() {})
	w.loop.Poke()
	go func() {
		defer close(passed)
		// The second pass begins after the first one has ended.
		for range 2 {
			w.until("the loop takes a poke", func() bool { return len(w.loop.due.C()) == 0 })
			w.loop.Poke()
		}
		w.until("the loop takes a poke", func() bool { return len(w.loop.due.C()) == 0 })
	}()
	<-passed
	select {
	case m := <-w.published:
		w.t.Fatalf("unexpected message: %+v", m)
	default:
	}
}

func names(m message) string {
	var all []string
	for _, d := range m.Deployments {
		all = append(all, string(d.Deployment))
	}
	return strings.Join(all, " ")
}

func path(site, name string) string {
	return "deployments/" + site + "/" + name + "/deployment.yaml"
}

// deployment is the file of a deployment at a revision. Its id is made of its site and
// name.
func deployment(site, name, revision string) string {
	sum := strings.TrimPrefix(string(protocol.DigestOf([]byte(site+"/"+name))), "sha256:")
	id := fmt.Sprintf("%s-%s-4%s-8%s-%s", sum[:8], sum[8:12], sum[13:16], sum[17:20], sum[20:32])
	return fmt.Sprintf(`id: %s
metadata:
  name: %s
  namespace: colony
  deviceId: %s/*
spec:
  applicationId: app
  deploymentProfile:
    type: compose
    components:
      - name: app
        properties:
          repository: oci://registry.colony/app
          revision: %s
  x-colony-extensions:
    applicationVersion: %s
    profile: app-compose
`, id, name, site, revision, revision)
}
