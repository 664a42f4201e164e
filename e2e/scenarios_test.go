package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/en/engine/engines"
	"github.com/colonyfleet/colony/internal/bridgenet"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/privatecontainerd"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A scene is a part of the life of a fleet, which goes on from where the one before ended.
type scene struct {
	name string
	play func(*testing.T, *colony)
}

// play plays scenes, each as a test of its own that shows the logs of the fleet where it fails.
func (c *colony) play(whole *testing.T, scenes []scene) {
	for _, s := range scenes {
		whole.Run(s.name, func(t *testing.T) {
			c.t = t
			t.Cleanup(func() {
				if t.Failed() {
					c.dump()
				}
			})
			s.play(t, c)
		})
	}
	c.t = whole
}

// TestFleet plays the life of one fleet, scene after scene.
func TestFleet(t *testing.T) {
	t.Parallel()
	c := newColony(t)
	c.up()
	c.play(t, []scene{
		{"deploy", deploy},
		{"bad input is refused with a reason", badInput},
		{"update", update},
		{"failing update rolls back", failingUpdate},
		{"crash loop after INSTALLED", crashLoop},
		{"manual rollback", manualRollback},
		{"deploy and remove by git", byGit},
		{"values by every path", values},
		{"not placeable", notPlaceable},
		{"image that does not exist", missingImage},
		{"port taken", portTaken},
		{"kept volumes", keptVolumes},
		{"application version removed", appVersionRemoved},
		{"image removed", imageRemoved},
		{"node dies", nodeDies},
		{"everything killed", everythingKilled},
		{"killed while installing", killedWhileInstalling},
		{"git remote unreachable", gitUnreachable},
		{"site hangs", siteHangs},
		{"node hangs", nodeHangs},
		{"site loses its disk", siteLosesItsDisk},
		{"node removed", nodeRemoved},
		{"database hangs", postgresHangs},
		{"uninstall", uninstall},
		{"site removed", siteRemoved},
		{"stop and start again", stopAndStart},
	})
}

func deploy(t *testing.T, c *colony) {
	c.installed("hello", "1.0.0")
	c.greets("Hello, World! I am version 1.0.0.")
	want := []lifecycle.State{lifecycle.Pending, lifecycle.Installing, lifecycle.Installed}
	if got := c.history("hello"); !slices.Equal(got, want) {
		t.Errorf("history %v, want %v", got, want)
	}
	for _, args := range [][]string{
		{"status"},
		{"site", "list"},
		{"site", "show", site},
		{"node", "list"},
		{"node", "show", site + "/" + node},
		{"app", "list"},
		{"app", "show", "hello@1.0.0"},
		{"deployment", "list"},
		{"deployment", "show", site + "/hello"},
		{"deployment", "history", site + "/hello"},
		{"events"},
	} {
		for _, format := range []string{"table", "json", "yaml"} {
			if out := c.must(append(args, "-o", format)...); len(out) < 20 {
				t.Errorf("colony %v -o %s says only %q", args, format, out)
			}
		}
	}
	for _, tier := range []string{"co", "lo", "en"} {
		out, _ := c.cli("doctor", tier, "--config", filepath.Join(c.dir, "config", tier+".yaml")) // the clock of the machine may be wrong
		if lines := regexp.MustCompile(`(?m)^(\w+) +(identity|enrolment) .*$`).FindAllStringSubmatch(out, -1); len(lines) != 2 || lines[0][1]+lines[1][1] != "okok" {
			t.Errorf("colony doctor %s says of its identity %q", tier, lines)
		}
	}
	var n fleet.Node
	if err := c.get("/nodes/"+site+"/"+node, &n); err != nil || !n.Online || n.Inventory == nil || n.Inventory.Cores == 0 || n.Inventory.MemoryBytes == 0 || n.Inventory.EngineVersion == "" {
		t.Errorf("node: %v %+v", err, n)
	}
}

func badInput(t *testing.T, c *colony) {
	c.refused(3, []string{"nonesuch"}, "deploy", "nonesuch", "--site", site)
	c.refused(3, []string{"9.9.9", "1.0.0"}, "deploy", "hello@9.9.9", "--site", site, "--name", "x")
	c.refused(3, []string{"nowhere"}, "deploy", "hello", "--site", "nowhere")
	c.refused(3, []string{"gw-9"}, "deploy", "hello", "--site", site, "--name", "x", "--node", "gw-9")
	c.refused(2, []string{"Plant"}, "deploy", "hello", "--site", "Plant")
	c.refused(2, []string{"port", "1024"}, "deploy", "hello@1.0.0", "--site", site, "--name", "x", "--set", "port=80")
	c.refused(2, []string{"colour"}, "deploy", "hello@1.0.0", "--site", site, "--name", "x", "--set", "colour=red")
	c.refused(2, []string{"no-such-profile", "hello-compose"}, "deploy", "hello@1.0.0", "--site", site, "--name", "x", "--profile", "no-such-profile")
	c.refused(3, []string{"nothing"}, "deployment", "show", site+"/nothing")
	c.refused(2, []string{"SITE/DEPLOYMENT"}, "deployment", "show", "nothing")
	c.refused(5, []string{"does not answer", "--url"}, "status", "--url", "http://127.0.0.1:1")

	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	bad := "apiVersion: v1\nid: Bad Id\nmetadata:\n  name: Bad\n  version: \"1\"\n  catalog:\n    organization:\n      - name: X\ndeploymentProfiles:\n  - type: compose\n    id: p\n    components:\n      - name: c\n        properties:\n          repository: oci://registry.colony/x\n          revision: v1\n          timeout: 5m\n"
	if err := os.WriteFile(filepath.Join(dir, "margo.yaml"), []byte(bad), 0o644); err != nil {
		t.Fatal(err)
	}
	c.refused(2, []string{"line 2", "id", "line 16", "revision", "line 17", "timeout"}, "app", "import", dir)

	// A version that was imported is immutable.
	changed := t.TempDir()
	if err := os.CopyFS(changed, os.DirFS("../examples/registry/hello-1.0.0")); err != nil {
		t.Fatal(err)
	}
	c.must("app", "import", changed)
	path := filepath.Join(changed, "margo.yaml")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, "# changed\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	c.refused(2, []string{"1.0.0", "a version never changes"}, "app", "import", changed)

	// Two at once: the second says what is wrong and what to do.
	out, err := exec.Command(bin("colony"), c.args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another colony up") {
		t.Errorf("a second colony up on the same state directory: %v\n%s", err, out)
	}
	other := slices.Clone(c.args)
	other[2] = t.TempDir()
	out, err = exec.Command(bin("colony"), other...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "something else listens there") {
		t.Errorf("a second colony up on the same ports: %v\n%s", err, out)
	}
}

func update(t *testing.T, c *colony) {
	c.must("deploy", "hello@1.1.0", "--site", site, "--set", "addressee=Factory", "--wait")
	c.greets("Hello, Factory! I am version 1.1.0.")
	got := c.history("hello")
	want := []lifecycle.State{lifecycle.Updating, lifecycle.Installed}
	if len(got) < 2 || !slices.Equal(got[len(got)-2:], want) {
		t.Errorf("history %v, want it to end with %v", got, want)
	}
	// The same again changes nothing.
	c.must("deploy", "hello@1.1.0", "--site", site, "--set", "addressee=Factory", "--wait")
	if again := c.history("hello"); len(again) != len(got) {
		t.Errorf("an update that changes nothing moved the deployment: %v", again[len(got):])
	}
}

func failingUpdate(t *testing.T, c *colony) {
	c.refused(6, []string{"1.1.0"}, "deploy", "hello@1.2.0-exits", "--site", site, "--attempts", "2", "--backoff", "200ms", "--wait")
	c.installed("hello", "1.1.0")
	c.greets("Hello, Factory! I am version 1.1.0.")
	d, err := c.deployment("hello")
	if err != nil {
		t.Fatal(err)
	}
	if n := d.Nodes[0]; n.Refused != d.Digest || n.Code == "" {
		t.Errorf("the node does not say what it refuses and why: %+v", n)
	}
	got := c.history("hello")
	for _, s := range []lifecycle.State{lifecycle.Failed, lifecycle.RollingBack} {
		if !slices.Contains(got, s) {
			t.Errorf("history %v has no %s", got, s)
		}
	}
	// A version that never becomes healthy goes the same way.
	c.refused(6, []string{"1.1.0", string(protocol.ProbeFailed)}, "deploy", "hello@1.2.0-sick", "--site", site, "--attempts", "1", "--wait")
	c.greets("Hello, Factory! I am version 1.1.0.")
}

func manualRollback(t *testing.T, c *colony) {
	c.must("deploy", "hello@1.1.0", "--site", site, "--set", "addressee=Rollback", "--wait")
	c.greets("Hello, Rollback!")
	c.must("deployment", "rollback", site+"/hello", "--to", c.revision("hello", "1.0.0"), "--wait")
	c.greets("Hello, World! I am version 1.0.0.")
	got := c.history("hello")
	want := []lifecycle.State{lifecycle.RollingBack, lifecycle.Installed}
	if !slices.Equal(got[len(got)-2:], want) {
		t.Errorf("history %v, want it to end with %v", got, want)
	}
}

// revision returns the newest commit that asked for a version.
func (c *colony) revision(name, version string) string {
	c.t.Helper()
	var h struct {
		Revisions []fleet.Revision `json:"revisions"`
	}
	if err := c.get("/deployments/"+site+"/"+name+"/history", &h); err != nil {
		c.t.Fatal(err)
	}
	for _, r := range h.Revisions {
		if r.AppVersion == version {
			return r.Commit
		}
	}
	c.t.Fatalf("no revision with version %s in %+v", version, h.Revisions)
	return ""
}

// clone returns a work tree of the deployments repo.
func (c *colony) clone() (dir string, git func(args ...string)) {
	c.t.Helper()
	dir = filepath.Join(c.t.TempDir(), "deployments")
	git = func(args ...string) {
		c.t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=Person", "-c", "user.email=person@example.com"}, args...)...)
		if args[0] != "clone" {
			cmd.Dir = dir
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			c.t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("clone", "-q", filepath.Join(c.dir, "git", "deployments.git"), dir)
	return dir, git
}

func byGit(t *testing.T, c *colony) {
	dir, git := c.clone()
	from := filepath.Join(dir, "deployments", site, "hello", "deployment.yaml")
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	hand := strings.Replace(string(b), "name: hello\n", "name: by-hand\n", 1)
	hand = strings.ReplaceAll(hand, fmt.Sprint(c.port), fmt.Sprint(freeport.Ports(t, 1)[0]))
	hand = strings.Replace(hand, firstLine(hand), "id: 11111111-2222-4333-8444-555555555555", 1)
	for name, content := range map[string]string{"by-hand": hand, "broken": "this is: [no deployment"} {
		folder := filepath.Join(dir, "deployments", site, name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "deployment.yaml"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git("add", "-A")
	git("commit", "-qm", "One by hand, one broken")
	git("push", "-q")
	c.installed("by-hand", "1.0.0")
	c.eventually(time.Minute, "an event reports the broken file", func() error {
		var page struct{ Items []fleet.Event }
		if err := c.get("/events?kind=deployment_invalid&newest=true", &page); err != nil {
			return err
		}
		if len(page.Items) == 0 || page.Items[len(page.Items)-1].Deployment != "broken" {
			return fmt.Errorf("events %+v", page.Items)
		}
		return nil
	})
	c.greets("Hello, World!")
	c.eventually(time.Minute, "the audit has what was pushed by hand", func() error {
		out := c.must("audit", "--principal", "git")
		if !strings.Contains(out, `"One by hand, one broken"`) || !strings.Contains(out, "deployments/"+site) || strings.Contains(out, "Deploy hello") {
			return errors.New(out)
		}
		return nil
	})

	git("pull", "-q", "--rebase")
	git("rm", "-rq", filepath.Join("deployments", site, "by-hand"), filepath.Join("deployments", site, "broken"))
	git("commit", "-qm", "Remove both by hand")
	git("push", "-q")
	c.eventually(time.Minute, "the deployment by hand is removed", func() error {
		d, err := c.deployment("by-hand")
		if err != nil || !d.Archived {
			return fmt.Errorf("%v, archived %t, %s", err, d.Archived, d.State)
		}
		return nil
	})
}

// values gives a parameter a value that looks like a template, by the API and by git, changes it
// and goes back to it; a value that breaks its schema is named with its line, and what runs stays.
func values(t *testing.T, c *colony) {
	for _, value := range []string{"{{x}}", "1.10", "Plant"} {
		c.must("deploy", "hello@1.0.0", "--site", site, "--set", "addressee="+value, "--wait", "--healthy-for", "1s")
		c.greets("Hello, " + value + "! I am")
	}
	c.must("deployment", "rollback", site+"/hello", "--wait", "--healthy-for", "1s")
	c.greets("Hello, 1.10! I am")
	mark := c.mark()
	dir, git := c.clone()
	file := filepath.Join(dir, "deployments", site, "hello", "deployment.yaml")
	push := func(change func(string) string) (line int) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		changed := change(string(b))
		if changed == string(b) {
			t.Fatalf("nothing to change in\n%s", b)
		}
		if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
		git("commit", "-qam", "Change a value")
		git("push", "-q")
		for i, text := range strings.Split(string(b), "\n") {
			if i < len(strings.Split(changed, "\n")) && strings.Split(changed, "\n")[i] != text {
				return i + 1
			}
		}
		return 0
	}
	port := fmt.Sprint(c.port)
	line := push(func(s string) string { return strings.Replace(s, port, "80", 1) })
	e := c.event(time.Minute, "deployment_invalid", mark)
	for _, want := range []string{"deployments/" + site + "/hello/deployment.yaml", fmt.Sprintf("line %d:", line), "80 is below minValue"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("the event does not say %q: %s", want, e.Message)
		}
	}
	c.greets("Hello, 1.10! I am")
	push(func(s string) string {
		s = regexp.MustCompile(`value: ['"]?80['"]?\n`).ReplaceAllString(s, "value: \""+port+"\"\n")
		return regexp.MustCompile(`value: ['"]?1\.10['"]?\n`).ReplaceAllString(s, "value: \"{{by}} git\"\n")
	})
	c.greets("Hello, {{by}} git! I am")
	c.must("deploy", "hello@1.0.0", "--site", site, "--set", "addressee=World", "--wait", "--healthy-for", "1s")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func notPlaceable(t *testing.T, c *colony) {
	c.refused(6, []string{"not placeable", node, "line"}, "deploy", "hello@1.0.0", "--site", site, "--name", "nowhere", "--nodes", "line=7", "--wait")
	c.must("deployment", "delete", site+"/nowhere", "--wait")

	// What runs stays where no node matches any more, until a person agrees to its removal;
	// it can be put back.
	c.refused(6, []string{"is held", "colony proposal confirm"}, "deploy", "hello@1.0.0", "--site", site, "--nodes", "line=7", "--wait")
	c.greets("Hello, World!")
	d, err := c.deployment("hello")
	if err != nil || d.Held == "" {
		t.Fatalf("deployment hello: %v, held by %q, want a proposal", err, d.Held)
	}
	c.must("proposal", "confirm", d.Held)
	c.eventually(time.Minute, "it is removed from the node", func() error {
		got, err := c.greeting()
		if err == nil {
			return fmt.Errorf("it still answers: %s", got)
		}
		return nil
	})
	c.must("deploy", "hello@1.0.0", "--site", site, "--nodes", "role=gateway", "--wait")
	c.greets("Hello, World!")
}

func missingImage(t *testing.T, c *colony) {
	if out := c.must("app", "import", "testdata/apps"); !strings.Contains(out, "ghost") {
		t.Errorf("import says:\n%s", out)
	}
	// Neither the component's archive nor, then, its image is in the registry: that is known
	// before the commit.
	c.refused(2, []string{"compose/ghost", "colony app push"}, "deploy", "ghost", "--site", site)
	c.pushComponent("ghost", "services:\n  ghost:\n    image: registry.colony/samples/ghost:1.0.0\n")
	c.refused(2, []string{"line 3: services.ghost.image", "samples/ghost:1.0.0", "skopeo copy"}, "deploy", "ghost", "--site", site)

	// An image that another registry lacks under its digest is missed by the node: the CO does not
	// ask for it.
	missing := ":\n    image: " + c.http + "/samples/hello@sha256:" + strings.Repeat("0", 64) + "\n"
	c.pushComponent("phantom", "services:\n  phantom"+missing)
	c.refused(6, []string{string(protocol.ImageNotFound)}, "deploy", "phantom", "--site", site, "--attempts", "1", "--wait", "--timeout", "30s")
	c.must("deployment", "delete", site+"/phantom", "--wait")

	// Another archive under a revision that was accepted is refused.
	c.pushComponent("phantom", "services:\n  phantom:\n    image: registry.colony/samples/hello:1.0.0\n")
	c.refused(2, []string{"a revision is immutable"}, "deploy", "phantom", "--site", site)
}

// pushComponent stores a Compose archive in the CO's registry.
func (c *colony) pushComponent(name, compose string) {
	c.t.Helper()
	tgz, err := archive.Build(name, fstest.MapFS{"compose.yaml": {Data: []byte(compose), Mode: 0o644}})
	if err != nil {
		c.t.Fatal(err)
	}
	reg := ociclient.New(ociclient.Options{Hosts: map[string]string{"registry.colony": c.http}})
	defer reg.Close()
	if _, err := reg.PushArchive(context.Background(), "oci://registry.colony/samples/compose/"+name, "1.0.0", tgz); err != nil {
		c.t.Fatal(err)
	}
}

func portTaken(t *testing.T, c *colony) {
	c.refused(6, []string{fmt.Sprint(c.port)}, "deploy", "hello@1.0.0", "--site", site, "--name", "second", "--set", fmt.Sprintf("port=%d", c.port),
		"--attempts", "1", "--wait", "--timeout", "20s")
	d, err := c.deployment("second")
	if err != nil || len(d.Nodes) != 0 || !strings.Contains(fmt.Sprint(d.Rejected), "publishes port "+fmt.Sprint(c.port)) {
		t.Errorf("%v: %+v, %v", err, d.Nodes, d.Rejected)
	}
	c.must("deployment", "delete", site+"/second", "--wait")
	c.greets("Hello")
}

func nodeDies(t *testing.T, c *colony) {
	pid, err := c.pid("en")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.kill("en")
	c.eventually(time.Minute, "an event says that the node went offline", func() error {
		var page struct{ Items []fleet.Event }
		if err := c.get("/events?kind=node_offline&newest=true", &page); err != nil {
			return err
		}
		for _, e := range page.Items {
			if e.Time.After(began) {
				// Its connection ends with it: that is noticed at once, not by the silence.
				if late := e.Time.Sub(began); late > keepAlive {
					t.Errorf("offline after %s, want it before a keep-alive of %s is over", late, keepAlive)
				}
				return nil
			}
		}
		return errors.New("no event")
	})
	c.eventually(time.Minute, "the node is online again", func() error {
		online, err := c.nodeOnline()
		if err == nil && !online {
			err = errors.New("offline")
		}
		return err
	})
	if now, err := c.pid("en"); err != nil || now == pid {
		t.Errorf("the agent has pid %d, %v", now, err)
	}
	c.greets("Hello, World!")
	c.installed("hello", "1.0.0")
}

func everythingKilled(t *testing.T, c *colony) {
	before := c.history("hello")
	sample := c.samplePID()
	for _, part := range []string{"co", "lo", "en", "containerd", "postgres"} {
		c.kill(part)
		c.installed("hello", "1.0.0")
		c.greets("Hello, World!")
	}
	c.kill("co", "lo", "en", "containerd", "postgres")
	c.installed("hello", "1.0.0")
	c.greets("Hello, World!")
	if now := c.samplePID(); now != sample {
		t.Errorf("the container was restarted: pid %s, was %s", now, sample)
	}
	if after := c.history("hello"); len(after) != len(before) {
		t.Errorf("the deployment moved: %v", after[len(before):])
	}
	c.must("deploy", "hello@1.1.0", "--site", site, "--wait")
	c.greets("I am version 1.1.0.")
}

// samplePID returns the process of the sample's container, the child of a shim
// of this fleet's containerd.
func (c *colony) samplePID() string {
	c.t.Helper()
	out, err := exec.Command("sh", "-c", "for shim in $(pgrep -f 'containerd-shim.*"+c.dir+"'); do pgrep -P $shim -f '^/app$'; done").Output()
	if pid := strings.TrimSpace(string(out)); pid != "" {
		return pid
	}
	c.t.Fatalf("the sample's process is not found: %v", err)
	return ""
}

func killedWhileInstalling(t *testing.T, c *colony) {
	for i, parts := range [][]string{{"en"}, {"lo"}, {"co"}, {"containerd"}, {"postgres"}, {"co", "lo", "en", "containerd", "postgres"}} {
		version := []string{"1.0.0", "1.1.0"}[i%2]
		c.must("deploy", "hello@"+version, "--site", site)
		c.kill(parts...)
		c.installed("hello", version)
		c.greets("I am version " + version)
	}
}

func uninstall(t *testing.T, c *colony) {
	c.must("deployment", "delete", site+"/hello", "--wait")
	if got, err := c.greeting(); err == nil {
		t.Errorf("the sample still answers: %s", got)
	}
	got := c.history("hello")
	want := []lifecycle.State{lifecycle.Deleting, lifecycle.Deleted}
	if !slices.Equal(got[len(got)-2:], want) {
		t.Errorf("history %v, want it to end with %v", got, want)
	}
	c.refused(3, []string{"hello"}, "deployment", "delete", site+"/hello")
}

// traces lists what this fleet has on the machine, and must not leave there: bridges of
// the deployments that the CO knew, control groups, state of runc, its containerd's socket.
func (c *colony) traces(deployments []string) []string {
	c.t.Helper()
	opts := engines.Default()
	networks, err := bridgenet.New(bridgenet.Options{
		Dir: c.t.TempDir(), Pool: opts.Pool, Owner: opts.Namespace + "\x00" + filepath.Join(c.dir, "en", "engine"),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	patterns := []string{
		"/sys/fs/cgroup/colony-" + networks.Mark(), "/sys/fs/cgroup/*/colony-" + networks.Mark(),
		"/run/colony-runc-" + networks.Mark(), privatecontainerd.Socket(filepath.Join(c.dir, "containerd")),
	}
	for _, name := range deployments {
		patterns = append(patterns, "/sys/class/net/"+networks.Bridge(name))
	}
	var found []string
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			c.t.Fatal(err)
		}
		found = append(found, paths...)
	}
	return found
}

func stopAndStart(t *testing.T, c *colony) {
	c.must("deploy", "hello@1.0.0", "--site", site, "--set", fmt.Sprintf("port=%d", c.port), "--wait")
	var known []string
	var page struct{ Items []fleet.Deployment }
	if err := c.get("/deployments?archived=true&limit=500", &page); err != nil {
		t.Fatal(err)
	}
	for _, d := range page.Items {
		known = append(known, string(d.Name))
	}
	for _, part := range []string{"/sys/class/net/", "/sys/fs/cgroup/", "/run/colony-runc-", ".sock"} {
		if !slices.ContainsFunc(c.traces(known), func(trace string) bool { return strings.Contains(trace, part) }) {
			t.Errorf("a running fleet has none of %s: %q", part, c.traces(known))
		}
	}
	c.down()
	for _, left := range c.traces(known) {
		t.Errorf("left behind: %s", left)
	}
	if out, err := exec.Command("pgrep", "-af", c.dir).Output(); err == nil {
		t.Errorf("processes are left behind:\n%s", out)
	}
	if out, err := exec.Command("sh", "-c", "grep -F "+c.dir+" /proc/mounts").Output(); err == nil {
		t.Errorf("mounts are left behind:\n%s", out)
	}
	c.up()
	c.greets("Hello, World! I am version 1.0.0.")
}
