package v1rc3

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An extension that Colony does not know holds any YAML, and reaches the device as it
// was written.
func TestExtensionsAreCarriedUnchanged(t *testing.T) {
	t.Parallel()
	const block = `    x-acme-extensions:
      version: 1.0
      mode: 0644
      hex: 0xff
      big: 123456789012345678901234567890
      infinite: .inf
      day: 2026-01-02
      yes: yes
      nothing: ~
      text: |
        two
        lines
      template: "{{ .Values.x }}"
      {a: b}: complex key
      tagged: !acme/thing 1
      merged: {<<: {a: 1}, b: 2}
    x-list-extensions: [1.10, two]
    x-scalar-extensions: 3
    x-null-extensions:
`
	doc := strings.Replace(small, "    id: one\n", "    id: one\n"+block, 1)
	doc = strings.Replace(doc, "id: app\n", "id: app\nx-root-extensions: {base: &base {a: 1.0}, again: *base}\n", 1)
	app, err := ParseApplication([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := json.Marshal(app.Extensions); err != nil || string(b) != `{"x-root-extensions":{"again":{"a":1},"base":{"a":1}}}` {
		t.Errorf("as JSON: %s %v", b, err)
	}
	if _, err := json.Marshal(app.Profiles[0].Extensions); err != nil {
		t.Errorf("as JSON: %v", err)
	}
	d, err := Build(app, "one", nil, Request{ID: deployID, Name: "d", DeviceID: "plant/n1"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(block) {
		// The encoder chooses the style of nulls, keys and indents.
		if text := strings.TrimSpace(line); strings.Count(text, ":") == 1 && !strings.Contains(text, "null-ext") && !strings.Contains(string(b), text) {
			t.Errorf("the deployment does not say %q", text)
		}
	}
	again, err := ParseDeployment(b)
	if err != nil {
		t.Fatalf("%v in\n%s", err, b)
	}
	if diff := cmp.Diff(d.Spec.Profile.Extensions, again.Spec.Profile.Extensions); diff != "" {
		t.Errorf("extensions (-written +read):\n%s", diff)
	}
}
