package protocol

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
)

// A cddlField is a member of a map in colony.cddl.
type cddlField struct {
	name, typ string
	optional  bool
}

// A cddlSchema is what colony.cddl says: maps by their name, members by their key. It knows
// as much of RFC 8610 as TestSchema writes.
type cddlSchema map[string]map[uint64]cddlField

var (
	cddlRule   = regexp.MustCompile(`(?ms)^(\w+) = \{\n(.*?)^\}$`)
	cddlMember = regexp.MustCompile(`(?m)^  (\? |  )(\d+) => (.+), ; (\w+)$`)
	cddlMap    = regexp.MustCompile(`^\{\* (\w+) => (.+)\}$`)
)

// parseCDDL reads a schema. The error says which line it does not understand.
func parseCDDL(text string) (cddlSchema, error) {
	schema := cddlSchema{}
	for _, rule := range cddlRule.FindAllStringSubmatch(text, -1) {
		schema[rule[1]] = map[uint64]cddlField{}
		members := cddlMember.FindAllStringSubmatch(rule[2], -1)
		if want := strings.Count(rule[2], "\n"); len(members) != want {
			return nil, fmt.Errorf("%s: %d of %d lines are members", rule[1], len(members), want)
		}
		for _, m := range members {
			var key uint64
			if _, err := fmt.Sscan(m[2], &key); err != nil {
				return nil, fmt.Errorf("%s.%s: %w", rule[1], m[4], err)
			}
			if _, twice := schema[rule[1]][key]; twice {
				return nil, fmt.Errorf("%s: two members have the key %d", rule[1], key)
			}
			schema[rule[1]][key] = cddlField{m[4], m[3], m[1] == "? "}
		}
	}
	if len(schema) == 0 {
		return nil, fmt.Errorf("no rule found")
	}
	return schema, nil
}

// check returns what of a decoded value is not of a type, with the path to it; "" where all is.
func (s cddlSchema) check(path, typ string, v any) string {
	ok := false
	switch typ {
	case "any":
		ok = true
	case "tstr":
		_, ok = v.(string)
	case "bstr":
		_, ok = v.([]byte)
	case "bool":
		_, ok = v.(bool)
	case "float":
		_, ok = v.(float64)
	case "uint":
		_, ok = v.(uint64)
	case "int":
		if _, ok = v.(uint64); !ok {
			_, ok = v.(int64)
		}
	default:
		return s.checkGroup(path, typ, v)
	}
	if !ok {
		return fmt.Sprintf("%s is %v (%T), want %s", path, v, v, typ)
	}
	return ""
}

// checkGroup is check for arrays, tables and maps.
func (s cddlSchema) checkGroup(path, typ string, v any) string {
	if element, ok := strings.CutPrefix(typ, "[* "); ok {
		list, ok := v.([]any)
		if !ok {
			return fmt.Sprintf("%s is %T, want an array", path, v)
		}
		for i, e := range list {
			if fault := s.check(fmt.Sprintf("%s[%d]", path, i), strings.TrimSuffix(element, "]"), e); fault != "" {
				return fault
			}
		}
		return ""
	}
	members, ok := v.(map[any]any)
	if !ok {
		return fmt.Sprintf("%s is %T, want a map", path, v)
	}
	if m := cddlMap.FindStringSubmatch(typ); m != nil {
		for key, value := range members {
			if fault := s.check(path+" key", m[1], key) + s.check(fmt.Sprintf("%s[%v]", path, key), m[2], value); fault != "" {
				return fault
			}
		}
		return ""
	}
	rule, ok := s[typ]
	if !ok {
		return fmt.Sprintf("%s: there is no rule %s", path, typ)
	}
	for key, f := range rule {
		if _, ok := members[key]; !ok && !f.optional {
			return fmt.Sprintf("%s.%s is missing", path, f.name)
		}
	}
	for key, value := range members {
		number, _ := key.(uint64)
		f, ok := rule[number]
		if !ok {
			return fmt.Sprintf("%s: %s has no key %v", path, typ, key)
		}
		if fault := s.check(path+"."+f.name, f.typ, value); fault != "" {
			return fault
		}
	}
	return ""
}

// readCDDL reads a schema of a file.
func readCDDL(t *testing.T, path string) cddlSchema {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := parseCDDL(string(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return schema
}

// TestVectorsFollowTheSchema checks that what is sent is what colony.cddl says, by the
// bytes of the golden vectors.
func TestVectorsFollowTheSchema(t *testing.T) {
	t.Parallel()
	schema := readCDDL(t, "colony.cddl")
	for name, m := range messages() {
		text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := cbor.Unmarshal(encoded, &v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rule := strings.TrimPrefix(fmt.Sprintf("%T", m), "protocol.")
		if fault := schema.check(name, rule, v); fault != "" {
			t.Error(fault)
		}
	}
}

// TestSchemaCheck plants what does not follow a schema.
func TestSchemaCheck(t *testing.T) {
	t.Parallel()
	schema, err := parseCDDL("A = {\n    1 => uint, ; N\n  ? 2 => [* B], ; List\n  ? 3 => {* tstr => int}, ; Table\n}\n\nB = {\n  ? 1 => int, ; X\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		v    map[any]any
		want string
	}{
		{v: map[any]any{uint64(1): uint64(5), uint64(2): []any{map[any]any{uint64(1): int64(-5)}}, uint64(3): map[any]any{"a": int64(-1)}}},
		{map[any]any{uint64(1): int64(-5)}, "m.N is -5 (int64), want uint"},
		{map[any]any{}, "m.N is missing"},
		{map[any]any{uint64(1): uint64(5), uint64(9): true}, "m: A has no key 9"},
		{map[any]any{uint64(1): uint64(5), uint64(2): []any{map[any]any{uint64(1): "x"}}}, "m.List[0].X is x (string), want int"},
		{map[any]any{uint64(1): uint64(5), uint64(3): map[any]any{uint64(1): uint64(1)}}, "m.Table key is 1 (uint64), want tstr"},
		{map[any]any{uint64(1): uint64(5), uint64(2): "x"}, "m.List is string, want an array"},
	} {
		if got := schema.check("m", "A", c.v); got != c.want {
			t.Errorf("%v: %q, want %q", c.v, got, c.want)
		}
	}
	for _, text := range []string{"", "A = {\n  1: uint, ; N\n}\n", "A = {\n    1 => uint, ; N\n    1 => uint, ; M\n}\n"} {
		if _, err := parseCDDL(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
