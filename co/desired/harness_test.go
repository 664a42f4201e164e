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
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a Store in maps, with the rules of the real one that matter here.
type memory struct {
	mu      sync.Mutex
	sites   map[protocol.SiteID]*record
	reports map[protocol.SiteID]fleet.SiteHeld
	// connected are the sites whose LO was online at least once.
	connected map[protocol.SiteID]bool
	held      map[deploymentKey]*fleet.Standing
	named     map[string]map[string]bool // ids of proposals, by commit
	problems  []string                   // events deployment_invalid
	volumes   []string                   // calls of RemoveVolumes
	notices   []string                   // kind: message
	requested map[protocol.SiteID]bool
	unwanted  []protocol.SiteID // whose removal was asked for
	// late is what becomes requested while a proposal is opened, where it is set.
	late    map[protocol.SiteID]bool
	saves   int
	away    error
	reads   int       // calls of Recorded
	reading chan bool // if set, Recorded takes one of it for each call but the first
}

type record struct {
	body    []byte // of SaveBody
	digest  protocol.Digest
	desired []fleet.Desired
	data    fleet.SiteData
	message protocol.SiteDesired
}

func (m *memory) Connected(context.Context) (map[protocol.SiteID]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[protocol.SiteID]bool{}
	for id := range m.sites {
		out[id] = m.connected[id]
	}
	return out, m.away
}

func (m *memory) Recorded(_ context.Context, sites []protocol.SiteID) ([]fleet.SiteRecord, error) {
	m.mu.Lock()
	m.reads++
	wait := m.reading != nil && m.reads > 1
	m.mu.Unlock()
	if wait {
		<-m.reading
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]fleet.SiteRecord, len(sites))
	for i, id := range sites {
		r := m.sites[id]
		out[i] = fleet.SiteRecord{Site: id, Desired: slices.Clone(r.desired), Data: r.data, Message: r.message}
	}
	return out, m.away
}

func (m *memory) SaveBodies(_ context.Context, list []fleet.SiteBody) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range list {
		m.sites[v.Site].digest, m.sites[v.Site].body = v.Digest, v.Body
	}
	return m.away
}

func (m *memory) SaveAll(_ context.Context, commit string, list []fleet.SiteWant) []fleet.SiteSaved {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]fleet.SiteSaved, len(list))
	for i, w := range list {
		if out[i].Err = m.away; m.away == nil {
			out[i].Message, out[i].Changed = m.save(w.Site, commit, w.Desired, w.Data)
			if w.Files { // a removal of the site is void
				delete(m.requested, w.Site)
			}
		}
	}
	return out
}

func (m *memory) save(site protocol.SiteID, commit string, desired []fleet.Desired, data fleet.SiteData) (protocol.SiteDesired, bool) {
	m.saves++
	if v, reported := m.reports[site]; reported {
		v.Unfollowed = false
		m.reports[site] = v
	}
	r := m.sites[site]
	if r == nil {
		r = m.add(site)
	}
	had := map[protocol.DeploymentName]string{}
	for _, d := range r.desired {
		had[d.Name] = d.Problem
	}
	next := protocol.SiteDesired{V: protocol.Version, Site: site, Position: r.message.Position, Commit: r.message.Commit}
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
		next.Position, next.Commit = next.Position.Next(), commit
	}
	r.desired, r.data, r.message = slices.Clone(desired), data, next
	m.saveHeld(site, desired)
	return next, changed
}

func (m *memory) saveHeld(site protocol.SiteID, desired []fleet.Desired) {
	holds := map[deploymentKey]fleet.Hold{}
	for _, d := range desired {
		if d.Hold != (fleet.Hold{}) {
			holds[deploymentKey{site, d.Name}] = d.Hold
		}
	}
	for k, v := range m.held {
		if k.site == site && holds[k] != v.Hold {
			delete(m.held, k)
		}
	}
	for k, hold := range holds {
		if m.named[hold.Commit] == nil {
			m.named[hold.Commit] = map[string]bool{}
		}
		m.named[hold.Commit][hold.Proposal] = true
		if m.held[k] == nil {
			m.held[k] = &fleet.Standing{Site: site, Deployment: k.name, Hold: hold, Open: true}
		}
	}
}

func (m *memory) Standing(context.Context) ([]fleet.Standing, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []fleet.Standing
	for _, v := range m.held {
		all = append(all, *v)
	}
	return all, m.away
}

func (m *memory) NextID(_ context.Context, _ proposal.Kind, commit string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.late != nil {
		m.requested, m.late = m.late, nil
	}
	return proposal.ID(proposal.Removals, commit, len(m.named[commit])), m.away
}

func (m *memory) Confirm(_ context.Context, id, _ string) (proposal.Proposal, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.held {
		if v.Proposal == id {
			v.Confirmed, v.Open = true, false
		}
	}
	return proposal.Proposal{}, m.away
}

// holds returns what is held, sorted, as site/deployment: cause.
func (m *memory) holds() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := []string{}
	for k, v := range m.held {
		all = append(all, fmt.Sprintf("%s/%s: %s", k.site, k.name, v.Cause))
	}
	slices.Sort(all)
	return all
}

// proposalOf returns the proposal that holds a deployment; "": none does.
func (m *memory) proposalOf(site protocol.SiteID, name protocol.DeploymentName) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.held[deploymentKey{site, name}]; v != nil {
		return v.Proposal
	}
	return ""
}

func (m *memory) Requested(context.Context) (map[protocol.SiteID]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.requested), m.away
}

func (m *memory) RemoveSite(_ context.Context, site protocol.SiteID) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		return false, m.away
	}
	if !slices.Contains(m.unwanted, site) { // its LO has connected: the request is void
		m.requested = nil
		return false, nil
	}
	delete(m.sites, site)
	m.requested, m.unwanted = nil, nil
	return true, nil
}

func (m *memory) Held(_ context.Context, site protocol.SiteID) ([]fleet.SiteHeld, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []fleet.SiteHeld
	for id, v := range m.reports {
		if site == "" || site == id {
			all = append(all, v)
		}
	}
	return all, m.away
}

func (m *memory) Raise(_ context.Context, site protocol.SiteID, held protocol.Held, how fleet.Raise) (protocol.SiteDesired, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.sites[site]
	if !held.Unknown(r.message.Held()) && !m.reports[site].Beyond {
		return r.message, nil
	}
	next, err := r.message.Position.Raise(held.Position)
	if err == nil {
		r.message.Position = next
		if v, reported := m.reports[site]; reported || !how.Followed {
			v.Beyond, v.Unfollowed = false, v.Unfollowed || !how.Followed
			m.reports[site] = v
		}
	}
	return r.message, err
}

func (m *memory) Running(context.Context, protocol.SiteID) ([]protocol.NodeRunning, error) {
	return []protocol.NodeRunning{{Node: "press-1", Deployments: []protocol.DeploymentName{"a"}}}, nil
}

func (m *memory) RemoveVolumes(_ context.Context, site protocol.SiteID, of []protocol.DeploymentName) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.volumes = append(m.volumes, fmt.Sprintf("%s: %s", site, of))
	return m.away
}

// reports records what a site holds, and calls the loop as its presence does.
func (w *world) reports(v fleet.SiteHeld) {
	w.store.set(func() { w.store.reports[v.Site] = v })
	w.loop.Reported(v.Site)
}

func (m *memory) Notice(_ context.Context, e fleet.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notices = append(m.notices, e.Kind+": "+e.Message)
	return m.away
}

func (m *memory) add(site protocol.SiteID) *record {
	r := &record{message: protocol.SiteDesired{V: protocol.Version, Site: site}}
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
	origins  map[string]string // files that another one expands to, see Snapshot; they are as deployment makes them
	gitAway  error
	removed  map[string]Removal
	rewrite  bool // the next commit replaces the history
	trailers []string
	confirms []Confirmation
	nodes    map[protocol.SiteID][]placement.Node
	imageErr map[string]error
	compiled map[string]int // by deployment
	brokers  error

	published chan message
	changing  []protocol.SiteID // sites whose data rules may have changed
	forgotten []protocol.SiteID // sites that were removed
	early     []message         // of sites that next was not asked for
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
		t: t, store: &memory{sites: map[protocol.SiteID]*record{}, held: map[deploymentKey]*fleet.Standing{}, named: map[string]map[string]bool{}, connected: map[protocol.SiteID]bool{}, reports: map[protocol.SiteID]fleet.SiteHeld{}},
		removed: map[string]Removal{}, nodes: map[protocol.SiteID][]placement.Node{},
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
		MessageLimit: 64 << 10, Positions: w.store, Proposals: w.store, Limits: proposal.DefaultLimits,
		History: w,
		Nodes: func(_ context.Context, site protocol.SiteID) ([]placement.Node, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.nodes[site]), nil
		},
		Store: w.store, Read: w.read, Outcomes: w.outcomes(), Retry: retry.Policy{Min: time.Millisecond, Max: 20 * time.Millisecond},
		Judgement: Judgement{Compile: func(ctx context.Context, _, _ string, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
			w.mu.Lock()
			w.compiled[d.Metadata.Name]++
			w.mu.Unlock()
			return compiler.Compile(ctx, d, w)
		}},
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
		blob := string(protocol.DigestOf(w.files[p]))
		delete(w.files, p)
		delete(w.commits, p)
		delete(w.removed, p)
		if content == "" && !w.rewrite {
			w.removed[p] = Removal{Commit: commit, Trailers: w.trailers, Blob: blob}
		}
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

func (w *world) Removals(_ context.Context, since string) (map[string]Removal, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	numbers := map[string]int{}
	for n := range w.head + 1 {
		numbers[hash(n)] = n
	}
	out := maps.Clone(w.removed)
	if from, known := numbers[since]; known {
		maps.DeleteFunc(out, func(_ string, r Removal) bool { return numbers[r.Commit] <= from })
	}
	return out, nil
}

func (w *world) Line(context.Context) (line []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := w.head; n >= 0; n-- {
		line = append(line, hash(n))
	}
	return line, nil
}

func (w *world) Ancestors(_ context.Context, commit string) (list []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range w.head + 1 {
		if list = append(list, hash(n)); hash(n) == commit {
			break
		}
	}
	return list, nil
}

func (w *world) Confirmations(context.Context) ([]Confirmation, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.confirms), nil
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
	blobs := map[string]string{}
	for p, content := range w.files {
		blobs[p] = string(protocol.DigestOf(content))
	}
	s := Snapshot{
		Commit: hash(w.head), Files: maps.Clone(w.files), Blobs: blobs, Commits: maps.Clone(w.commits), Skipped: maps.Clone(w.skipped), Origins: w.origins,
	}
	for p, origin := range w.origins {
		if commit, there := w.commits[origin]; there {
			parts := strings.Split(p, "/")
			s.Files[p], s.Commits[p] = []byte(deployment(parts[1], parts[2], "1.0.0")), commit
			s.Blobs[p] = string(protocol.DigestOf(s.Files[p]))
		}
	}
	return s, w.gitAway
}

// outcomes are what the Loop calls about sites.
func (w *world) outcomes() Outcomes {
	note := func(list *[]protocol.SiteID) func(protocol.SiteID) {
		return func(site protocol.SiteID) {
			w.mu.Lock()
			defer w.mu.Unlock()
			*list = append(*list, site)
		}
	}
	return Outcomes{Publish: w.publish, RulesChanged: note(&w.changing), Removed: note(&w.forgotten)}
}

func (w *world) publish(_ context.Context, site protocol.SiteID, payload []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.brokers != nil {
		return w.brokers
	}
	if len(payload) == 0 {
		return nil // the site was removed
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

// next returns the next message for a site. Those for different sites come in any order.
func (w *world) next(site protocol.SiteID) message {
	w.t.Helper()
	if i := slices.IndexFunc(w.early, func(m message) bool { return m.site == site }); i >= 0 {
		m := w.early[i]
		w.early = slices.Delete(w.early, i, i+1)
		return m
	}
	for deadline := time.After(time.Minute); ; {
		select {
		case m := <-w.published:
			if m.site != m.Site {
				w.t.Fatalf("message for site %s was published to %s", m.Site, m.site)
			}
			if m.site == site {
				return m
			}
			w.early = append(w.early, m)
		case <-deadline:
			w.t.Fatalf("nothing was published for %s within 20 s, but %+v", site, w.early)
		}
	}
}

// until waits for a condition.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("not within a minute: %s", what)
		}
	}
}

// untilForgotten waits until exactly these sites are removed.
func (w *world) untilForgotten(want ...protocol.SiteID) {
	w.t.Helper()
	w.until(fmt.Sprintf("%q are removed", want), func() bool {
		removed := false
		w.set(func() { removed = slices.Equal(w.forgotten, want) })
		return removed
	})
}

// quiet makes sure that a pass goes by without a message.
func (w *world) quiet() {
	w.t.Helper()
	passed := make(chan struct{})
	w.set(func() {})
	w.loop.Notify()
	go func() {
		defer close(passed)
		// The second pass begins after the first one has ended.
		for range 2 {
			w.until("the loop takes a notification", func() bool { return len(w.loop.due.C()) == 0 })
			w.loop.Notify()
		}
		w.until("the loop takes a notification", func() bool { return len(w.loop.due.C()) == 0 })
	}()
	<-passed
	if len(w.early) > 0 {
		w.t.Fatalf("unexpected messages: %+v", w.early)
	}
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

// Health says that every image has a check.
func (*world) Health(context.Context, string) (*protocol.Health, error) {
	return &protocol.Health{Command: []string{"true"}, Retries: 7}, nil
}
