package v1rc3_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/margo/v1rc3"
)

// documents is how many documents of each kind are generated; COLONY_MARGO_DOCUMENTS
// changes it.
func documents(t *testing.T) int {
	t.Helper()
	text := os.Getenv("COLONY_MARGO_DOCUMENTS")
	if text == "" {
		if testing.Short() {
			return 300
		}
		return 10_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("COLONY_MARGO_DOCUMENTS %q: want a number", text)
	}
	return n
}

func schema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile("testdata/schema/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A reading is one kind of document: its schema, how it is generated, and how Colony
// reads it.
type reading struct {
	schema      *jsonschema.Schema
	generate    func(*gen) object
	parse       func([]byte) error
	differences []difference
}

// run generates documents, most of them damaged in one or two places, and compares
// Colony's reader with the schema. A difference must have a name in docs/margo.md, and a
// refusal a path and a line.
func (r reading) run(t *testing.T, n int) {
	t.Helper()
	page := readFile(t, "../../docs/margo.md")
	used := map[string]int{}
	valid, refused := 0, 0
	for i := range n {
		g := &gen{rand.New(rand.NewPCG(7, uint64(i)))}
		doc := r.generate(g)
		for range g.IntN(3) {
			g.damage(doc)
		}
		raw := g.render(t, doc)
		plain := reread(t, doc)
		invalid, err := r.schema.Validate(plain), r.parse(raw)
		if invalid == nil {
			valid++
		}
		if err != nil {
			refused++
			located(t, i, raw, err)
		}
		if (invalid == nil) == (err == nil) {
			continue
		}
		named := false
		for _, d := range r.differences {
			if d.lax == (err == nil) && d.applies(plain.(map[string]any)) {
				named = true
				used[d.row]++
			}
		}
		if !named {
			t.Errorf("document %d: schema: %v\nColony: %v\n%s", i, invalid, err, raw)
			if t.Failed() && i > 0 {
				return
			}
		}
	}
	for _, d := range r.differences {
		if !strings.Contains(page, "| "+d.row+" |") {
			t.Errorf("docs/margo.md has no row %q", d.row)
		}
		if used[d.row] == 0 && n >= 10_000 {
			t.Errorf("the difference %q was never seen: is there still one?", d.row)
		}
	}
	t.Logf("%d documents: %d valid, %d refused; differences %v", n, valid, refused, used)
}

// located checks that each problem of a refused document has a path and a line.
func located(t *testing.T, i int, raw []byte, err error) {
	t.Helper()
	problems, ok := err.(v1rc3.Problems) //nolint:errorlint // the parser promises it
	if !ok || len(problems) == 0 {
		t.Errorf("document %d: %v is no list of problems", i, err)
	}
	for _, p := range problems {
		if p.Line < 1 || p.Line > strings.Count(string(raw), "\n")+1 || p.Path == "" || p.Message == "" {
			t.Errorf("document %d: the problem %+v has no path or no line\n%s", i, p, raw)
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// reread is a document as JSON has it.
func reread(t *testing.T, doc any) any {
	t.Helper()
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// render writes a document as YAML, or as JSON, which is YAML too.
func (g *gen) render(t *testing.T, doc object) []byte {
	t.Helper()
	if g.IntN(2) == 0 {
		b, err := json.MarshalIndent(doc, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b, err := yaml.Dump(map[string]any(doc))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestApplicationsAgainstTheSchema(t *testing.T) {
	t.Parallel()
	reading{
		schema: schema(t, "application.json"), generate: (*gen).application, differences: append(applicationDifferences, common...),
		parse: func(b []byte) error { _, err := v1rc3.ParseApplication(b); return err },
	}.run(t, documents(t))
}

func TestDeploymentsAgainstTheSchema(t *testing.T) {
	t.Parallel()
	reading{
		schema: schema(t, "deployment.json"), generate: (*gen).deployment, differences: append(deploymentDifferences, common...),
		parse: func(b []byte) error { _, err := v1rc3.ParseDeployment(b); return err },
	}.run(t, documents(t))
}

// What Colony writes is valid, and reads back as it was.
func TestWrittenDeploymentsAreValid(t *testing.T) {
	t.Parallel()
	s := schema(t, "deployment.json")
	written := 0
	for i := range documents(t) {
		g := &gen{rand.New(rand.NewPCG(8, uint64(i)))}
		doc, err := json.Marshal(g.application())
		if err != nil {
			t.Fatal(err)
		}
		app, err := v1rc3.ParseApplication(doc)
		if err != nil {
			t.Fatalf("application %d: %v\n%s", i, err, doc)
		}
		d, err := v1rc3.Build(app, app.Profiles[g.IntN(len(app.Profiles))].ID, g.values(app), v1rc3.Request{
			ID: "9f3c2d1e-0000-4000-8000-000000000001", Name: "meter", DeviceID: "plant/*",
			Colony: v1rc3.Extensions{Replicas: uint32(g.IntN(3)), Retry: uint32(g.IntN(2))},
		})
		if err != nil {
			continue // a value that breaks its schema
		}
		raw, err := d.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		written++
		var plain any
		if err := yaml.Load(raw, &plain); err != nil {
			t.Fatal(err)
		}
		if plain := reread(t, plain); plain.(map[string]any)["spec"].(map[string]any)["deploymentProfile"].(map[string]any)["type"] != "custom" {
			if err := s.Validate(plain); err != nil {
				t.Fatalf("application %d: the deployment is not valid: %v\n%s", i, err, raw)
			}
		}
		back, err := v1rc3.ParseDeployment(raw)
		if err != nil {
			t.Fatalf("application %d: the deployment cannot be read back: %v\n%s", i, err, raw)
		}
		again, err := back.Marshal()
		if err != nil || string(again) != string(raw) {
			t.Fatalf("application %d: read back and written again it differs: %v\n%s\n%s", i, err, raw, again)
		}
	}
	if written < documents(t)/4 {
		t.Errorf("only %d of %d deployments were made", written, documents(t))
	}
	t.Log(fmt.Sprint(written, " deployments written"))
}
