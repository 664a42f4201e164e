package v1rc3

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sample(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parse(t testing.TB, name string) *Application {
	t.Helper()
	a, err := ParseApplication(sample(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return a
}

// problemLines returns the problems of an error, one line each.
func problemLines(t testing.TB, err error) []string {
	t.Helper()
	problems, ok := errors.AsType[Problems](err)
	if !ok {
		t.Fatalf("error %v is not a Problems", err)
	}
	return strings.Split(problems.Error(), "\n")
}

func TestParseApplicationReadsTheSpecificationsSamples(t *testing.T) {
	t.Parallel()
	hello := parse(t, "hello-world-helm.margo.yaml")
	if hello.ID != "com-northstartida-hello-world" || hello.Metadata.Version != "1.0" || len(hello.Parameters) != 2 {
		t.Errorf("hello world read as %+v", hello)
	}
	if got := hello.Parameters["greeting"]; got.Value != "Hello" || got.Targets[0].Pointer != "global.config.appGreeting" {
		t.Errorf("greeting read as %+v", got)
	}
	digitron := parse(t, "digitron-helm-and-compose.margo.yaml")
	if len(digitron.Profiles) != 2 || digitron.Profiles[1].Type != Compose {
		t.Fatalf("profiles read as %+v", digitron.Profiles)
	}
	want := &Constraints{
		Capacity: &Capacity{CPU: &CPURequirement{Cores: 1.5, Architectures: []string{"amd64"}}, Memory: "1024Mi", Storage: "10Gi"},
		Rules: []Rule{{PropertySelector: &Selector{MatchExpressions: []Expression{
			{Key: "/peripherals", Operator: ContainsAll, ItemSelector: &Selector{MatchExpressions: []Expression{
				{Key: "/type", Operator: In, Values: []any{"gpu"}}, {Key: "/manufacturer", Operator: In, Values: []any{"NVIDIA"}},
			}}},
			{Key: "/interfaces", Operator: ContainsAll, ItemSelector: &Selector{MatchExpressions: []Expression{
				{Key: "/type", Operator: In, Values: []any{"ethernet", "bluetooth"}},
			}}},
		}}}},
	}
	if diff := cmp.Diff(want, digitron.Profiles[0].Constraints); diff != "" {
		t.Errorf("constraints (-want +got):\n%s", diff)
	}
	if p := digitron.Profiles[0].Components[0].Properties; p.TimeoutDuration().String() != "8m30s" || !p.Waits() {
		t.Errorf("component properties read as %+v", p)
	}
	setting, schema, ok := digitron.Setting("idpUrl")
	if !ok || !setting.Immutable || schema.RegexMatch == "" {
		t.Errorf("setting of idpUrl: %+v %+v %v", setting, schema, ok)
	}
}

// The sandbox's sample is refused for its known mistakes, and for nothing else.
func TestParseApplicationRefusesNextcloud(t *testing.T) {
	t.Parallel()
	raw := sample(t, "nextcloud-compose.margo.yaml")
	mistakes := []string{
		`line 31: deploymentProfiles[0].components[0].properties.timeout: "5m": want minutes and seconds, such as 5m0s`,
	}
	_, err := ParseApplication(raw)
	want := append([]string{
		"line 28: deploymentProfiles[0].components[0].properties.repository: the placeholder {{NEXTCLOUD_COMPOSE_REPOSITORY}} was not replaced",
		"line 29: deploymentProfiles[0].components[0].properties.revision: the placeholder {{NEXTCLOUD_COMPOSE_REVISION}} was not replaced",
	}, mistakes...)
	if diff := cmp.Diff(want, problemLines(t, err)); diff != "" {
		t.Errorf("as published (-want +got):\n%s", diff)
	}
	filled := strings.NewReplacer("{{NEXTCLOUD_COMPOSE_REPOSITORY}}", "oci://registry.example/nextcloud",
		"{{NEXTCLOUD_COMPOSE_REVISION}}", "1.0.0").Replace(string(raw))
	_, err = ParseApplication([]byte(filled))
	if diff := cmp.Diff(mistakes, problemLines(t, err)); diff != "" {
		t.Errorf("placeholders replaced (-want +got):\n%s", diff)
	}
	fixed := strings.NewReplacer("timeout: 5m", "timeout: 5m0s", "value: 80\n", "value: 8080\n").Replace(filled)
	if _, err = ParseApplication([]byte(fixed)); err != nil {
		t.Errorf("fixed: %v", err)
	}
}

const small = `apiVersion: v1
id: app
metadata:
  name: App
  version: "1.0"
  catalog:
    organization:
      - name: Org
deploymentProfiles:
  - type: compose
    id: one
    components:
      - name: web
        properties:
          repository: oci://registry.example/web
          revision: 1.0.0
parameters:
  port:
    value: 8080
    targets:
      - pointer: PORT
        components: [web]
configuration:
  sections:
    - name: General
      settings:
        - parameter: port
          name: Port
          schema: port
  schema:
    - name: port
      dataType: integer
      minValue: 1024
`

func TestParseApplicationNamesEachMistake(t *testing.T) {
	t.Parallel()
	if _, err := ParseApplication([]byte(small)); err != nil {
		t.Fatalf("the unchanged document: %v", err)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"unknown version":      {"apiVersion: v1", "apiVersion: v2", `line 1: apiVersion: apiVersion "v2" is not known: this program reads v1`},
		"missing":              {"id: app\n", "", "line 1: id: required, and missing"},
		"id":                   {"id: app\n", "id: App\n", `line 2: id: "App": want 1 to 200 of a-z, 0-9 and -`},
		"version is a number":  {`version: "1.0"`, "version: 1.0", "line 5: metadata.version: want a text, got float 1.0; put it in quotes"},
		"unknown key":          {"id: one", "id: one\n    kind: x", "line 12: deploymentProfiles[0].kind: unknown key; known here: type, id, description, components, deviceConstraints, x-*-extensions"},
		"duplicate key":        {"id: one", "id: one\n    id: two", "line 12: deploymentProfiles[0].id: the key stands twice, first in line 11"},
		"duplicate profile":    {"parameters:\n", "  - type: compose\n    id: one\n    components:\n      - name: b\n        properties: {repository: 'oci://x/y', revision: 1.0.0}\nparameters:\n", `line 18: deploymentProfiles[1].id: the profile id "one" is used twice`},
		"type":                 {"type: compose", "type: helm.v3", `line 10: deploymentProfiles[0].type: "helm.v3": want one of helm, compose, custom`},
		"no components":        {"      - name: web\n        properties:\n          repository: oci://registry.example/web\n          revision: 1.0.0\nparameters", "      []\nparameters", "line 13: deploymentProfiles[0].components: want at least one"},
		"component name":       {"- name: web", "- name: Web", `line 13: deploymentProfiles[0].components[0].name: "Web": want lower-case letters, digits and -`},
		"repository":           {"oci://registry", "https://registry", `line 15: deploymentProfiles[0].components[0].properties.repository: "https://registry.example/web": want oci://host/path, with a path of lower-case`},
		"revision with v":      {"revision: 1.0.0", "revision: v1.0.0", `line 16: deploymentProfiles[0].components[0].properties.revision: "v1.0.0": want a semantic version without a leading v, such as 1.2.3, with _ in the place of +`},
		"endless timeout":      {"revision: 1.0.0", "revision: 1.0.0\n          timeout: 99999999999m0s", `line 17: deploymentProfiles[0].components[0].properties.timeout: "99999999999m0s": want at most 168h0m0s`},
		"uncountable timeout":  {"revision: 1.0.0", "revision: 1.0.0\n          timeout: 99999999999999999999m0s", "properties.timeout"},
		"zero byte":            {"value: 8080", `value: "a\0b"`, "line 19: parameters.port.value: a zero byte cannot be passed to an application"},
		"wait":                 {"revision: 1.0.0", "revision: 1.0.0\n          wait: maybe", "line 17: deploymentProfiles[0].components[0].properties.wait: want true or false, got str maybe"},
		"target component":     {"components: [web]", "components: [db]", `line 22: parameters.port.targets[0].components[0]: no profile has a component "db"`},
		"setting's parameter":  {"parameter: port", "parameter: prot", `line 27: configuration.sections[0].settings[0].parameter: there is no parameter "prot"`},
		"setting's schema":     {"schema: port", "schema: prot", `line 29: configuration.sections[0].settings[0].schema: there is no schema "prot"`},
		"schema type":          {"dataType: integer", "dataType: int", `line 32: configuration.schema[0].dataType: "int": want string, integer, double or boolean, or one of them as array[…]`},
		"rule of another type": {"minValue: 1024", "minLength: 4", "line 33: configuration.schema[0].minLength: this rule has no meaning for dataType integer"},
		"rule beside options":  {"minValue: 1024", "options: [8080]\n      minValue: 1024", "line 34: configuration.schema[0].minValue: this rule has no meaning beside options"},
		"nothing to choose":    {"minValue: 1024", "multiselect: true", "configuration.schema[0]: a schema with multiselect needs options"},
		"nothing chosen":       {"minValue: 1024", "multiselect: false", "configuration.schema[0]: a schema with multiselect needs options"},
		"bound of an integer":  {"minValue: 1024", "minValue: 10.5", "line 33: configuration.schema[0].minValue: want an integer, got 10.5"},
		"no schemas":           {"configuration:\n", "configuration:\n  sections: []\nx-old-extensions:\n", "configuration.schema: required, and missing"},
		"no sections":          {"configuration:\n", "configuration:\n  schema: []\nx-old-extensions:\n", "configuration.sections: required, and missing"},
		"bounds":               {"minValue: 1024", "minValue: 1024\n      maxValue: 80", "configuration.schema[0].minValue: is above maxValue"},
		"placeholder in text":  {"name: App", "name: App {{NAME}}", "line 4: metadata.name: the placeholder {{NAME}} was not replaced"},
		"custom without rules": {"type: compose", "type: custom", "line 10: deploymentProfiles[0]: a custom profile needs deviceConstraints.eligibilityRules in which every rule has a labelSelector, so that only devices that know its payload take it"},
		"merge key":            {"id: one", "id: one\n    <<: {}", "line 12: deploymentProfiles[0]: want a plain key; other keys and merge keys (<<) are not read"},
		"file leads out":       {"    organization", "    application: {icon: ../x.png}\n    organization", `line 7: metadata.catalog.application.icon: "../x.png": want a path relative to the package that stays within it`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc := strings.Replace(small, c.old, c.new, 1)
			if doc == small {
				t.Fatalf("the document has no %q", c.old)
			}
			_, err := ParseApplication([]byte(doc))
			if got := problemLines(t, err); !strings.Contains(strings.Join(got, "\n"), c.want) {
				t.Errorf("problems:\n%s\nwant:\n%s", strings.Join(got, "\n"), c.want)
			}
		})
	}
}

func TestParseApplicationIsBounded(t *testing.T) {
	t.Parallel()
	bomb := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		c := string(rune('0' + i))
		n := string(rune('1' + i))
		bomb += "a" + n + ": &a" + n + " [" + strings.TrimSuffix(strings.Repeat("*a"+c+",", 10), ",") + "]\n"
	}
	for name, doc := range map[string]string{
		"alias bomb":   bomb,
		"self alias":   "a: &a [*a]\n",
		"deep":         strings.Repeat("[", 5000),
		"deep mapping": strings.Repeat("{a: ", 300) + strings.Repeat("}", 300),
		"large":        "a: " + strings.Repeat("x", MaxDocument),
		"empty":        " \n",
		"two":          "a: 1\n---\nb: 2\n",
		"scalar":       "hello",
		"not YAML":     "a: [",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseApplication([]byte(doc))
			if got := problemLines(t, err); len(got) == 0 || got[0] == "" {
				t.Errorf("problems %q", got)
			}
		})
	}
}

func FuzzParseApplication(f *testing.F) {
	for _, name := range []string{"hello-world-helm.margo.yaml", "digitron-helm-and-compose.margo.yaml", "nextcloud-compose.margo.yaml"} {
		f.Add(sample(f, name))
	}
	f.Add([]byte(small))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("? {a: b}\n: {{c}}\n"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		a, err := ParseApplication(doc)
		if err != nil {
			if _, ok := errors.AsType[Problems](err); !ok {
				t.Fatalf("error %v is not a Problems", err)
			}
			return
		}
		// What is accepted can be deployed, or is refused in words.
		for _, p := range a.Profiles {
			d, err := Build(a, p.ID, nil, request)
			if err != nil {
				continue
			}
			b, err := d.Marshal()
			if err != nil {
				t.Fatalf("marshal: %v", err)
			}
			again, err := ParseDeployment(b)
			if err != nil {
				t.Fatalf("the deployment does not parse: %v\n%s", err, b)
			}
			if c, _ := again.Marshal(); string(c) != string(b) {
				t.Fatalf("marshalled again it differs:\n%s\n%s", b, c)
			}
		}
	})
}

// The key of a parameter names it; the published schema allows the name beside it.
func TestNameOfAParameter(t *testing.T) {
	t.Parallel()
	for name, warnings := range map[string]int{"port": 0, "other": 1} {
		app, err := ParseApplication([]byte(strings.Replace(small, "    value: 8080", "    name: "+name+"\n    value: 8080", 1)))
		if err != nil || len(app.Warnings) != warnings {
			t.Errorf("name %s: %v, warnings %v, want %d", name, err, app.Warnings, warnings)
		}
	}
}
