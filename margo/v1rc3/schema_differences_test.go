package v1rc3_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

func keysOf(o object) []string { return slices.Sorted(maps.Keys(o)) }

// A difference between Colony's reader and the schemas, with the row of docs/margo.md that
// names it. applies reports whether a document has it. lax says that Colony accepts what
// the schema refuses.
type difference struct {
	row     string
	lax     bool
	applies func(doc object) bool
}

// at returns the values at a path, in which .* stands for every key and [] for every item.
func at(from any, path string) []any {
	values := []any{from}
	for _, key := range strings.FieldsFunc(strings.ReplaceAll(path, "[]", ".[]"), func(r rune) bool { return r == '.' }) {
		var next []any
		for _, v := range values {
			switch v := v.(type) {
			case object:
				if x, ok := v[key]; ok {
					next = append(next, x)
				} else if key == "*" {
					for _, k := range keysOf(v) {
						next = append(next, v[k])
					}
				}
			case list:
				if key == "[]" {
					next = append(next, v...)
				}
			}
		}
		values = next
	}
	return values
}

// some reports whether a value at one of the paths is as test says.
func some(test func(any) bool, paths ...string) func(object) bool {
	return func(doc object) bool {
		for _, p := range paths {
			if slices.ContainsFunc(at(doc, p), test) {
				return true
			}
		}
		return false
	}
}

// anyOf reports whether a document has one of several.
func anyOf(all ...func(object) bool) func(object) bool {
	return func(doc object) bool {
		return slices.ContainsFunc(all, func(one func(object) bool) bool { return one(doc) })
	}
}

func text(test func(string) bool) func(any) bool {
	return func(x any) bool { s, ok := x.(string); return ok && test(s) }
}

func matches(pattern string) func(any) bool { return text(regexp.MustCompile(pattern).MatchString) }

func blank(x any) bool { s, ok := x.(string); return ok && strings.TrimSpace(s) == "" }

func empty(x any) bool { l, ok := x.(list); return ok && len(l) == 0 }

func null(x any) bool { return x == nil }

func number(x any) (float64, bool) {
	n, ok := x.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := n.Float64()
	return f, err == nil
}

func negative(x any) bool { f, ok := number(x); return ok && f < 0 }

// twice reports whether a key has one value in two items of a list.
func twice(key string) func(any) bool {
	return func(x any) bool {
		seen := map[any]bool{}
		items, _ := x.(list)
		for _, item := range items {
			o, _ := item.(object)
			name, ok := o[key].(string)
			if ok && seen[name] {
				return true
			}
			seen[name] = true
		}
		return false
	}
}

// deep finds a value anywhere below a document, but not where any text is allowed.
func deep(test func(any) bool) func(object) bool {
	var walk func(x any, at string) bool
	walk = func(x any, at string) bool {
		if test(x) {
			return true
		}
		switch x := x.(type) {
		case object:
			for _, k := range keysOf(x) {
				if open, _ := path.Match("x-*-extensions", k); open || k == "value" && (strings.Count(at, ".") == 2 || strings.HasPrefix(at, ".spec")) {
					continue
				}
				if test(k) || walk(x[k], at+"."+k) {
					return true
				}
			}
		case list:
			return slices.ContainsFunc(x, func(item any) bool { return walk(item, at) })
		}
		return false
	}
	return func(doc object) bool { return walk(doc, "") }
}

// The paths of both kinds of document.
var (
	profiles    = []string{"deploymentProfiles[]", "spec.deploymentProfile"}
	parameters  = []string{"parameters.*", "spec.parameters.*"}
	components  = below(profiles, ".components[]")
	constraints = below(profiles, ".deviceConstraints")
	rules       = below(constraints, ".eligibilityRules[]")
	selectors   = append(below(rules, ".propertySelector"), below(rules, ".labelSelector")...)
	expressions = append(below(selectors, ".matchExpressions[]"), below(selectors, ".matchExpressions[].itemSelector.matchExpressions[]")...)
)

func below(paths []string, more string) []string {
	all := make([]string, len(paths))
	for i, p := range paths {
		all[i] = p + more
	}
	return all
}

func join(all ...[]string) []string { return slices.Concat(all...) }

// dangling reports whether a document names something that it does not have.
func dangling(doc object) bool {
	have := func(key string, paths ...string) map[any]bool {
		names := map[any]bool{}
		for _, p := range paths {
			for _, o := range at(doc, p) {
				if o, ok := o.(object); ok {
					if s, ok := o[key].(string); ok {
						names[s] = true
					}
				}
			}
		}
		return names
	}
	unknown := func(names map[any]bool) func(any) bool {
		return text(func(s string) bool { return !names[s] })
	}
	named := map[any]bool{}
	for _, p := range at(doc, "parameters") {
		if p, ok := p.(object); ok {
			for k := range p {
				named[k] = true
			}
		}
	}
	return some(unknown(have("name", components...)), below(parameters, ".targets[].components[]")...)(doc) ||
		some(unknown(named), "configuration.sections[].settings[].parameter")(doc) ||
		some(unknown(have("name", "configuration.schema[]")), "configuration.sections[].settings[].schema")(doc)
}

// badExpression reports whether an expression breaks a rule that only the text has.
func badExpression(x any) bool {
	o, ok := x.(object)
	if !ok {
		return false
	}
	values, _ := o["values"].(list)
	kinds := map[string]bool{}
	for _, v := range values {
		switch v.(type) {
		case string:
			kinds["text"] = true
		case bool:
			kinds["bool"] = true
		case json.Number:
			kinds["number"] = true
		default:
			return true // no scalar
		}
	}
	mixed := len(kinds) > 1 || kinds["bool"] && len(values) > 1
	_, hasValues := o["values"]
	_, hasItems := o["itemSelector"]
	switch o["operator"] {
	case "In", "NotIn":
		return mixed || hasItems || !hasValues
	case "Gt", "Lt":
		if len(values) != 1 {
			return true
		}
		s, isText := values[0].(string)
		_, isNumber := number(values[0])
		if isText {
			_, isNumber = number(json.Number(s))
		}
		return !isNumber || hasItems
	case "Exists", "DoesNotExist":
		return hasValues || hasItems
	default:
		return hasValues || o["itemSelector"] == nil
	}
}

// badConstraints reports whether deviceConstraints break a rule that only the text has.
func badConstraints(doc object) bool {
	pointers := append(below(rules, ".propertySelector.matchExpressions[].key"), below(selectors, ".matchExpressions[].itemSelector.matchExpressions[].key")...)
	noPointer := text(func(s string) bool { return !strings.HasPrefix(s, "/") || strings.Contains(s, "~2") })
	onLabels := below(rules, ".labelSelector.matchExpressions[].operator")
	nested := below(selectors, ".matchExpressions[].itemSelector.matchExpressions[].operator")
	custom := func(x any) bool {
		o, _ := x.(object)
		if o["type"] != "custom" {
			return false
		}
		all := at(o, "deviceConstraints.eligibilityRules[]")
		return len(all) == 0 || slices.ContainsFunc(all, func(r any) bool { rule, _ := r.(object); return rule["labelSelector"] == nil })
	}
	bare := func(x any) bool { o, ok := x.(object); return ok && len(o) == 0 }
	return some(badExpression, expressions...)(doc) || some(noPointer, pointers...)(doc) ||
		some(matches(`^Contains`), append(onLabels, nested...)...)(doc) || some(custom, "deploymentProfiles[]")(doc) || some(bare, rules...)(doc) ||
		some(negative, below(constraints, ".capacityRequirements.cpu.cores")...)(doc) ||
		some(matches(`^\d{10,}`), append(below(constraints, ".capacityRequirements.memory"), below(constraints, ".capacityRequirements.storage")...)...)(doc)
}

// common are the differences of both kinds of document.
var common = []difference{
	{row: "`name` of a component", applies: some(func(x any) bool { s, ok := x.(string); return ok && !matches(`^[a-z0-9-]+$`)(s) }, below(components, ".name")...)},
	{row: "`repository` of a component", applies: some(func(x any) bool {
		s, ok := x.(string)
		return ok && !matches(`^oci://[a-z0-9.:\[\]-]+(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+$`)(s)
	}, below(components, ".properties.repository")...)},
	{row: "an empty list", applies: some(empty, join([]string{"deploymentProfiles", "metadata.catalog.organization", "configuration.sections[].settings", "configuration.schema[].options"},
		below(profiles, ".components"), below(parameters, ".targets"), below(parameters, ".targets[].components"),
		below(selectors, ".matchExpressions"), below(expressions, ".itemSelector.matchExpressions"), below(expressions, ".values"))...)},
	{row: "an empty text", applies: some(blank, join([]string{
		"metadata.name", "metadata.namespace", "metadata.version", "deploymentProfiles[].id", "metadata.catalog.organization[].name", "configuration.sections[].name",
		"configuration.sections[].settings[].name", "configuration.sections[].settings[].parameter", "configuration.sections[].settings[].schema",
		"configuration.schema[].name", "configuration.schema[].dataType",
		"metadata.catalog.application.descriptionFile", "metadata.catalog.application.icon", "metadata.catalog.application.licenseFile", "metadata.catalog.application.releaseNotes",
	}, below(parameters, ".targets[].pointer"), below(parameters, ".targets[].components[]"), below(expressions, ".key"))...)},
	{row: "two of one name", applies: anyOf(some(twice("id"), "deploymentProfiles"), some(twice("name"), append(below(profiles, ".components"), "configuration.schema")...))},
	{row: "a name that nothing has", applies: dangling},
	{row: "`timeout` of a component", applies: some(matches(`^\d{5,}m`), below(components, ".properties.timeout")...)},
	{row: "`{{placeholder}}`", applies: deep(matches(`\{\{[^{}]*\}\}`))},
	{row: "`value` of a parameter", applies: some(func(x any) bool {
		l, _ := x.(list)
		return matches("\x00")(x) || slices.ContainsFunc(l, matches("\x00"))
	}, below(parameters, ".value")...)},
	{row: "`deviceConstraints`", applies: badConstraints},
	{row: "an extension that is no mapping", lax: true, applies: some(func(x any) bool {
		o, _ := x.(object)
		for k, v := range o {
			if _, mapping := v.(object); !mapping && regexp.MustCompile(`^x-[a-z][a-z0-9-]*-extensions$`).MatchString(k) {
				return true
			}
		}
		return false
	}, join([]string{"", "spec"}, profiles, components)...)},
}

// applicationDifferences are those of descriptions.
var applicationDifferences = []difference{
	{row: "`apiVersion`", applies: func(doc object) bool { return doc["apiVersion"] != "v1" }},
	{row: "`null` for a mapping", applies: some(null, join([]string{"parameters", "configuration", "metadata.catalog.application"},
		constraints, below(constraints, ".capacityRequirements"), below(constraints, ".capacityRequirements.cpu"), below(rules, ".propertySelector"), below(rules, ".labelSelector"))...)},
	{row: "an unknown key", applies: func(doc object) bool {
		return slices.ContainsFunc(keysOf(doc), func(k string) bool {
			return !slices.Contains([]string{"apiVersion", "id", "metadata", "deploymentProfiles", "parameters", "configuration"}, k)
		})
	}},
	{row: "`dataType` and its rules", applies: some(badSchema, "configuration.schema[]")},
	{row: "`regexMatch`", applies: some(text(func(s string) bool { _, err := regexp.Compile(s); return err != nil }), "configuration.schema[].regexMatch")},
	{row: "a file of the catalog entry", applies: some(matches(`^/|^\.\./|\x00|\\`), "metadata.catalog.application.*")},
	{row: "a parameter that is a list of targets", applies: some(func(x any) bool { _, ok := x.(list); return ok }, "parameters.*")},
	{row: "`options` that are no texts", lax: true, applies: some(func(x any) bool { _, ok := x.(string); return !ok }, "configuration.schema[].options[]")},
}

// badSchema reports whether a schema of a configuration breaks a rule that only the text has.
func badSchema(x any) bool {
	o, ok := x.(object)
	if !ok {
		return false
	}
	dataType, _ := o["dataType"].(string)
	scalar := strings.TrimSuffix(strings.TrimPrefix(dataType, "array["), "]")
	if !slices.Contains([]string{"string", "integer", "double", "boolean"}, scalar) || strings.HasPrefix(dataType, "array[") != strings.HasSuffix(dataType, "]") {
		return true
	}
	for key, types := range map[string][]string{
		"minLength": {"string"}, "maxLength": {"string"}, "regexMatch": {"string"},
		"minValue": {"integer", "double"}, "maxValue": {"integer", "double"}, "minPrecision": {"double"}, "maxPrecision": {"double"},
	} {
		if v, has := o[key]; has && !slices.Contains(types, scalar) {
			return true
		} else if f, ok := number(v); ok && (scalar == "integer" && f != float64(int64(f)) || f < 0 && !strings.HasSuffix(key, "Value")) {
			return true
		}
	}
	for _, rule := range []string{"Length", "Value", "Precision"} {
		low, ok1 := number(o["min"+rule])
		high, ok2 := number(o["max"+rule])
		if ok1 && ok2 && low > high {
			return true
		}
	}
	options, _ := o["options"].(list)
	return slices.ContainsFunc(options, func(option any) bool {
		s, _ := option.(string)
		_, isNumber := number(json.Number(s))
		return scalar == "boolean" && s != "true" && s != "false" || (scalar == "integer" || scalar == "double") && !isNumber
	})
}

// deploymentDifferences are those of deployments.
var deploymentDifferences = []difference{
	{row: "`id` of a deployment", applies: func(doc object) bool { id, _ := doc["id"].(string); return len(id) != 36 }},
	{row: "an unknown key", applies: anyOf(
		unknownKeys([]string{""}, "id", "metadata", "spec"),
		unknownKeys([]string{"metadata"}, "name", "namespace", "deviceId", "labels", "annotations"),
		unknownKeys(below(components, ".properties"), "repository", "revision", "wait", "timeout"),
		unknownKeys(constraints, "capacityRequirements", "eligibilityRules"),
		unknownKeys(below(constraints, ".capacityRequirements"), "cpu", "memory", "storage"),
		unknownKeys(below(constraints, ".capacityRequirements.cpu"), "cores", "architectures"),
		unknownKeys(rules, "propertySelector", "labelSelector"),
		unknownKeys(join(selectors, below(expressions, ".itemSelector")), "matchExpressions"),
		unknownKeys(expressions, "key", "operator", "values", "itemSelector"),
		unknownKeys(parameters, "value", "targets"),
		unknownKeys(below(parameters, ".targets[]"), "pointer", "components"),
	)},
	{row: "`value` of a deployment's parameter", applies: some(func(x any) bool {
		_, mapping := x.(object)
		l, _ := x.(list)
		return x == nil || mapping || slices.ContainsFunc(l, func(item any) bool {
			_, o := item.(object)
			_, l := item.(list)
			return item == nil || o || l
		})
	}, "spec.parameters.*.value")},
	{row: "`x-colony-extensions`", applies: some(func(x any) bool { return fmt.Sprint(x) != fmt.Sprint(colonys()) }, "spec.x-colony-extensions")},
	{row: "`null` in a deployment", lax: true, applies: deep(null)},
	{row: "a deployment of type `custom`", lax: true, applies: some(func(x any) bool { return x == "custom" }, "spec.deploymentProfile.type")},
}

// unknownKeys reports whether a mapping at one of the paths has another key than these.
func unknownKeys(paths []string, known ...string) func(object) bool {
	return some(func(x any) bool {
		o, _ := x.(object)
		return slices.ContainsFunc(keysOf(o), func(k string) bool { return !slices.Contains(known, k) })
	}, paths...)
}
