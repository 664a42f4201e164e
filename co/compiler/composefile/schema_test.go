package composefile_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/schema"

	"github.com/colonyfleet/colony/co/compiler/composefile"
	"github.com/colonyfleet/colony/internal/doctable"
)

// A node of a JSON schema, as far as it says which keys there are.
type schemaNode struct {
	Ref        string                 `json:"$ref"`
	OneOf      []*schemaNode          `json:"oneOf"`
	AnyOf      []*schemaNode          `json:"anyOf"`
	AllOf      []*schemaNode          `json:"allOf"`
	Properties map[string]*schemaNode `json:"properties"`
	Patterns   map[string]*schemaNode `json:"patternProperties"`
	Additional json.RawMessage        `json:"additionalProperties"`
	Items      json.RawMessage        `json:"items"`
}

// keysOf adds the keys below a node to those that are found, as the table of keys has them.
func keysOf(defs map[string]*schemaNode, n *schemaNode, path string, entered []string, found map[string]bool) {
	if name := n.Ref[strings.LastIndex(n.Ref, "/")+1:]; name != "" && !slices.Contains(entered, name) {
		keysOf(defs, defs[name], path, append(slices.Clone(entered), name), found)
	}
	for _, form := range slices.Concat(n.OneOf, n.AnyOf, n.AllOf) {
		keysOf(defs, form, path, entered, found)
	}
	below := func(name string, child *schemaNode) {
		at := strings.TrimPrefix(path+"."+name, ".")
		found[at] = true
		keysOf(defs, child, at, entered, found)
	}
	for name, child := range n.Properties {
		below(name, child)
	}
	for pattern, child := range n.Patterns {
		if pattern != "^x-" {
			below("*", child)
		}
	}
	var child schemaNode
	if json.Unmarshal(n.Additional, &child) == nil && len(n.Additional) > 0 && n.Additional[0] == '{' {
		below("*", &child)
	}
	if json.Unmarshal(n.Items, &child) == nil && len(n.Items) > 0 && n.Items[0] == '{' {
		keysOf(defs, &child, path+"[]", entered, found)
	}
}

// schemaKeys returns the keys of the schema of Compose files, by path.
func schemaKeys(t *testing.T) []string {
	t.Helper()
	var document struct {
		schemaNode
		Defs        map[string]*schemaNode `json:"$defs"`
		Definitions map[string]*schemaNode `json:"definitions"`
	}
	if err := json.Unmarshal([]byte(schema.Schema), &document); err != nil {
		t.Fatal(err)
	}
	defs := document.Defs
	if defs == nil {
		defs = document.Definitions
	}
	found := map[string]bool{}
	keysOf(defs, &document.schemaNode, "", nil, found)
	return slices.Sorted(maps.Keys(found))
}

// Every key that the schema of Compose has is supported, or refused with a reason and with
// what to write instead.
func TestEveryKeyOfTheSchemaIsDecided(t *testing.T) {
	t.Parallel()
	keys := schemaKeys(t)
	for _, known := range []string{"services.*.healthcheck.start_interval", "services.*.ports[].target", "services.*.deploy.resources.limits.cpus", "include[].env_file"} {
		if !slices.Contains(keys, known) {
			t.Fatalf("the schema has no %s: it is not read as it is written", known)
		}
	}
	within := func(key, outer string) bool {
		return key == outer || strings.HasPrefix(key, outer+".") || strings.HasPrefix(key, outer+"[")
	}
	for _, key := range keys {
		decided := composefile.Keys[key]
		for outer := range composefile.Open {
			decided = decided || within(key, outer)
		}
		for outer := range composefile.Reasons {
			decided = decided || within(key, outer)
		}
		if !decided {
			t.Errorf("%s: neither in Keys nor in Reasons", key)
		}
	}
	for key, reason := range composefile.Reasons {
		if !slices.Contains(keys, key) {
			t.Errorf("%s has a reason, and the schema has no such key", key)
		}
		if !strings.Contains(reason, ": ") && !strings.ContainsAny(reason, ",") && len(strings.Fields(reason)) < 5 {
			t.Errorf("%s: %q does not say what to write instead", key, reason)
		}
	}
	var rows strings.Builder
	for _, key := range slices.Sorted(maps.Keys(composefile.Reasons)) {
		fmt.Fprintf(&rows, "| `%s` | %s |\n", key, composefile.Reasons[key])
	}
	doctable.Table{
		Doc: "../../../docs/compose.md", Name: "refused", Content: "| key | why, and what to write instead |\n|---|---|\n" + rows.String(), Command: "UPDATE=1 go test ./co/compiler/composefile -run TestEveryKey",
	}.Check(t, os.Getenv("UPDATE") != "")
	for key := range composefile.Notes {
		if !composefile.Keys[key] {
			t.Errorf("%s has a note, and is not supported", key)
		}
	}
}
