package co_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/packaging"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/margo/v1rc3"
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
// what runs stays, whatever the file says of the version of the application.
func TestInvalidValueFromGit(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]string{"named": "$0", "of another catalog": "${1}9.9.9\n", "not named": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			invalidValueFromGit(t, version)
		})
	}
}

var namedVersion = regexp.MustCompile(`(?m)^( *applicationVersion: ).*\n`)

// startWithHello starts a CO whose site is online and has a deployment of hello.
func startWithHello(t *testing.T) *bench {
	t.Helper()
	b := start(t)
	b.publish(topic.SiteOnline, protocol.Presence{V: 1, Online: true, Session: "s", Version: "1"}, true)
	b.pushSample()
	source, err := filepath.Abs("../examples/registry")
	if err != nil {
		t.Fatal(err)
	}
	b.call(http.MethodPost, "/api/v1/apps", map[string]string{"source": source}, nil)
	b.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": "1.0.0"}, nil)
	return b
}

// invalidValueFromGit plays it with what takes the place of the line that names the version.
func invalidValueFromGit(t *testing.T, version string) {
	b := startWithHello(t)
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
			if !namedVersion.MatchString(edited) && version == "$0" {
				t.Fatalf("no version of the application in\n%s", content)
			}
			edited = namedVersion.ReplaceAllString(edited, version)
			line = 1 + strings.Count(edited[:strings.Index(edited, to)], "\n")
			if err := os.WriteFile(file, []byte(edited), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
	edit("value: '8088'", "value: 80")
	b.event("deployment_invalid", "deployments/plant/hello/deployment.yaml", "spec.parameters.port.value: 80 is below minValue 1024", "line "+strconv.Itoa(line)+":")
	edit("value: 80", "value: 8090")
	var after protocol.SiteDesired
	if err := protocol.Unmarshal(b.next(topic.SiteDesired).Payload, &after); err != nil {
		t.Fatal(err)
	}
	if after.Position.Generation != before.Position.Generation+1 || len(after.Deployments) != 1 || after.Deployments[0].Digest == before.Deployments[0].Digest {
		t.Errorf("after the correction the site is sent %+v, before %+v", after, before)
	}
}

// A parameter that a file leaves out runs with its default, as the import judged it; a file
// that sends a value elsewhere than the application does is an event.
func TestParametersFromGit(t *testing.T) {
	t.Parallel()
	b := startWithHello(t)
	digest := func() protocol.Digest {
		var d protocol.SiteDesired
		for len(d.Deployments) == 0 {
			if err := protocol.Unmarshal(b.next(topic.SiteDesired).Payload, &d); err != nil {
				t.Fatal(err)
			}
		}
		return d.Deployments[0].Digest
	}
	defaults := digest()
	edit := func(change func(*v1rc3.Deployment)) {
		b.push(func(dir string) {
			file := filepath.Join(dir, "deployments/plant/hello/deployment.yaml")
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			d, err := v1rc3.ParseDeployment(content)
			if err != nil {
				t.Fatal(err)
			}
			change(d)
			edited, err := d.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, edited, 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
	edit(func(d *v1rc3.Deployment) {
		p := d.Spec.Parameters["port"]
		p.Value = "8090"
		d.Spec.Parameters["port"] = p
	})
	if other := digest(); other == defaults {
		t.Error("another value did not change what runs")
	}
	edit(func(d *v1rc3.Deployment) { clear(d.Spec.Parameters) })
	if got := digest(); got != defaults {
		t.Errorf("without parameters %s runs, with their defaults %s", got, defaults)
	}
	edit(func(d *v1rc3.Deployment) {
		d.Spec.Parameters = map[string]v1rc3.Parameter{"port": {Value: "8090", Targets: []v1rc3.Target{{Pointer: "PROT", Components: []string{"hello"}}}}}
	})
	b.event("deployment_invalid", "deployments/plant/hello/deployment.yaml", "spec.parameters.port.targets[0].components[0]: the application does not have the target PROT of component hello")
}

// A file of git that names one application and brings a component of another is held, with its
// line, whether its application has rules here or not; what runs stays.
func TestComponentOfAnotherApplicationFromGit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ from, to, want string }{
		"revision": {
			"revision: 1.0.0", "revision: 1.1.0",
			"spec.deploymentProfile.components[0].properties.revision: component hello of application hello 1.0.0 is oci://registry.colony/samples/compose/hello:1.0.0, not oci://registry.colony/samples/compose/hello:1.1.0",
		},
		"repository": {
			"repository: oci://registry.colony/samples/compose/hello", "repository: oci://registry.colony/samples/compose/other",
			"spec.deploymentProfile.components[0].properties.repository: component hello of application hello 1.0.0 is oci://registry.colony/samples/compose/hello:1.0.0, not oci://registry.colony/samples/compose/other:1.0.0",
		},
		"spelling": {
			"repository: oci://registry.colony/samples/compose/hello", "repository: oci://registry.colony/samples/./compose/hello",
			`spec.deploymentProfile.components[0].properties.repository: "oci://registry.colony/samples/./compose/hello": want oci://host/path, with a path of`,
		},
		"application": {
			"applicationId: hello", "applicationId: unknown",
			"spec.deploymentProfile.components[0].properties.repository: oci://registry.colony/samples/compose/hello:1.0.0 is a component of application hello, not of unknown",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startWithHello(t)
			line := 0
			b.push(func(dir string) {
				file := filepath.Join(dir, "deployments/plant/hello/deployment.yaml")
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				edited := strings.Replace(string(content), c.from, c.to, 1)
				if edited == string(content) {
					t.Fatalf("%q is not in\n%s", c.from, content)
				}
				line = 1 + strings.Count(edited[:strings.Index(edited, c.to)], "\n")
				if name == "application" {
					line = 1 + strings.Count(edited[:strings.Index(edited, "repository:")], "\n")
				}
				if err := os.WriteFile(file, []byte(edited), 0o644); err != nil {
					t.Fatal(err)
				}
			})
			b.event("deployment_invalid", "deployments/plant/hello/deployment.yaml", "line "+strconv.Itoa(line)+": "+c.want)
		})
	}
}

// vendor imports a package that is made of a vendor's file, and returns the warnings.
func (b *bench) vendor(id, compose string) string {
	b.t.Helper()
	p, err := packaging.FromCompose(fstest.MapFS{"compose.yaml": {Data: []byte(compose)}}, []string{"compose.yaml"}, packaging.Options{ID: id, Organization: "o"})
	if err != nil {
		b.t.Fatal(err)
	}
	folder := filepath.Join(b.t.TempDir(), id)
	if err := p.Write(folder); err != nil {
		b.t.Fatal(err)
	}
	reg := ociclient.New(ociclient.Options{Hosts: map[string]string{"registry.colony": b.co.HTTPAddr()}})
	defer reg.Close()
	if _, err := packaging.Push(b.t.Context(), reg, os.DirFS(folder), "registry.colony/"+id); err != nil {
		b.t.Fatal(err)
	}
	var answer struct{ Results []struct{ Warnings []string } }
	b.call(http.MethodPost, "/api/v1/apps", map[string]string{"source": "oci://registry.colony/" + id + ":1.0.0"}, &answer)
	return fmt.Sprint(answer.Results)
}

// An image that the CO's own registry lacks, by its tag or digest, is refused before the commit
// with the service, the line and how to push it; one that git brings is held with file and line.
func TestImageThatTheOwnRegistryLacks(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.publish(topic.SiteOnline, protocol.Presence{V: 1, Online: true, Session: "s", Version: "1"}, true)
	b.pushSample()
	if got := b.vendor("later", "services:\n  web: {image: 'registry.colony/samples/later:${TAG:-2}'}\n"); !strings.Contains(got, "line 2: services.web.image: find image registry.colony/samples/later:2: the registry does not have it: push it there") {
		t.Errorf("the import does not warn of the image that its registry lacks: %s", got)
	}
	const lacking = "registry.colony/samples/hello@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	if got := b.vendor("web", "services:\n  web:\n    image: registry.colony/samples/hello:${TAG:-1.0.0}\n  side:\n    image: ${SIDE:-registry.colony/samples/hello:1.0.0}\n"); strings.Contains(got, "image") {
		t.Errorf("the import warns of images that are there: %s", got)
	}
	deploy := func(parameter, value string) map[string]any {
		return map[string]any{"site": "plant", "app": "web", "parameters": map[string]any{parameter: value}}
	}
	for _, c := range []struct{ parameter, value, want string }{
		{"TAG", "9.9", "line 3: services.web.image: resolve image registry.colony/samples/hello:9.9: find image registry.colony/samples/hello:9.9: the registry does not have it: push it there, as with skopeo copy docker://SOURCE docker://ADDRESS-OF-THE-CO/samples/hello:9.9"},
		{"SIDE", lacking, "line 5: services.side.image: resolve image " + lacking},
	} {
		status, answer := b.refused("/api/v1/deployments", deploy(c.parameter, c.value))
		if status != http.StatusUnprocessableEntity || !strings.Contains(answer, c.want) {
			t.Errorf("%s: %d %s, want 422 with %s", c.value, status, answer, c.want)
		}
	}
	var page struct{ Items []fleet.Deployment }
	if b.call(http.MethodGet, "/api/v1/deployments", nil, &page); len(page.Items) != 0 {
		t.Errorf("it was committed: %+v", page.Items)
	}
	b.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "web"}, nil)
	line := 0
	b.push(func(dir string) {
		file := filepath.Join(dir, "deployments/plant/web/deployment.yaml")
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		edited := strings.Replace(string(content), "value: 1.0.0", "value: 9.9.9", 1)
		if line = 1 + strings.Count(edited[:max(strings.Index(edited, "9.9.9"), 0)], "\n"); line == 1 {
			t.Fatalf("no value in\n%s", content)
		}
		if err := os.WriteFile(file, []byte(edited), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	b.event("deployment_invalid", "deployments/plant/web/deployment.yaml", "line "+strconv.Itoa(line)+": spec.parameters.TAG.value: component web: compose.yaml: "+
		"line 3: services.web.image: resolve image registry.colony/samples/hello:9.9.9: find image", "the registry does not have it")
}

// event waits for an event of a kind whose message holds texts.
func (b *bench) event(kind string, texts ...string) {
	b.t.Helper()
	var page struct{ Items []fleet.Event }
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(50 * time.Millisecond); len(page.Items) == 0; <-tick.C {
		if time.Now().After(deadline) {
			b.t.Fatalf("no event %s within a minute", kind)
		}
		b.call(http.MethodGet, "/api/v1/events?kind="+kind, nil, &page)
	}
	for _, want := range texts {
		if body := page.Items[0].Message; !strings.Contains(body, want) {
			b.t.Errorf("the event does not say %q: %s", want, body)
		}
	}
}

// refused sends a request that the CO is to refuse, and returns its answer.
func (b *bench) refused(path string, body any) (status int, answer string) {
	b.t.Helper()
	j, err := json.Marshal(body)
	if err != nil {
		b.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, "http://"+b.co.HTTPAddr()+path, bytes.NewReader(j))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// What will not compile is not committed, where that can be known before.
func TestNothingIsCommittedThatWillNotCompile(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.publish(topic.SiteOnline, protocol.Presence{V: 1, Online: true, Session: "s", Version: "1"}, true)
	b.pushSample()
	vendor := fstest.MapFS{"compose.yaml": {Data: []byte("services:\n  web:\n    image: registry.colony/samples/hello:1.0.0\n    ports: ['${LIST:?ports}']\n")}}
	p, err := packaging.FromCompose(vendor, []string{"compose.yaml"}, packaging.Options{ID: "web", Organization: "o"})
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "web")
	if err := p.Write(folder); err != nil {
		t.Fatal(err)
	}
	reg := ociclient.New(ociclient.Options{Hosts: map[string]string{"registry.colony": b.co.HTTPAddr()}})
	defer reg.Close()
	if _, err := packaging.Push(t.Context(), reg, os.DirFS(folder), "registry.colony/web"); err != nil {
		t.Fatal(err)
	}
	b.call(http.MethodPost, "/api/v1/apps", map[string]string{"source": "oci://registry.colony/web:1.0.0"}, nil)
	deploy := func(list string) map[string]any {
		return map[string]any{"site": "plant", "app": "web", "parameters": map[string]any{"LIST": list}}
	}
	status, answer := b.refused("/api/v1/deployments", deploy("many"))
	if status != http.StatusUnprocessableEntity || !strings.Contains(answer, "component web: compose.yaml") || !strings.Contains(answer, "many") {
		t.Errorf("a value that the Compose file cannot take: %d %s, want 422 with the component and the value", status, answer)
	}
	var page struct{ Items []fleet.Deployment }
	if b.call(http.MethodGet, "/api/v1/deployments", nil, &page); len(page.Items) != 0 {
		t.Errorf("it was committed: %+v", page.Items)
	}
	b.call(http.MethodPost, "/api/v1/deployments", deploy("8080:80"), nil)
}
