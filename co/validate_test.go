package co_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// push edits files of the deployments repo by hand.
func (b *bench) push(edit func(dir string)) {
	b.t.Helper()
	dir := b.t.TempDir()
	git := func(args ...string) {
		cmd := exec.CommandContext(b.t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("clone", "-q", b.remote, ".")
	edit(dir)
	git("add", "-A")
	git("commit", "-qm", "By hand")
	git("push", "-q")
}

// A value that git brings and that breaks its schema is an event with file and line;
// what runs stays.
func TestInvalidValueFromGit(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.publish(topic.SiteOnline, protocol.Presence{V: 1, Online: true, Session: "s", Version: "1"}, true)
	b.pushSample()
	source, err := filepath.Abs("../examples/registry")
	if err != nil {
		t.Fatal(err)
	}
	b.call(http.MethodPost, "/api/v1/apps", map[string]string{"source": source}, nil)
	b.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": "1.0.0"}, nil)
	var before protocol.SiteDesired
	for len(before.Deployments) == 0 {
		if err := protocol.Unmarshal(b.next(topic.SiteDesired).Payload, &before); err != nil {
			t.Fatal(err)
		}
	}
	line := 0
	edit := func(from, to string) {
		b.push(func(dir string) {
			file := filepath.Join(dir, "deployments/plant/hello/deployment.yaml")
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			edited := strings.Replace(string(content), from, to, 1)
			if edited == string(content) {
				t.Fatalf("%q is not in\n%s", from, content)
			}
			line = 1 + strings.Count(edited[:strings.Index(edited, to)], "\n")
			if err := os.WriteFile(file, []byte(edited), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
	edit("value: '8088'", "value: 80")
	var page struct{ Items []fleet.Event }
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(50 * time.Millisecond); len(page.Items) == 0; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("no event deployment_invalid within a minute")
		}
		b.call(http.MethodGet, "/api/v1/events?kind=deployment_invalid", nil, &page)
	}
	body := page.Items[0].Message
	for _, want := range []string{"deployments/plant/hello/deployment.yaml", "spec.parameters.port.value: 80 is below minValue 1024", "line " + strconv.Itoa(line) + ":"} {
		if !strings.Contains(body, want) {
			t.Errorf("the event does not say %q: %s", want, body)
		}
	}
	edit("value: 80", "value: 8090")
	var after protocol.SiteDesired
	if err := protocol.Unmarshal(b.next(topic.SiteDesired).Payload, &after); err != nil {
		t.Fatal(err)
	}
	if after.Generation != before.Generation+1 || len(after.Deployments) != 1 || after.Deployments[0].Digest == before.Deployments[0].Digest {
		t.Errorf("after the correction the site is sent %+v, before %+v", after, before)
	}
}
