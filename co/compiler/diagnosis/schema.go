package diagnosis

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/compose-spec/compose-go/v2/schema"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// compiled is the schema of Compose files.
var compiled = sync.OnceValues(func() (*jsonschema.Schema, error) {
	const name = "compose-spec.json"
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(schema.Schema))
	if err != nil {
		return nil, fmt.Errorf("read the schema of Compose: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.RegisterFormat(&jsonschema.Format{Name: "duration", Validate: func(v any) error {
		text, ok := v.(string)
		if !ok {
			return errors.New("no text")
		}
		return new(types.Duration).DecodeMapstructure(text)
	}})
	if err := c.AddResource(name, document); err != nil {
		return nil, fmt.Errorf("read the schema of Compose: %w", err)
	}
	return c.Compile(name)
})

// schemaFindings returns what the schema of Compose has against a document. The loader
// judges after it has changed types and forms: not all of it need be wrong.
func schemaFindings(document map[string]any) []Finding {
	s, err := compiled()
	if err != nil {
		return nil
	}
	b, err := json.Marshal(document)
	if err != nil {
		return nil
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	if err != nil {
		return nil
	}
	failed, ok := errors.AsType[*jsonschema.ValidationError](s.Validate(v))
	if !ok {
		return nil
	}
	var all []Finding
	for _, leaf := range leaves(failed) {
		all = append(all, findingsOf(v, leaf)...)
	}
	slices.SortFunc(all, func(a, b Finding) int { return strings.Compare(a.At+a.Message, b.At+b.Message) })
	return slices.Compact(all)
}

// leaves returns the errors that say something. Where none of several forms fits, it is those
// of the form whose type fits, or one that names all types.
func leaves(e *jsonschema.ValidationError) []*jsonschema.ValidationError {
	if len(e.Causes) == 0 {
		return []*jsonschema.ValidationError{e}
	}
	var all []*jsonschema.ValidationError
	switch e.ErrorKind.(type) {
	case *kind.OneOf, *kind.AnyOf:
		want := map[string]bool{}
		for _, form := range e.Causes {
			inner := leaves(form)
			fits := true
			for _, leaf := range inner {
				if t, ok := leaf.ErrorKind.(*kind.Type); ok && len(leaf.InstanceLocation) == len(e.InstanceLocation) {
					fits = false
					for _, w := range t.Want {
						want[w] = true
					}
				}
			}
			if fits {
				return inner
			}
			all = append(all, inner...)
		}
		for _, leaf := range all {
			if _, ok := leaf.ErrorKind.(*kind.Type); ok {
				one := *leaf
				one.ErrorKind = &kind.Type{Want: slices.Sorted(maps.Keys(want))}
				return []*jsonschema.ValidationError{&one}
			}
		}
	default:
		for _, cause := range e.Causes {
			all = append(all, leaves(cause)...)
		}
	}
	return all
}

// findingsOf says what an error of the schema means.
func findingsOf(document any, e *jsonschema.ValidationError) []Finding {
	at, value := placeOf(document, e.InstanceLocation)
	one := func(format string, args ...any) []Finding { return []Finding{{at, fmt.Sprintf(format, args...)}} }
	switch k := e.ErrorKind.(type) {
	case *kind.FalseSchema: // what is below is wrong, and is reported
		return nil
	case *kind.Type:
		var want []string
		for _, w := range k.Want {
			want = append(want, typeNames[w])
		}
		slices.Sort(want)
		if slices.Contains(durations, at[strings.LastIndexByte(at, '.')+1:]) && slices.Contains(k.Want, "string") {
			return one("%s: want a duration%s", shown(value), examples["duration"])
		}
		return one("%s: want %s", shown(value), strings.Join(slices.Compact(want), " or "))
	case *kind.Enum:
		var want []string
		for _, w := range k.Want {
			want = append(want, fmt.Sprint(w))
		}
		return one("%s: want %s", shown(value), strings.Join(want, " or "))
	case *kind.Required:
		return one("want %s in it", strings.Join(k.Missing, " and "))
	case *kind.Minimum:
		return one("%s: want %s or more", shown(value), k.Want.RatString())
	case *kind.Maximum:
		return one("%s: want %s or less", shown(value), k.Want.RatString())
	case *kind.Format:
		return one("%s: want a %s%s", shown(value), k.Want, examples[k.Want])
	case *kind.Pattern:
		if k.Want == containerName {
			return one("%s: want two or more letters, digits, dots, _ and -, the first a letter or digit", shown(value))
		}
		return one("%s: want a text of the form %s", shown(value), k.Want)
	case *kind.UniqueItems:
		return one("the entries %d and %d are the same: take one out", k.Duplicates[0]+1, k.Duplicates[1]+1)
	case *kind.AdditionalProperties:
		var all []Finding
		for _, name := range k.Properties {
			message := "want a name of letters, digits, dots, _ and -"
			if names.MatchString(name) {
				message = "Compose has no such key here: correct its name, or leave it out"
			}
			all = append(all, Finding{strings.TrimPrefix(at+"."+name, "."), message})
		}
		return all
	}
	return one("%s: not what the schema of Compose has here", shown(value))
}

// containerName is the pattern of container_name.
const containerName = "[a-zA-Z0-9][a-zA-Z0-9_.-]+"

// durations are the keys whose values are durations.
var durations = strings.Fields("interval timeout start_period start_interval stop_grace_period delay window pull_refresh_after")

// examples of the formats of the schema.
var examples = map[string]string{"duration": " such as 10s"}

var typeNames = map[string]string{
	"object": "a mapping", "array": "a list", "string": "a text", "number": "a number", "integer": "a whole number", "boolean": "true or false", "null": "nothing",
}

// shown is how a message names a value.
func shown(v any) string {
	switch v := v.(type) {
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case nil:
		return "nothing"
	case string:
		return strconv.Quote(v)
	default:
		return fmt.Sprint(v)
	}
}

// placeOf returns the path of a location, and the value there.
func placeOf(v any, location []string) (string, any) {
	at := ""
	for _, part := range location {
		switch x := v.(type) {
		case map[string]any:
			at, v = strings.TrimPrefix(at+"."+part, "."), x[part]
		case []any:
			at += "[" + part + "]"
			if i, err := strconv.Atoi(part); err == nil && i < len(x) {
				v = x[i]
			}
		}
	}
	return at, v
}
