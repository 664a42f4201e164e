package api_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// A document is what of an OpenAPI 3.1 description is checked here.
type document struct {
	OpenAPI string `json:"openapi"`
	Info    struct {
		Title   string `json:"title"`
		Version string `json:"version"`
	} `json:"info"`
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Schemas map[string]any `json:"schemas"`
	} `json:"components"`
}

type operation struct {
	OperationID string   `json:"operationId"`
	Summary     string   `json:"summary"`
	Tags        []string `json:"tags"`
	Parameters  []struct {
		Name        string         `json:"name"`
		In          string         `json:"in"`
		Description string         `json:"description"`
		Required    bool           `json:"required"`
		Schema      map[string]any `json:"schema"`
	} `json:"parameters"`
	RequestBody *struct {
		Required bool           `json:"required"`
		Content  map[string]any `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Description string         `json:"description"`
		Content     map[string]any `json:"content"`
	} `json:"responses"`
}

var (
	retiredWord = regexp.MustCompile(`(?i)\b(lanes?|told|tells?|gone|queues?|moves?)\b`)
	placeholder = regexp.MustCompile(`\{([a-z]+)\}`)
	statusCode  = regexp.MustCompile(`^([1-5][0-9][0-9]|default)$`)
)

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	a := w.get("/openapi.json").into(http.StatusOK, nil)
	var doc document
	var whole any
	for _, out := range []any{&doc, &whole} {
		if err := json.Unmarshal(a.body, out); err != nil {
			t.Fatal(err)
		}
	}
	if !regexp.MustCompile(`^3\.1\.\d+$`).MatchString(doc.OpenAPI) || doc.Info.Title != "Colony" || doc.Info.Version != "1.2.3" {
		t.Errorf("openapi %q of %+v", doc.OpenAPI, doc.Info)
	}
	var routes []string
	ids := map[string]string{}
	for path, operations := range doc.Paths {
		for method, op := range operations {
			route := strings.ToUpper(method) + " " + path
			routes = append(routes, fmt.Sprintf("%s: %s", route, op.Summary))
			if other := ids[op.OperationID]; other != "" || op.OperationID == "" {
				t.Errorf("%s: operation id %q, as %s", route, op.OperationID, other)
			}
			ids[op.OperationID] = route
			checkOperation(t, route, path, op)
		}
	}
	if old := retiredWord.FindAll(a.body, -1); old != nil {
		t.Errorf("the description uses words that the glossary retired: %s", bytes.Join(old, []byte(", ")))
	}
	checkRefs(t, "#", whole, doc.Components.Schemas)
	slices.Sort(routes)
	golden(t, "testdata/routes.golden", strings.Join(routes, "\n")+"\n")
	w.checkServed(doc)
}

func checkOperation(t *testing.T, route, path string, op operation) {
	t.Helper()
	if op.Summary == "" || len(op.Tags) != 1 {
		t.Errorf("%s: no summary or tag", route)
	}
	var inPath, declared []string
	for _, m := range placeholder.FindAllStringSubmatch(path, -1) {
		inPath = append(inPath, m[1])
	}
	for _, p := range op.Parameters {
		if len(p.Schema) == 0 || !slices.Contains([]string{"path", "query", "header"}, p.In) {
			t.Errorf("%s: parameter %+v", route, p)
		}
		if p.Description == "" {
			t.Errorf("%s: the parameter %s has no description", route, p.Name)
		}
		if p.In == "path" {
			declared = append(declared, p.Name)
			if !p.Required {
				t.Errorf("%s: %s is not required", route, p.Name)
			}
		}
	}
	slices.Sort(inPath)
	slices.Sort(declared)
	diff(t, route+": path parameters", inPath, declared)
	good, problems := 0, 0
	for code, r := range op.Responses {
		if !statusCode.MatchString(code) || r.Description == "" {
			t.Errorf("%s: response %q: %+v", route, code, r)
		}
		if strings.HasPrefix(code, "2") {
			good++
		} else if len(r.Content) == 1 && r.Content["application/problem+json"] != nil {
			problems++
		}
	}
	if good != 1 || problems < 3 {
		t.Errorf("%s: %d answers of success and %d problems", route, good, problems)
	}
	if op.RequestBody != nil && op.RequestBody.Content["application/json"] == nil {
		t.Errorf("%s: the body is not JSON", route)
	}
}

// checkRefs finds references that lead nowhere, and types that JSON Schema does
// not have.
func checkRefs(t *testing.T, at string, v any, schemas map[string]any) {
	t.Helper()
	switch v := v.(type) {
	case []any:
		for i, item := range v {
			checkRefs(t, fmt.Sprintf("%s/%d", at, i), item, schemas)
		}
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			name, local := strings.CutPrefix(ref, "#/components/schemas/")
			if schemas[name] == nil || !local {
				t.Errorf("%s: $ref %q leads nowhere", at, ref)
			}
		}
		if _, nullable := v["nullable"]; nullable {
			t.Errorf("%s: nullable is of OpenAPI 3.0", at)
		}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			checkRefs(t, at+"/"+k, v[k], schemas)
		}
	}
}

// checkServed makes sure that each route of the description is served, and that
// what is served beside them is known.
func (w *world) checkServed(doc document) {
	w.t.Helper()
	for path, operations := range doc.Paths {
		for method := range operations {
			a := w.do(strings.ToUpper(method), placeholder.ReplaceAllString(path, "none"), nil)
			if a.status == http.StatusMethodNotAllowed || strings.Contains(string(a.body), "the API has no ") {
				w.t.Errorf("%s %s is not served: %d", method, path, a.status)
			}
		}
	}
	for _, path := range []string{"/openapi.yaml", "/healthz", "/readyz"} {
		w.get(path).into(http.StatusOK, nil)
	}
	for path := range map[string]bool{"/": true, "/docs": true, "/metrics": true, "/api/v1": true, "/api/v1/nothing": true, "/api/v1/deployments/home": true} {
		w.get(path).fails(http.StatusNotFound, "the API has no "+path+": see /openapi.json")
	}
	a := w.do(http.MethodPut, "/api/v1/apps", nil)
	a.fails(http.StatusMethodNotAllowed, "/api/v1/apps takes only GET, HEAD, POST")
	diff(w.t, "allow", "GET, HEAD, POST", a.header.Get("Allow"))
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: run the test with -update", err)
	}
	diff(t, file, string(want), got)
}

// TestUnknownQueryParameters misspells a parameter on every route that reads.
func TestUnknownQueryParameters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	var doc document
	if err := json.Unmarshal(w.get("/openapi.json").into(http.StatusOK, nil).body, &doc); err != nil {
		t.Fatal(err)
	}
	for path, operations := range doc.Paths {
		if _, ok := operations["get"]; ok {
			w.get(placeholder.ReplaceAllString(path, "plant") + "?stat=FAILED").fails(http.StatusUnprocessableEntity)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/api/v1/events?kinds=x", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := w.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a stream with an unknown parameter: %s", resp.Status)
	}
}
