package fleetfile

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

const whole = `apiVersion: colony/v1
kind: FleetDeployment
metadata:
  name: meter
  id: 6b1f3f3e-3b1e-4b7e-9a4e-0f6f0a1b2c3d
spec:
  application: {id: meter, version: 1.0.0, profile: small}
  targets:
    sites: ["plant-*", "home"]
    groups: [north]
    except: [plant-9]
  nodes: {hall: "7"}
  replicas: 2
  parameters:
    port: 503
    serial: X
  groups:
    - group: north
      parameters: {port: 504}
    - group: east
      parameters: {port: 505}
  policy: {attempts: 5, backoff: 1m, rollback: false, minHealthy: 30s}
  strategy:
    waves:
      - {group: north, bake: 30m}
      - {percent: 10, bake: 1h30m, approval: true}
      - {percent: 100}
    maxFailed: 5%
    sitesPerMinute: 100
    atOnce: 20
`

const app = `apiVersion: v1
id: meter
metadata:
  name: Meter
  description: Reads meters
  version: "1.0.0"
  catalog:
    organization:
      - name: Colony
deploymentProfiles:
  - type: compose
    id: small
    components:
      - name: meter
        properties: {repository: oci://r.example/compose/meter, revision: 1.0.0}
parameters:
  port:
    value: 502
    targets:
      - {pointer: PORT, components: [meter]}
  serial:
    value: "0"
    targets:
      - {pointer: SERIAL, components: [meter]}
configuration:
  sections:
    - name: General
      settings:
        - {parameter: port, name: Port, schema: port}
        - {parameter: serial, name: Serial, schema: text}
  schema:
    - {name: port, dataType: integer, minValue: 1, maxValue: 65535}
    - {name: text, dataType: string, maxLength: 20}
`

func parsed(t *testing.T) *File {
	t.Helper()
	f, err := Parse("meter", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func application(t *testing.T) *v1rc3.Application {
	t.Helper()
	a, err := v1rc3.ParseApplication([]byte(app))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestPlanOfAFile(t *testing.T) {
	t.Parallel()
	want := rollout.Plan{
		Waves: []rollout.Wave{
			{Group: "north", Bake: 30 * time.Minute}, {Percent: 10, Bake: 90 * time.Minute, Approval: true}, {Percent: 100},
		},
		MaxFailedPercent: 5, SitesPerMinute: 100, AtOnce: 20,
	}
	if d := cmp.Diff(want, parsed(t).Plan()); d != "" {
		t.Error(d)
	}
}

// TestHandsAndAPISayTheSame has a file that a person wrote, and what the API makes of the same content, be the same.
func TestHandsAndAPISayTheSame(t *testing.T) {
	t.Parallel()
	f := parsed(t)
	raw, err := json.Marshal(f.Spec)
	if err != nil {
		t.Fatal(err)
	}
	again := File{Name: f.Name, ID: f.ID}
	if err := json.Unmarshal(raw, &again.Spec); err != nil {
		t.Fatal(err)
	}
	text, err := again.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse("meter", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if d := cmp.Diff(f, back); d != "" {
		t.Errorf("%s\n%s", d, text)
	}
}

func TestNumbersKeepTheirDigits(t *testing.T) {
	t.Parallel()
	var v Values
	if err := json.Unmarshal([]byte(`{"a": 502, "b": 1.10, "c": 1.5, "d": [1, "x"], "e": 123456789012345678901234567890, "f": true}`), &v); err != nil {
		t.Fatal(err)
	}
	want := Values{"a": int64(502), "b": "1.10", "c": 1.5, "d": []any{int64(1), "x"}, "e": "123456789012345678901234567890", "f": true}
	if d := cmp.Diff(want, v); d != "" {
		t.Error(d)
	}
}

func TestExpandLaysValuesOverEachOther(t *testing.T) {
	t.Parallel()
	f, a := parsed(t), application(t)
	e, err := ParseException("home", []byte("apiVersion: colony/v1\nkind: FleetException\nmetadata: {site: home}\nspec: {parameters: {serial: own}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		site         rollout.Site
		e            *Exception
		port, serial string
	}{
		{rollout.Site{ID: "plant-1"}, nil, "503", "X"},
		{rollout.Site{ID: "plant-2", Groups: []string{"north"}}, nil, "504", "X"},
		{rollout.Site{ID: "plant-3", Groups: []string{"east", "north"}}, nil, "505", "X"}, // the later in the file
		{rollout.Site{ID: "home"}, e, "503", "own"},
	} {
		d, err := f.Expand(a, c.site, c.e)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Spec.Parameters["port"].Value; got != c.port {
			t.Errorf("%s: port %v, want %s", c.site.ID, got, c.port)
		}
		if got := d.Spec.Parameters["serial"].Value; got != c.serial {
			t.Errorf("%s: serial %v, want %s", c.site.ID, got, c.serial)
		}
		if d.Metadata.DeviceID != string(c.site.ID)+"/*" || d.Metadata.Name != "meter" || d.Spec.Colony.Replicas != 2 || d.Spec.Colony.Selector["hall"] != "7" || d.Spec.Colony.Policy.Attempts != 5 {
			t.Errorf("%s: %+v %+v", c.site.ID, d.Metadata, d.Spec.Colony)
		}
	}
	_, err = f.Expand(a, rollout.Site{ID: "plant-4"}, &Exception{Parameters: Values{"port": int64(70000)}})
	if err == nil || !strings.Contains(err.Error(), "at site plant-4") || !strings.Contains(err.Error(), "maxValue 65535") {
		t.Errorf("got %v, want the site and the bound", err)
	}
}

// TestIDOfASite is the example of RFC 9562, A.4, with its namespace as the id of the fleet deployment.
func TestIDOfASite(t *testing.T) {
	t.Parallel()
	f := File{ID: "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}
	if got, want := f.IDAt("www.example.com"), "2ed6657d-e927-568b-95e1-2665a8aea6a2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSites(t *testing.T) {
	t.Parallel()
	groups := map[string]siteset.Set{}
	for name, list := range map[string][]string{"north": {"far", "plant-1"}, "east": {"nowhere"}} {
		set, err := siteset.Parse(list)
		if err != nil {
			t.Fatal(err)
		}
		groups[name] = set
	}
	all := []protocol.SiteID{"far", "home", "plant-1", "plant-9", "spare"}
	f := parsed(t)
	got, err := f.Sites(all, groups)
	if err != nil {
		t.Fatal(err)
	}
	want := []rollout.Site{{ID: "far", Groups: []string{"north"}}, {ID: "home"}, {ID: "plant-1", Groups: []string{"north"}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	delete(groups, "east")
	if _, err := f.Sites(all, groups); err == nil || !strings.Contains(err.Error(), `no group of sites "east"`) {
		t.Errorf("a group that does not exist: %v", err)
	}
	groups["east"] = groups["north"]
	if _, err := f.Sites([]protocol.SiteID{"spare"}, groups); err == nil || !strings.Contains(err.Error(), "no site of the fleet is meant") {
		t.Errorf("targets that are nobody: %v", err)
	}
	f.Targets = Targets{Sites: []string{"*"}}
	if got, err := f.Sites(all, groups); err != nil || len(got) != len(all) {
		t.Errorf("all sites: %v, %v", got, err)
	}
}

func TestBadFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ old, new, want string }{
		"unknown key":          {"  replicas: 2", "  replica: 2", "spec.replica: unknown key"},
		"other name":           {"name: meter\n", "name: metre\n", "metadata.name"},
		"no id":                {"  id: 6b1f3f3e-3b1e-4b7e-9a4e-0f6f0a1b2c3d\n", "", "metadata.id: required"},
		"no targets":           {"    sites: [\"plant-*\", \"home\"]\n    groups: [north]\n", "", "spec.targets: want sites or groups"},
		"bad site":             {`"home"`, `"Home"`, `site "Home"`},
		"waves that shrink":    {"{percent: 10,", "{percent: 100,", "more than the 100 of the waves before"},
		"last wave not all":    {"{percent: 100}", "{percent: 50}", "want 100 in the last wave"},
		"last wave a group":    {"{percent: 100}", "{group: north}", "a group in the last wave"},
		"approval at the end":  {"{percent: 100}", "{percent: 100, approval: true}", "no wave follows"},
		"share and group":      {"{group: north,", "{group: north, percent: 1,", "want percent or group"},
		"bake":                 {"bake: 30m", "bake: soon", "want a duration"},
		"a bake of years":      {"bake: 30m", "bake: 9000h", "want a duration from 0s to 720h"},
		"failures":             {"maxFailed: 5%", "maxFailed: some", "want a number of sites"},
		"value without a type": {"port: 503", "port: {a: 1}", "want a list"},
		"value missing":        {"port: 503", "port:", "has no value"},
		"kind":                 {"kind: FleetDeployment", "kind: Deployment", "want one of FleetDeployment"},
		"gate without name":    {"  strategy:\n", "  strategy:\n    gates: [{source: prom, query: up, min: 1}]\n", "gates[0].name: required"},
		"gate twice":           {"  strategy:\n", "  strategy:\n    gates: [{name: a, source: b}, {name: a, source: b}]\n", "another gate has it"},
		"gate without room":    {"  strategy:\n", "  strategy:\n    gates: [{name: a, source: b, min: 2, max: 1}]\n", "nothing would pass"},
		"gate by no number":    {"  strategy:\n", "  strategy:\n    gates: [{name: a, source: b, min: some}]\n", "want a number"},
		"too many gates":       {"  strategy:\n", "  strategy:\n    gates: [{name: a, source: b}, {name: c, source: b}, {name: d, source: b}, {name: e, source: b}, {name: f, source: b}, {name: g, source: b}, {name: h, source: b}, {name: i, source: b}, {name: j, source: b}, {name: k, source: b}, {name: l, source: b}]\n", "want at most 10"},
		"failures without end": {"maxFailed: 5%", "maxFailed: 9223372036854775807", "want a number of sites"},
		"tries without end":    {"attempts: 5", "attempts: 4000000000", "want at most 100"},
		"negative rate":        {"sitesPerMinute: 100", "sitesPerMinute: -1", "spec.strategy.sitesPerMinute"},
	} {
		doc := strings.Replace(whole, c.old, c.new, 1)
		if doc == whole {
			t.Fatalf("%s changes nothing", name)
		}
		_, err := Parse("meter", []byte(doc))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := ParseException("home", []byte("apiVersion: colony/v1\nkind: FleetException\nmetadata: {site: other}\nspec: {parameters: {a: 1}}\n")); err == nil {
		t.Error("an exception of another site is accepted")
	}
	if _, err := ParseDraft("meter", []byte(strings.Replace(whole, "metadata:\n  name: meter\n  id: 6b1f3f3e-3b1e-4b7e-9a4e-0f6f0a1b2c3d\n", "", 1))); err != nil {
		t.Errorf("a draft without metadata: %v", err)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	for p, want := range map[string][3]string{
		"fleet/meter/deployment.yaml": {"meter", "", "yes"}, "fleet/meter/sites/home.yaml": {"meter", "home", "yes"},
		"fleet/meter/sites/home.yml": {}, "fleet/deployment.yaml": {}, "deployments/a/b/deployment.yaml": {}, "fleet/meter/sites/.yaml": {},
	} {
		name, site, ok := Of(p)
		if name != want[0] || site != want[1] || ok != (want[2] != "") {
			t.Errorf("%s: %q %q %t", p, name, site, ok)
		}
		if stray := Stray(p); (stray != "") != (!ok && strings.HasPrefix(p, "fleet/")) {
			t.Errorf("%s: stray: %q", p, stray)
		}
	}
	for p, part := range map[string]string{
		"fleet/Meter/deployment.yaml": "Meter", "fleet/meter/sites/Home.yaml": "Home", "fleet/meter/deployment.yml": "fleet/<name>/deployment.yaml",
		"fleet/meter/deployment.yamll": "fleet/<name>/deployment.yaml", "fleet/meter/deployment": "fleet/<name>/deployment.yaml", "fleet/meter/deployment.YAML": "fleet/<name>/deployment.yaml",
		"fleet/meter/deployment.yaml.txt": "fleet/<name>/deployment.yaml", "fleet/meter/deployment.yaml ": "fleet/<name>/deployment.yaml", "fleet/meter/notes.txt": "",
		"fleet/other/deployment.yaml": "want other", "fleet/meter/deployment.yaml": "", "fleet/README.md": "",
	} {
		if why := Unread(p, []byte(whole)); !strings.Contains(why, part) || part == "" && why != "" {
			t.Errorf("%s is not read: %q, want %q in it", p, why, part)
		}
	}
	if Path("meter") != "fleet/meter/deployment.yaml" || ExceptionPath("meter", "home") != "fleet/meter/sites/home.yaml" {
		t.Error("paths")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("apiVersion: colony/v1\nkind: FleetException\nmetadata: {site: home}\nspec: {parameters: {a: [1, b]}}\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if file, err := Parse("meter", raw); err == nil {
			file.Plan()
			if _, err := file.Marshal(); err != nil {
				t.Error(err)
			}
		}
		_, _ = ParseException("home", raw)
	})
}
