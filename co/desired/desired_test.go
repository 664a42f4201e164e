package desired

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

func TestCommitReachesItsSiteOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	commit := w.commit(map[string]string{
		path("berlin", "hello"):         deployment("berlin", "hello", "1.0.0"),
		"README.md":                     "x",
		"deployments/berlin/notes.yaml": "x",
	})
	m := w.next("berlin")
	if names(m) != "hello" || m.Position.Generation != 1 || m.Commit != commit {
		t.Errorf("message = %+v", m)
	}
	var spec protocol.DeploymentSpec
	if err := protocol.Unmarshal(m.Deployments[0].Spec, &spec); err != nil {
		t.Fatal(err)
	}
	if spec.AppVersion != "1.0.0" || spec.Profile != "app-compose" || spec.Components[0].Containers[0].Image == "" {
		t.Errorf("spec = %+v", spec)
	}
	w.commit(map[string]string{path("munich", "hello"): deployment("munich", "hello", "1.0.0")})
	if m := w.next("munich"); names(m) != "hello" {
		t.Errorf("message = %+v", m)
	}
	w.commit(map[string]string{path("berlin", "hello"): deployment("berlin", "hello", "2.0.0")})
	if got := w.next("berlin"); got.Position.Generation != 2 || got.Deployments[0].Digest == m.Deployments[0].Digest {
		t.Errorf("message = %+v", got)
	}
	w.quiet()
	if got := w.count("hello"); got != 3 {
		t.Errorf("compiled %d times, want 3: what did not change is not compiled again", got)
	}
}

// TestStartPublishesWhileItReads starts over a record of many sites: they are read together, and
// the first ones have their messages before the last ones are read.
func TestStartPublishesWhileItReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := map[string]string{}
	for i := range 2*loadAtOnce + 1 {
		site := fmt.Sprintf("s%03d", i)
		files[path(site, "x")] = deployment(site, "x", "1.0.0")
	}
	w.commit(files)
	w.start()
	last := fmt.Sprintf("s%03d", 2*loadAtOnce)
	w.next(protocol.SiteID(last))
	w.stop()
	for w.early = nil; len(w.published) > 0; {
		<-w.published
	}
	w.store.set(func() { w.store.reads, w.store.reading = 0, make(chan bool) })
	w.start()
	for i := range loadAtOnce {
		w.next(protocol.SiteID(fmt.Sprintf("s%03d", i)))
	}
	w.store.reading <- true
	w.store.reading <- true
	w.next(protocol.SiteID(last))
	w.store.set(func() {
		if w.store.reads != 3 {
			t.Errorf("%d sites were read by %d calls, want 3", 2*loadAtOnce+1, w.store.reads)
		}
	})
}

func TestVanishedFolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0"), path("berlin", "b"): deployment("berlin", "b", "1.0.0")})
	if got := names(w.next("berlin")); got != "a b" {
		t.Errorf("deployments = %q", got)
	}
	w.commit(map[string]string{path("berlin", "a"): ""})
	if got := names(w.next("berlin")); got != "b" {
		t.Errorf("deployments = %q", got)
	}
	w.commit(map[string]string{path("berlin", "b"): ""})
	if m := w.next("berlin"); len(m.Deployments) != 0 || m.Position.Generation != 3 {
		t.Errorf("message = %+v, want an empty one", m)
	}
	w.quiet()
}

// TestRestart starts again over the same record, with git and the registry away.
func TestRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0"), path("munich", "b"): deployment("munich", "b", "1.0.0")})
	first := []message{w.next("berlin"), w.next("munich")}
	w.stop()

	away := protocol.Errorf(protocol.Unavailable, "away")
	w.set(func() { w.gitAway, w.imageErr["1.0.0"] = away, away })
	w.start()
	again := []message{w.next("berlin"), w.next("munich")}
	if diff := cmp.Diff(first, again, cmp.AllowUnexported(message{})); diff != "" {
		t.Error(diff)
	}
	w.set(func() { w.gitAway = nil })
	w.commit(map[string]string{"README.md": "x"})
	w.quiet()
	if w.count("a") != 1 || w.count("b") != 1 {
		t.Errorf("compiled a %d and b %d times; a restart compiles nothing again", w.count("a"), w.count("b"))
	}
	w.loop.Republish()
	w.next("berlin")
	w.next("munich")
	w.quiet()
}

// TestRecordedFilesAreNotParsed has a loop begin with a record: what is compiled there is not parsed, until another commit changes it, also
// where that leaves it as it was; and its id stays taken.
func TestRecordedFilesAreNotParsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0"), path("munich", "b"): deployment("munich", "b", "1.0.0")})
	w.next("berlin")
	w.next("munich")
	w.stop()
	w.start()
	w.next("berlin")
	w.next("munich")
	w.commit(map[string]string{"README.md": "x"})
	w.quiet()
	w.stop()
	for p, f := range w.loop.parsed {
		if f.doc != nil || !f.compiled {
			t.Errorf("%s was parsed, and is in memory", p)
		}
	}
	w.start()
	w.next("berlin")
	w.next("munich")
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.until("it is compiled once more", func() bool { return w.count("a") == 2 })
	taken := strings.Replace(deployment("berlin", "c", "1.0.0"), firstLine(deployment("berlin", "c", "1.0.0")), firstLine(deployment("munich", "b", "1.0.0")), 1)
	w.commit(map[string]string{path("berlin", "c"): taken})
	w.until("an id that is taken is refused", func() bool {
		var refused bool
		w.store.set(func() {
			refused = slices.ContainsFunc(w.store.problems, func(p string) bool { return strings.Contains(p, "is the id of deployments/munich/b/deployment.yaml") })
		})
		return refused
	})
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func TestBadFileKeepsItsLastGoodEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0"), path("berlin", "b"): deployment("berlin", "b", "1.0.0")})
	good := w.next("berlin")
	bad := w.commit(map[string]string{
		path("berlin", "a"): strings.Replace(deployment("berlin", "a", "2.0.0"), "type: compose", "type: odd", 1),
		path("berlin", "b"): deployment("berlin", "b", "2.0.0"),
	})
	m := w.next("berlin")
	if m.Deployments[0].Digest != good.Deployments[0].Digest || m.Deployments[1].Digest == good.Deployments[1].Digest {
		t.Errorf("a must stay and b must change: %+v", m.Deployments)
	}
	problems := func() []string {
		var p []string
		w.store.set(func() { p = slices.Clone(w.store.problems) })
		return p
	}
	got := problems()
	if len(got) != 1 || !strings.Contains(got[0], "deployments/berlin/a/deployment.yaml at commit "+bad[:12]+": line 9: spec.deploymentProfile.type") {
		t.Errorf("problems = %q", got)
	}
	w.quiet()
	w.stop()
	w.start()
	w.next("berlin")
	w.quiet()
	if got := problems(); len(got) != 1 {
		t.Errorf("the same commit was reported twice: %q", got)
	}
	w.commit(map[string]string{path("berlin", "a"): strings.Replace(deployment("berlin", "a", "3.0.0"), "type: compose", "type: odd", 1)})
	w.until("the second bad commit is reported", func() bool { return len(problems()) == 2 })
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "3.0.0")})
	if m := w.next("berlin"); m.Deployments[0].Digest == good.Deployments[0].Digest {
		t.Error("the corrected file was not compiled")
	}
	if p := w.store.sites["berlin"].desired[0].Problem; p != "" {
		t.Errorf("problem of the corrected file: %q", p)
	}
}

func TestFilesAgainstTheirFolders(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		path, content, says string
	}{
		"other site":    {path("berlin", "x"), deployment("munich", "x", "1.0.0"), `metadata.deviceId: the site is "munich", and the file is in the folder of "berlin"`},
		"other name":    {path("berlin", "x"), deployment("berlin", "y", "1.0.0"), `metadata.name: the name is "y"`},
		"no child":      {path("berlin", "x"), strings.Replace(deployment("berlin", "x", "1.0.0"), "berlin/*", "berlin", 1), "metadata.deviceId"},
		"bad node":      {path("berlin", "x"), strings.Replace(deployment("berlin", "x", "1.0.0"), "berlin/*", "berlin/Upper", 1), "metadata.deviceId"},
		"not YAML":      {path("berlin", "x"), "{", "deployments/berlin/x/deployment.yaml at commit"},
		"empty":         {path("berlin", "x"), "\n", "deployments/berlin/x/deployment.yaml at commit"},
		"id of another": {path("berlin", "x"), strings.NewReplacer("name: good", "name: x").Replace(deployment("berlin", "good", "1.0.0")), "id: "},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start()
			w.commit(map[string]string{path("berlin", "good"): deployment("berlin", "good", "1.0.0")})
			w.next("berlin")
			w.commit(map[string]string{tt.path: tt.content})
			w.until("the problem is recorded", func() bool {
				found := false
				w.store.set(func() { found = len(w.store.problems) == 1 && strings.Contains(w.store.problems[0], tt.says) })
				return found
			})
			w.commit(map[string]string{path("berlin", "good"): deployment("berlin", "good", "2.0.0")})
			if got := names(w.next("berlin")); got != "good" {
				t.Errorf("deployments = %q, want the good one alone", got)
			}
		})
	}
}

func TestFolderThatNoSiteCanHave(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("Berlin", "x"): deployment("berlin", "x", "1.0.0"), path("munich", "x"): deployment("munich", "x", "1.0.0")})
	w.next("munich")
	w.quiet()
}

func TestSkippedFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.next("berlin")
	w.set(func() { w.skipped[path("berlin", "a")] = "a symbolic link is not followed" })
	w.commit(map[string]string{path("berlin", "a"): ""})
	w.until("the problem is recorded", func() bool {
		found := false
		w.store.set(func() {
			found = len(w.store.problems) == 1 && strings.Contains(w.store.problems[0], "a symbolic link is not followed")
		})
		return found
	})
	w.quiet()
}

// TestRegistryAway updates one deployment while its image cannot be resolved: nothing
// is wrong with the file, the others go on, and it follows by itself.
func TestRegistryAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	first := w.next("berlin")
	w.set(func() { w.imageErr["2.0.0"] = protocol.Errorf(protocol.Unavailable, "registry is away") })
	w.commit(map[string]string{
		path("berlin", "a"): deployment("berlin", "a", "2.0.0"),
		path("berlin", "b"): deployment("berlin", "b", "1.0.0"),
		path("berlin", "c"): deployment("berlin", "c", "2.0.0"),
	})
	m := w.next("berlin")
	if names(m) != "a b" || m.Deployments[0].Digest != first.Deployments[0].Digest {
		t.Errorf("message = %q %+v; want b beside the old a", names(m), m.Deployments)
	}
	w.until("it is tried again", func() bool { return w.count("c") > 2 })
	w.store.set(func() {
		if p := w.store.problems; len(p) != 2 || !strings.Contains(p[0], "/a/deployment.yaml") || !strings.Contains(p[1], "/c/deployment.yaml") {
			t.Errorf("problems = %q, want one each of a and c, which wait", p)
		}
	})
	w.stop()
	w.start() // the older commit in the record says that a is still to be compiled
	w.next("berlin")
	w.set(func() { delete(w.imageErr, "2.0.0") })
	w.until("all are published", func() bool {
		m = w.next("berlin") // it may come back while a pass is under way
		return names(m) == "a b c" && m.Deployments[0].Digest != first.Deployments[0].Digest
	})
}

// TestImageThatComesLater deploys an image that is not in the registry yet.
func TestImageThatComesLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(func() { w.imageErr["1.0.0"] = protocol.Errorf(protocol.NotFound, "no such image") })
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.until("it is tried again", func() bool { return w.count("a") > 2 })
	w.store.set(func() {
		if len(w.store.problems) != 1 || !strings.Contains(w.store.problems[0], "no such image") {
			t.Errorf("problems = %q, want one", w.store.problems)
		}
	})
	w.set(func() { delete(w.imageErr, "1.0.0") })
	w.until("it is published", func() bool { return names(w.next("berlin")) == "a" })
}

// TestNewDatabase begins with an empty record and a registry that is away: the site
// may run what the CO does not know of, and must not be sent a state without it.
func TestNewDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.add("berlin") // its LO connected already
	w.store.add("idle")
	w.set(func() { w.imageErr["1.0.0"] = protocol.Errorf(protocol.Unavailable, "registry is away") })
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0"), path("berlin", "b"): deployment("berlin", "b", "2.0.0")})
	w.start()
	w.until("it is tried again", func() bool { return w.count("a") > 2 })
	w.set(func() { delete(w.imageErr, "1.0.0") })
	if got := names(w.next("berlin")); got != "a b" {
		t.Errorf("first message for berlin has %q, want all", got)
	}
	// Nothing was ever desired of the other one: a message would have no position, and its LO
	// would report that it refuses it.
	w.quiet()
	w.commit(map[string]string{path("idle", "c"): deployment("idle", "c", "1.0.0")})
	if m := w.next("idle"); names(m) != "c" || m.Position.IsZero() {
		t.Errorf("first message for idle = %+v", m)
	}
}

func TestNewDatabaseHoldIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(func() { w.imageErr["1.0.0"] = protocol.Errorf(protocol.Unavailable, "registry is away") })
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0"), path("berlin", "b"): deployment("berlin", "b", "2.0.0")})
	w.start(func(o *Options) { o.HoldFirst = 30 * time.Millisecond })
	if got := names(w.next("berlin")); got != "b" {
		t.Errorf("message has %q, want b", got)
	}
}

func TestStoreAndBrokerAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	away := protocol.Errorf(protocol.Unavailable, "away")
	w.store.set(func() { w.store.away = away })
	w.set(func() { w.brokers = away })
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.store.set(func() { w.store.away = nil })
	w.until("it is recorded", func() bool {
		saves := 0
		w.store.set(func() { saves = w.store.saves })
		return saves == 1
	})
	w.set(func() { w.brokers = nil })
	if m := w.next("berlin"); m.Position.Generation != 1 {
		t.Errorf("message = %+v", m)
	}
	w.quiet()
	if w.count("a") != 1 {
		t.Errorf("compiled %d times, want once", w.count("a"))
	}
}

// TestLargeStateGoesByDigest checks that a message that is sent with each connection
// is small, whatever it stands for, and that what it names can be fetched.
func TestLargeStateGoesByDigest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "small"): deployment("berlin", "small", "1.0.0")})
	if m := w.next("berlin"); m.Digest != "" || len(m.Deployments) != 1 || m.Deployments[0].Digest.Verify(m.Deployments[0].Spec) != nil {
		t.Errorf("a small state is not in the message: %+v", m)
	}
	w.commit(map[string]string{
		path("berlin", "large"): strings.Replace(deployment("berlin", "large", "1.0.0"), "colony/app\n", "colony/large\n", 1),
	})
	m := w.next("berlin")
	if size := len(protocol.Marshal(&m.SiteDesired)); size > 300 || m.Digest == "" || m.Deployments != nil || m.Position.Generation != 2 {
		t.Errorf("the message of a large state has %d bytes: %+v", size, m)
	}
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	r := w.store.sites["berlin"]
	var whole protocol.SiteDesired
	if err := protocol.Unmarshal(r.body, &whole); err != nil || m.Digest.Verify(r.body) != nil || r.digest != m.Digest || m.Size != uint64(len(r.body)) {
		t.Fatalf("the stored state of %d bytes is not what the message names: %v", len(r.body), err)
	}
	if whole.Position != m.Position || len(whole.Deployments) != 2 || whole.Deployments[0].Spec != nil || whole.Deployments[0].Size < 70_000 {
		t.Errorf("the stored state: %+v", whole)
	}
	if got := r.desired[0].Entry; len(got.Spec) != int(whole.Deployments[0].Size) {
		t.Errorf("the record has %d bytes of the spec, want all %d", len(got.Spec), whole.Deployments[0].Size)
	}
}

// TestOneActiveInstance runs two loops over one lock: the second works only once the
// first has lost it, and begins with what is recorded.
func TestOneActiveInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token := make(chan struct{}, 1)
	lost := make(chan context.CancelFunc, 10)
	lock := func(ctx context.Context) (context.Context, func(), error) {
		select {
		case token <- struct{}{}:
			held, cancel := context.WithCancel(ctx)
			lost <- cancel
			return held, func() { cancel(); <-token }, nil
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	w.start(func(o *Options) { o.Lock = lock })
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.next("berlin")
	first := <-lost
	first()
	if m := w.next("berlin"); m.Position.Generation != 1 {
		t.Errorf("message after the lock was acquired once more: %+v", m)
	}
	w.quiet()
}

// TestCompilerThatPanics stops the one deployment and nothing else.
func TestCompilerThatPanics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(func(o *Options) {
		compile := o.Compile
		o.Compile = func(ctx context.Context, path, commit string, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
			if d.Metadata.Name == "odd" {
				panic("at the disco")
			}
			return compile(ctx, path, commit, d)
		}
	})
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0"), path("berlin", "odd"): deployment("berlin", "odd", "1.0.0")})
	if got := names(w.next("berlin")); got != "a" {
		t.Errorf("deployments = %q", got)
	}
}

// TestRefusedImage deploys an image that its registry refuses to show, with a text that
// no record can hold, until the right is given back.
func TestRefusedImage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(func() { w.imageErr["1.0.0"] = protocol.Errorf(protocol.Denied, "no right\x00 \xff here") })
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.until("it is tried again", func() bool { return w.count("a") > 2 })
	w.store.set(func() {
		if p := w.store.problems; len(p) != 1 || !utf8.ValidString(p[0]) || strings.Contains(p[0], "\x00") || !strings.Contains(p[0], "no right") {
			t.Errorf("problems = %q", p)
		}
	})
	w.set(func() { delete(w.imageErr, "1.0.0") })
	w.until("it is published", func() bool { return names(w.next("berlin")) == "a" })
}

// TestNewDatabaseAndBadFile begins with an empty record and a file that does not
// compile any more: what the site runs of it must not be removed.
func TestNewDatabaseAndBadFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.add("berlin") // its LO connected already
	w.set(func() { w.imageErr["1.0.0"] = protocol.Errorf(protocol.NotFound, "no such image") })
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.start()
	w.until("it is tried again", func() bool { return w.count("a") > 2 })
	w.quiet()
	w.set(func() { delete(w.imageErr, "1.0.0") })
	if m := w.next("berlin"); names(m) != "a" {
		t.Errorf("first message = %+v, want a", m)
	}
}

// TestVersionThatMayNotBeDeployed refuses one at a site, where what is recorded stays, and deploys it once it may be. The version that
// is recorded is not asked about.
func TestVersionThatMayNotBeDeployed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var asked []string
	retired := true
	w.start(func(o *Options) {
		o.Admit = func(_ context.Context, site protocol.SiteID, name protocol.DeploymentName, d *v1rc3.Deployment) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			version := d.Spec.Colony.ApplicationVersion
			asked = append(asked, fmt.Sprintf("%s/%s %s", site, name, version))
			if version == "1.1.0" && retired {
				return protocol.Errorf(protocol.Denied, "it is retired")
			}
			return nil
		}
	})
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	first := w.next("berlin")
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.1.0"), path("berlin", "b"): deployment("berlin", "b", "1.1.0")})
	w.until("both are refused", func() (refused bool) {
		w.store.set(func() {
			refused = len(w.store.problems) == 2 && strings.Contains(w.store.problems[0], "it is retired")
		})
		return refused
	})
	w.quiet()
	w.set(func() { retired = false })
	w.until("both are deployed", func() bool {
		m := w.next("berlin")
		return names(m) == "a b" && m.Deployments[0].Digest != first.Deployments[0].Digest
	})
	w.set(func() { asked = nil })
	changed := strings.Replace(deployment("berlin", "a", "1.1.0"), "spec:\n", "spec: # the same\n", 1)
	before := w.count("a")
	w.commit(map[string]string{path("berlin", "a"): changed})
	w.until("a is compiled anew", func() bool { return w.count("a") > before })
	w.set(func() {
		if len(asked) > 0 {
			t.Errorf("asked about what is recorded: %q", asked)
		}
	})
}
