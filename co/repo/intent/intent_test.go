package intent

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

const meterV1 = `apiVersion: v1
id: meter
metadata:
  name: Meter
  description: Reads meters
  version: "1.0.0"
  catalog:
    organization:
      - name: Colony
deploymentProfiles:
  - type: helm
    id: cluster
    components:
      - name: chart
        properties: {repository: oci://r.example/charts/meter, revision: 1.0.0}
  - type: compose
    id: small
    components:
      - name: meter
        properties: {repository: oci://r.example/compose/meter, revision: 1.0.0}
  - type: compose
    id: large
    components:
      - name: meter
        properties: {repository: oci://r.example/compose/meter-large, revision: 1.0.0}
      - name: archive
        properties: {repository: oci://r.example/compose/archive, revision: 1.0.0}
parameters:
  port:
    value: 502
    targets:
      - {pointer: PORT, components: [meter]}
  serial:
    value: "0"
    targets:
      - {pointer: SERIAL, components: [meter]}
  buses:
    value: [a, b]
    targets:
      - {pointer: BUSES, components: [meter]}
  retention:
    value: 30
    targets:
      - {pointer: DAYS, components: [archive]}
configuration:
  sections:
    - name: General
      settings:
        - {parameter: port, name: Port, schema: port}
        - {parameter: serial, name: Serial, schema: text, immutable: true}
        - {parameter: buses, name: Buses, schema: buses}
  schema:
    - {name: port, dataType: integer, minValue: 1, maxValue: 65535}
    - {name: text, dataType: string, maxLength: 20}
    - {name: buses, dataType: "array[string]", multiselect: true, options: [a, b, p, q, z]}
`

// meterV2 has no serial any more, and no profile large.
var meterV2 = func() string {
	s := strings.Replace(meterV1, `version: "1.0.0"`, `version: "2.0.0"`, 1)
	s = strings.ReplaceAll(s, "revision: 1.0.0", "revision: 2.0.0")
	s = cut(s, "  - type: compose\n    id: large", "parameters:")
	s = cut(s, "  serial:\n", "  buses:\n")
	s = cut(s, "  retention:\n", "configuration:\n")
	return strings.Replace(s, "        - {parameter: serial, name: Serial, schema: text, immutable: true}\n", "", 1)
}()

func cut(s, from, to string) string {
	i := strings.Index(s, from)
	return s[:i] + s[i+strings.Index(s[i:], to):]
}

func application(t *testing.T, doc string) *v1rc3.Application {
	t.Helper()
	app, err := v1rc3.ParseApplication([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return app
}

var target = Target{ID: "11111111-1111-4111-8111-111111111111", Site: "home", Name: "meter-1"}

func create(t *testing.T, doc string, req Request) *v1rc3.Deployment {
	t.Helper()
	d, err := Create(application(t, doc), target, req)
	if err != nil {
		t.Fatal(err)
	}
	return stored(t, d)
}

// stored is a deployment as the deployments repo gives it back.
func stored(t *testing.T, d *v1rc3.Deployment) *v1rc3.Deployment {
	t.Helper()
	doc, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	back, err := v1rc3.ParseDeployment(doc)
	if err != nil {
		t.Fatalf("the file cannot be read back: %v\n%s", err, doc)
	}
	return back
}

func values(d *v1rc3.Deployment) map[string]any {
	out := map[string]any{}
	for name, p := range d.Spec.Parameters {
		out[name] = p.Value
	}
	return out
}

func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	diff(t, "path", "deployments/home/meter-1/deployment.yaml", Path("home", "meter-1"))
	diff(t, "folder", "deployments/home/meter-1", Folder("home", "meter-1"))
	for app, want := range map[string]string{
		"hello":                              "hello",
		strings.Repeat("a", 63):              strings.Repeat("a", 63),
		"vendor-" + strings.Repeat("b", 63):  strings.Repeat("b", 63),
		"vendor" + strings.Repeat("-c", 32):  strings.TrimPrefix(strings.Repeat("-c", 32)[1:], "-"),
		"x" + strings.Repeat("d", 62) + "-e": strings.Repeat("d", 61) + "-e",
	} {
		name := Name(app)
		if string(name) != want {
			t.Errorf("Name(%q) = %q, want %q", app, name, want)
		}
		if _, err := protocol.ParseDeploymentName(string(name)); err != nil {
			t.Errorf("Name(%q): %v", app, err)
		}
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	no := false
	d := create(t, meterV1, Request{
		Node: "gw-1", Selector: map[string]string{"hall": "7"}, Replicas: new(uint32(2)), Parameters: map[string]any{"port": 503.0, "serial": "X"},
		Policy: &v1rc3.Policy{Attempts: 5, Backoff: v1rc3.Duration(time.Minute), Rollback: &no},
	})
	diff(t, "id", target.ID, d.ID)
	diff(t, "device", "home/gw-1", d.Metadata.DeviceID)
	diff(t, "name", "meter-1", d.Metadata.Name)
	diff(t, "app", "meter", d.Spec.ApplicationID)
	diff(t, "components", []string{"meter"}, componentNames(d))
	diff(t, "values", map[string]any{"port": "503", "serial": "X", "buses": "a,b"}, values(d))
	diff(t, "extensions", &v1rc3.Extensions{
		ApplicationVersion: "1.0.0", Profile: "small", Selector: map[string]string{"hall": "7"}, Replicas: 2,
		Policy: &v1rc3.Policy{Attempts: 5, Backoff: v1rc3.Duration(time.Minute), Rollback: &no},
	}, d.Spec.Colony)
	diff(t, "any node", "home/*", create(t, meterV1, Request{}).Metadata.DeviceID)
	diff(t, "any node by name", "home/*", create(t, meterV1, Request{Node: AnyNode}).Metadata.DeviceID)
}

func componentNames(d *v1rc3.Deployment) []string {
	var out []string
	for _, c := range d.Spec.Profile.Components {
		out = append(out, c.Name)
	}
	return out
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	clusterOnly := cut(meterV1, "  - type: compose\n    id: small", "parameters:")
	clusterOnly = cut(clusterOnly, "parameters:", "configuration:")
	clusterOnly = clusterOnly[:strings.Index(clusterOnly, "configuration:")]
	for name, tc := range map[string]struct {
		doc        string
		req        Request
		path, want string
	}{
		"unknown profile":    {meterV1, Request{Profile: "tiny"}, "profile", `no profile "tiny"; it has cluster (helm), small (compose), large (compose)`},
		"profile of helm":    {meterV1, Request{Profile: "cluster"}, "profile", "run compose only"},
		"helm only":          {clusterOnly, Request{}, "profile", "no profile of type compose"},
		"value out of range": {meterV1, Request{Parameters: map[string]any{"port": 70000}}, "values.port", "above maxValue 65535"},
		"wrong type":         {meterV1, Request{Parameters: map[string]any{"port": "x"}}, "values.port", "want an integer"},
		"unknown parameter":  {meterV1, Request{Parameters: map[string]any{"prot": 1}}, "values.prot", "it has buses, port, retention, serial"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Create(application(t, tc.doc), target, tc.req)
			problems, ok := errors.AsType[v1rc3.Problems](err)
			if !ok {
				t.Fatalf("got %v, want Problems", err)
			}
			if problems[0].Path != tc.path || !strings.Contains(problems[0].Message, tc.want) {
				t.Errorf("got %v, want %s and %q", problems, tc.path, tc.want)
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	first := Request{
		Profile: "large", Node: "gw-1", Selector: map[string]string{"hall": "7"}, Replicas: new(uint32(2)),
		Parameters: map[string]any{"port": 503, "serial": "X", "buses": []any{"p", "q"}, "retention": 7},
		Policy:     &v1rc3.Policy{Attempts: 5, Backoff: v1rc3.Duration(time.Minute), Rollback: &no},
	}
	type want struct {
		device string
		values map[string]any
		ext    v1rc3.Extensions
	}
	stays := want{"home/gw-1", map[string]any{"port": "503", "serial": "X", "buses": "p,q", "retention": "7"}, v1rc3.Extensions{
		ApplicationVersion: "1.0.0", Profile: "large", Selector: map[string]string{"hall": "7"}, Replicas: 2, Retry: 4,
		Policy: &v1rc3.Policy{Attempts: 5, Backoff: v1rc3.Duration(time.Minute), Rollback: &no},
	}}
	for name, tc := range map[string]struct {
		doc    string
		req    Request
		change func(*want)
	}{
		"nothing":          {meterV1, Request{}, func(*want) {}},
		"one parameter":    {meterV1, Request{Parameters: map[string]any{"port": 504}}, func(w *want) { w.values["port"] = "504" }},
		"list":             {meterV1, Request{Parameters: map[string]any{"buses": []any{"z"}}}, func(w *want) { w.values["buses"] = "z" }},
		"back to default":  {meterV1, Request{Parameters: map[string]any{"port": nil}}, func(w *want) { w.values["port"] = "502" }},
		"same immutable":   {meterV1, Request{Parameters: map[string]any{"serial": "X"}}, func(*want) {}},
		"other node":       {meterV1, Request{Node: "gw-2"}, func(w *want) { w.device = "home/gw-2" }},
		"any node":         {meterV1, Request{Node: AnyNode}, func(w *want) { w.device = "home/*" }},
		"other labels":     {meterV1, Request{Selector: map[string]string{"hall": "8"}}, func(w *want) { w.ext.Selector = map[string]string{"hall": "8"} }},
		"no labels":        {meterV1, Request{Selector: map[string]string{}}, func(w *want) { w.ext.Selector = nil }},
		"all that match":   {meterV1, Request{Replicas: new(uint32(0))}, func(w *want) { w.ext.Replicas = 0 }},
		"replicas":         {meterV1, Request{Replicas: new(uint32(3))}, func(w *want) { w.ext.Replicas = 3 }},
		"policy: attempts": {meterV1, Request{Policy: &v1rc3.Policy{Attempts: 1}}, func(w *want) { w.ext.Policy.Attempts = 1 }},
		"policy: backoff":  {meterV1, Request{Policy: &v1rc3.Policy{Backoff: 7}}, func(w *want) { w.ext.Policy.Backoff = 7 }},
		"policy: minimum":  {meterV1, Request{Policy: &v1rc3.Policy{MinHealthy: 7}}, func(w *want) { w.ext.Policy.MinHealthy = 7 }},
		"policy: rollback": {meterV1, Request{Policy: &v1rc3.Policy{Rollback: &yes}}, func(w *want) { w.ext.Policy.Rollback = &yes }},
		"profile":          {meterV1, Request{Profile: "small"}, func(w *want) { delete(w.values, "retention"); w.ext.Profile = "small" }},
		"version": {meterV2, Request{}, func(w *want) { // without large and serial
			delete(w.values, "retention")
			delete(w.values, "serial")
			w.ext.Profile, w.ext.ApplicationVersion = "small", "2.0.0"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prev := create(t, meterV1, first)
			prev.Spec.Colony.Retry, prev.Spec.Colony.Rollback = 4, string(fleet.ContentDigest(prev))
			prev.Metadata.Labels, prev.Metadata.Namespace = map[string]string{"by": "hand"}, "plant"
			prev.Spec.Extensions = map[string]any{"x-other-extensions": map[string]any{"k": "v"}}
			before, err := prev.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			d, err := Update(prev, application(t, tc.doc), Target{ID: "another", Site: "home", Name: "meter-1"}, tc.req)
			if err != nil {
				t.Fatal(err)
			}
			d = stored(t, d)
			w := want{stays.device, map[string]any{}, stays.ext}
			policy := *stays.ext.Policy
			w.ext.Policy = &policy
			for k, v := range stays.values {
				w.values[k] = v
			}
			tc.change(&w)
			diff(t, "device", w.device, d.Metadata.DeviceID)
			diff(t, "values", w.values, values(d))
			diff(t, "extensions", &w.ext, d.Spec.Colony)
			diff(t, "id", target.ID, d.ID)
			diff(t, "labels", map[string]string{"by": "hand"}, d.Metadata.Labels)
			diff(t, "namespace", "plant", d.Metadata.Namespace)
			others, err := json.Marshal(d.Spec.Extensions)
			if err != nil {
				t.Fatal(err)
			}
			diff(t, "extensions of others", `{"x-other-extensions":{"k":"v"}}`, string(others))
			after, err := prev.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			diff(t, "the deployment before was changed", string(before), string(after))
		})
	}
}

func TestUpdateOfFileWithoutExtensions(t *testing.T) {
	t.Parallel()
	prev := create(t, meterV1, Request{Parameters: map[string]any{"port": 503}})
	prev.Spec.Colony = nil
	d, err := Update(prev, application(t, meterV2), target, Request{})
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "values", map[string]any{"port": "503", "buses": "a,b"}, values(d))
	diff(t, "extensions", &v1rc3.Extensions{ApplicationVersion: "2.0.0", Profile: "small"}, d.Spec.Colony)
}

func TestUpdateRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		doc  string
		req  Request
		want string
	}{
		"immutable":            {meterV1, Request{Parameters: map[string]any{"serial": "Y"}}, `values.serial: this parameter may not change after the first install; it is "X"`},
		"immutable to default": {meterV1, Request{Parameters: map[string]any{"serial": nil}}, "may not change"},
		"bad value":            {meterV1, Request{Parameters: map[string]any{"port": 0}}, "values.port: 0 is below minValue 1"},
		"unknown parameter":    {meterV2, Request{Parameters: map[string]any{"serial": "X"}}, "values.serial: the application has no such parameter"},
		"unknown profile":      {meterV2, Request{Profile: "large"}, `no profile "large"`},
		"other application":    {strings.Replace(meterV1, "id: meter\n", "id: gauge\n", 1), Request{}, "is of application meter, not gauge"},
		"kept value too large": {strings.Replace(meterV1, "maxValue: 65535", "maxValue: 502", 1), Request{}, "values.port: 503 is above"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prev := create(t, meterV1, Request{Parameters: map[string]any{"serial": "X", "port": 503}})
			_, err := Update(prev, application(t, tc.doc), target, tc.req)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestRollbackAndRetry(t *testing.T) {
	t.Parallel()
	earlier := create(t, meterV1, Request{Parameters: map[string]any{"port": 503}})
	now, err := Update(earlier, application(t, meterV2), target, Request{Parameters: map[string]any{"port": 504}})
	if err != nil {
		t.Fatal(err)
	}
	now.ID = "22222222-2222-4222-8222-222222222222" // made anew since
	now = Retry(Retry(now))
	diff(t, "retry", uint32(2), now.Spec.Colony.Retry)
	diff(t, "retry keeps the version", "2.0.0", now.Spec.Colony.ApplicationVersion)

	back := stored(t, Rollback(now, earlier))
	diff(t, "id", now.ID, back.ID)
	diff(t, "values", values(earlier), values(back))
	diff(t, "extensions", &v1rc3.Extensions{ApplicationVersion: "1.0.0", Profile: "small", Rollback: string(fleet.ContentDigest(back)), Retry: 2}, back.Spec.Colony)
	if !fleet.RolledBack(back) || !fleet.RolledBack(Retry(back)) {
		t.Error("a rollback is not marked as one")
	}
	// The file is edited by hand and the mark stays in it.
	edited := stored(t, back)
	edited.Spec.Colony.Replicas = 7
	if edited = stored(t, edited); edited.Spec.Colony.Rollback == "" || fleet.RolledBack(edited) {
		t.Errorf("an edit after a rollback, with the mark %q, counts as a rollback", edited.Spec.Colony.Rollback)
	}
	if earlier.Spec.Colony.Rollback != "" || earlier.Spec.Colony.Retry != 0 {
		t.Error("the earlier revision was changed")
	}
	// The mark of a rollback does not stay with what follows.
	next, err := Update(back, application(t, meterV1), target, Request{})
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "after", &v1rc3.Extensions{ApplicationVersion: "1.0.0", Profile: "small", Retry: 2}, next.Spec.Colony)

	bare := create(t, meterV1, Request{})
	bare.Spec.Colony = nil
	if !fleet.RolledBack(stored(t, Rollback(bare, bare))) {
		t.Error("a rollback without extensions is not marked as one")
	}
	diff(t, "without extensions", &v1rc3.Extensions{Retry: 1}, Retry(bare).Spec.Colony)
}

func TestSame(t *testing.T) {
	t.Parallel()
	a := create(t, meterV1, Request{})
	for name, tc := range map[string]struct {
		b    *v1rc3.Deployment
		want bool
	}{
		"itself":          {a, true},
		"read again":      {stored(t, a), true},
		"tried again":     {Retry(a), true},
		"rolled back":     {Rollback(a, a), true},
		"other parameter": {create(t, meterV1, Request{Parameters: map[string]any{"port": 7}}), false},
		"other policy":    {create(t, meterV1, Request{Policy: &v1rc3.Policy{Attempts: 1}}), false},
		"other node":      {create(t, meterV1, Request{Node: "gw-9"}), false},
		"other profile":   {create(t, meterV1, Request{Profile: "large"}), false},
	} {
		if got := Same(a, tc.b); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		if got := Same(tc.b, a); got != tc.want {
			t.Errorf("%s, other way round: %v, want %v", name, got, tc.want)
		}
	}
}
