package co_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// said are what deployments say of the parameters of the package below, good and bad.
var said = map[string][]string{
	"TAG":     {"1.0.0", "1.0.0", "9.9", "A b", "latest"},
	"SIDE":    {"registry.colony/samples/hello:1.0.0", "registry.colony/samples/hello:1.0.0", "registry.colony/none:1", "registry.colony/samples/hello@sha256:" + strings.Repeat("0", 64), "not an image"},
	"LIST":    {"8080:80", "80", "many", "99999:80", ""},
	"RESTART": {"always", "on-failure:3", "sometimes"},
	"MEMORY":  {"64m", "1g", ".inf", "1m"},
	"CORES":   {"0.5", "2", "inf", "-1"},
	"NAME":    {"host-a", "_", "two words"},
}

const manyValues = `services:
  web:
    image: registry.colony/samples/hello:${TAG:-1.0.0}
    ports: ['${LIST:-8080:80}']
    restart: ${RESTART:-always}
    mem_limit: ${MEMORY:-64m}
    cpus: ${CORES:-0.5}
  side:
    image: ${SIDE:-registry.colony/samples/hello:1.0.0}
    hostname: ${NAME:-host-a}
`

// Whatever values a deployment has, the API refuses before the commit what git brings as an event:
// nothing that it commits fails to compile, or to find its image in the CO's own registry.
func TestTheAPIAndGitAgree(t *testing.T) {
	t.Parallel()
	const rounds = 40
	b := start(t)
	b.publish(topic.SiteOnline, protocol.Presence{V: 1, Online: true, Session: "s", Version: "1"}, true)
	b.pushSample()
	b.vendor("many", manyValues)
	b.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "many", "name": "base"}, nil)
	values, answers := map[string]map[string]string{}, map[string]string{}
	for i := range rounds {
		r := rand.New(rand.NewPCG(uint64(i), 16))
		v := map[string]string{}
		for _, name := range slices.Sorted(maps.Keys(said)) {
			if v[name] = said[name][0]; r.IntN(6) == 0 {
				v[name] = said[name][r.IntN(len(said[name]))]
			}
		}
		name := fmt.Sprintf("r%d", i)
		values[name] = v
		status, answer := b.refused("/api/v1/deployments", map[string]any{"site": "plant", "app": "many", "name": "api-" + name, "parameters": v})
		if status != http.StatusCreated && status != http.StatusOK && status != http.StatusAccepted && status != http.StatusUnprocessableEntity {
			t.Fatalf("%v: %d %s", v, status, answer)
		}
		if status == http.StatusUnprocessableEntity {
			answers[name] = answer
		}
	}
	b.push(func(dir string) { write(t, dir, values) })
	for name, d := range b.compiled(2*rounds + 1 - len(answers)) {
		round, git := strings.CutPrefix(name, "git-")
		if refused := answers[round]; git && (d.Problem != "") != (refused != "") {
			t.Errorf("%v: the API says %q, from git it is %q", values[round], refused, d.Problem)
		}
		if !git && d.Problem != "" {
			t.Errorf("%s was committed and does not compile: %s", name, d.Problem)
		}
		if git && d.Problem != "" && !strings.Contains(d.Problem, "deployment.yaml at commit ") || strings.Contains(d.Problem, "commit ") && !strings.Contains(d.Problem, ": line ") {
			t.Errorf("%s is held without file and line: %s", name, d.Problem)
		}
	}
	if n := len(answers); n < rounds/4 || n > rounds*3/4 {
		t.Errorf("%d of %d rounds were refused: too few of one kind to show anything", n, rounds)
	}
}

// write puts deployments with values into a clone, in the form of the deployment "base".
func write(t *testing.T, dir string, values map[string]map[string]string) {
	t.Helper()
	base, err := os.ReadFile(filepath.Join(dir, "deployments/plant/base/deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range slices.Sorted(maps.Keys(values)) {
		d, err := v1rc3.ParseDeployment(base)
		if err != nil {
			t.Fatal(err)
		}
		d.ID, d.Metadata.Name = fmt.Sprintf("a2000000-0000-4000-8000-%012d", i), "git-"+name
		for parameter, value := range values[name] {
			p := d.Spec.Parameters[parameter]
			p.Value = value
			d.Spec.Parameters[parameter] = p
		}
		content, err := d.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		folder := filepath.Join(dir, "deployments/plant", d.Metadata.Name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "deployment.yaml"), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// compiled waits until so many deployments have been compiled, or say why they cannot be.
func (b *bench) compiled(want int) map[string]fleet.Deployment {
	b.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		done := map[string]fleet.Deployment{}
		var page struct{ Items []fleet.Deployment }
		b.call(http.MethodGet, "/api/v1/deployments?limit=200", nil, &page)
		for _, d := range page.Items {
			if d.Digest != "" || d.Problem != "" {
				done[string(d.Name)] = d
			}
		}
		if len(done) == want {
			return done
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%d deployments are compiled after a minute, want %d: %v", len(done), want, slices.Sorted(maps.Keys(done)))
		}
	}
}
