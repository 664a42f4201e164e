package v1rc3

import (
	"strings"
	"testing"
)

const deployID = "9f3c2d1e-0000-4000-8000-000000000001"

// What the standard leaves untyped is the author's business, and what is written can
// be read again.
func TestPlaceholdersWhereAnyTextMayStand(t *testing.T) {
	t.Parallel()
	doc := strings.Replace(small, "value: 8080", `value: "{{ .Values.x }}"`, 1)
	doc = strings.Replace(doc, "dataType: integer", "dataType: string", 1)
	doc = strings.Replace(doc, "      minValue: 1024\n", "", 1)
	doc = strings.Replace(doc, "id: app\n", "id: app\nx-acme-extensions: {template: \"{{a}}\", \"{{b}}\": 1}\n", 1)
	app, err := ParseApplication([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{{x}}", "{{", "a {{b}} c", "1.10", "null", "- x"} {
		values := map[string]any{"port": text}
		if text == "" {
			values = nil
		}
		d, err := Build(app, "one", values, Request{ID: deployID, Name: "d", DeviceID: "plant/n1"})
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		b, err := d.Marshal()
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		again, err := ParseDeployment(b)
		if err != nil {
			t.Fatalf("%q was written and cannot be read: %v", text, err)
		}
		if got, want := again.Spec.Parameters["port"].Value, d.Spec.Parameters["port"].Value; got != want {
			t.Errorf("%v was written and read as %v", want, got)
		}
	}
}

// A number reaches the environment as its author wrote it.
func TestDefaultsKeepTheirSpelling(t *testing.T) {
	t.Parallel()
	plain, _, _ := strings.Cut(small, "configuration:")
	for written, want := range map[string]string{
		"1.10": "1.10", "1.0": "1.0", "8080": "8080", "-0.50": "-0.50", "true": "true", "0644": "0644", "0xff": "0xff", `"1e3"`: "1e3", "[1.10, 2]": "1.10,2",
	} {
		app, err := ParseApplication([]byte(strings.Replace(plain, "value: 8080", "value: "+written, 1)))
		if err != nil {
			t.Fatal(err)
		}
		d, err := Build(app, "one", nil, Request{ID: deployID, Name: "d", DeviceID: "plant/n1"})
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Spec.Parameters["port"].Value; got != want {
			t.Errorf("%s is passed as %v, want %s", written, got, want)
		}
	}
}

func TestWhatTheStandardAllows(t *testing.T) {
	t.Parallel()
	for name, change := range map[string][2]string{
		"empty tag":             {"    organization", "    application: {tags: ['', edge]}\n    organization"},
		"array without options": {"dataType: integer\n      minValue: 1024", "dataType: array[integer]"},
	} {
		doc := strings.Replace(small, change[0], change[1], 1)
		if name != "empty tag" {
			doc = strings.Replace(doc, "value: 8080", "value: [8080, 8081]", 1)
		}
		if _, err := ParseApplication([]byte(doc)); err != nil || doc == small {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValuesWithAZeroByteAreRefused(t *testing.T) {
	t.Parallel()
	plain, _, _ := strings.Cut(small, "configuration:")
	app, err := ParseApplication([]byte(plain))
	if err != nil {
		t.Fatal(err)
	}
	if err := app.ValidateValues(map[string]any{"port": "a\x00b"}, nil); err == nil || !strings.Contains(err.Error(), "values.port: a zero byte") {
		t.Errorf("error %v, want one about the zero byte", err)
	}
}

// What the project is stricter about than the text is a warning at the import, and does
// not stop an install with the defaults, nor an update after it.
func TestDefaultsThatBreakTheirSchemaAreWarnings(t *testing.T) {
	t.Parallel()
	doc := strings.Replace(small, "value: 8080", "value: 0644", 1)
	doc = strings.Replace(doc, "  schema:\n", "    - name: Again\n      settings:\n        - {parameter: port, name: Twice, schema: port}\n  schema:\n", 1)
	app, err := ParseApplication([]byte(doc))
	if err != nil {
		t.Fatalf("%v in\n%s", err, doc)
	}
	got := app.Warnings.Error()
	for _, want := range []string{
		`parameters.port.value: the default breaks its schema "port": want an integer, got "0644"`,
		`configuration.sections[1].settings[0].parameter: the parameter "port" has a setting already, and the schema of that one holds`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("warnings\n%s\nwant %s", got, want)
		}
	}
	for _, values := range []map[string]any{nil, {"port": "0644"}} {
		d, err := Build(app, "one", values, Request{ID: deployID, Name: "d", DeviceID: "plant/n1"})
		if err != nil || d.Spec.Parameters["port"].Value != "0644" {
			t.Errorf("with %v: %+v, %v; want the default as it is spelled", values, d, err)
		}
	}
	if _, err := Build(app, "one", map[string]any{"port": "0645"}, Request{ID: deployID, Name: "d", DeviceID: "plant/n1"}); err == nil {
		t.Error("another value that breaks the schema was accepted")
	}
	empty := strings.Replace(small, "value: 8080", `value: ""`, 1)
	if app, err = ParseApplication([]byte(empty)); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(app, "one", nil, Request{ID: deployID, Name: "d", DeviceID: "plant/n1"}); err == nil || !strings.Contains(err.Error(), "values.port: required") {
		t.Errorf("an empty default of a value that may not be empty: %v", err)
	}
}

func TestNullMappingsAreRefused(t *testing.T) {
	t.Parallel()
	for change, want := range map[[2]string]string{
		{"configuration:\n", "configuration:\nx-a-extensions:\n"}:  "configuration: want a mapping, got nothing; leave the key out",
		{"    id: one\n", "    id: one\n    deviceConstraints:\n"}: "deploymentProfiles[0].deviceConstraints: want a mapping, got nothing",
	} {
		if _, err := ParseApplication([]byte(strings.Replace(small, change[0], change[1], 1))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", change[1], err, want)
		}
	}
}
