package v1rc3_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/colonyfleet/colony/margo/v1rc3"
)

type (
	object = map[string]any
	list   = []any
)

// A gen draws documents.
type gen struct{ *rand.Rand }

func pick[T any](g *gen, from ...T) T { return from[g.IntN(len(from))] }

func (g *gen) maybe() bool { return g.IntN(2) == 0 }

// optional sets a key in half of the cases.
func (g *gen) optional(o object, key string, value any) {
	if g.maybe() {
		o[key] = value
	}
}

func (g *gen) text() string {
	return pick(g, "a", "Meter", "ä☃ 😀", "1.0", "true", "a: b", "# no comment", "line\nline", " x", "null", "2026-01-01", "0x10", "'", `"\`)
}

// application draws a description that keeps every rule.
func (g *gen) application() object {
	meta := object{"name": g.text(), "version": pick(g, "1.0", "v2", "1.2.3-rc_1"), "catalog": g.catalog()}
	g.optional(meta, "description", g.text())
	var profiles, all list
	for i := range 1 + g.IntN(3) {
		p, names := g.profile(pick(g, "compose", "compose", "helm", "custom"))
		p["id"] = fmt.Sprintf("profile-%d", i)
		g.optional(p, "description", g.text())
		profiles = append(profiles, p)
		all = append(all, names...)
	}
	doc := object{"apiVersion": "v1", "id": pick(g, "meter", "a-1", "0"), "metadata": meta, "deploymentProfiles": profiles}
	if g.maybe() {
		doc["x-vendor-extensions"] = g.extension()
	}
	if parameters := g.parameters(all); len(parameters) > 0 {
		doc["parameters"] = parameters
		if g.maybe() {
			doc["configuration"] = g.configuration(parameters)
		}
	}
	return doc
}

func (g *gen) catalog() object {
	app := object{}
	for _, key := range []string{"descriptionFile", "icon", "licenseFile", "releaseNotes"} {
		g.optional(app, key, pick(g, "./resources/a.md", "resources/b", "c"))
	}
	g.optional(app, "site", "https://vendor.example")
	g.optional(app, "tagline", pick(g, "", g.text()))
	g.optional(app, "tags", pick(g, list{}, list{"a"}, list{"", g.text()}))
	org := object{"name": g.text()}
	g.optional(org, "site", "https://vendor.example")
	c := object{"organization": list{org}}
	g.optional(c, "application", app)
	author := object{}
	g.optional(author, "name", g.text())
	g.optional(author, "email", pick(g, "a@b.example", "@", "A B@x"))
	g.optional(c, "author", pick(g, list{}, list{author}))
	return c
}

func (g *gen) extension() object {
	return pick(g, object{}, object{"a": list{1, "x", nil, object{"b": 1.5}}}, object{"version": "1.0", "{{b}}": "{{c}}"})
}

func (g *gen) profile(kind string) (p object, names list) {
	var components list
	for i := range 1 + g.IntN(2) {
		name := fmt.Sprintf("%s-%d", pick(g, "web", "0", "a-b"), i)
		names = append(names, name)
		props := object{"repository": "oci://r.example/" + name, "revision": pick(g, "1.0.0", "0.0.1-rc.1", "2.10.0-a.b_build.7")}
		g.optional(props, "wait", g.maybe())
		g.optional(props, "timeout", pick(g, "5m0s", "0m1s", "90m30s"))
		c := object{"name": name, "properties": props}
		g.optional(c, "x-vendor-extensions", g.extension())
		components = append(components, c)
	}
	p = object{"type": kind, "components": components}
	g.optional(p, "x-other-vendor-extensions", g.extension())
	if kind == "custom" || g.maybe() {
		p["deviceConstraints"] = g.constraints(kind == "custom")
	}
	return p, names
}

func (g *gen) constraints(labels bool) object {
	capacity := object{}
	cpu := object{"cores": pick[any](g, 0.5, 1, 64)}
	g.optional(cpu, "architectures", pick(g, list{}, list{"amd64"}, list{"arm64", "riscv64", "other"}))
	g.optional(capacity, "cpu", cpu)
	g.optional(capacity, "memory", pick(g, "512Mi", "0Ki"))
	g.optional(capacity, "storage", pick(g, "10Gi", "1Ei"))
	c := object{}
	g.optional(c, "capacityRequirements", capacity)
	label := object{"matchExpressions": list{g.expression("hall")}}
	rule := object{"labelSelector": label}
	if !labels && g.maybe() {
		rule = object{"propertySelector": object{"matchExpressions": list{pick(g, g.expression("/cpus/0/cores"), object{
			"key": "/peripherals", "operator": pick(g, "ContainsAll", "ContainsAny"), "itemSelector": object{"matchExpressions": list{g.expression("/type")}},
		})}}}
		g.optional(rule, "labelSelector", label)
	}
	if labels || g.maybe() {
		c["eligibilityRules"] = list{rule}
	}
	return c
}

func (g *gen) expression(key string) object {
	switch op := pick(g, "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"); op {
	case "In", "NotIn":
		return object{"key": key, "operator": op, "values": pick(g, list{"a"}, list{"a", "b"}, list{1, 2.5}, list{true})}
	case "Gt", "Lt":
		return object{"key": key, "operator": op, "values": pick(g, list{1}, list{"2.5"})}
	default:
		return object{"key": key, "operator": op}
	}
}

func (g *gen) parameters(components list) object {
	all := object{}
	for i := range g.IntN(4) {
		p := object{"targets": list{object{"pointer": fmt.Sprintf("VAR_%d", i), "components": list{components[g.IntN(len(components))]}}}}
		g.optional(p, "value", pick[any](g, "x", "", 5, 1.25, true, false, list{}, list{"a", "b"}, "{{x}}", 1e9))
		all[pick(g, "port", "näme", "a b", "x.y")+fmt.Sprint(i)] = p
	}
	return all
}

func (g *gen) configuration(parameters object) object {
	schemas := list{g.schema("s0"), g.schema("s1")}
	var settings list
	for _, name := range keysOf(parameters) {
		s := object{"parameter": name, "name": g.text(), "schema": pick(g, "s0", "s1")}
		g.optional(s, "description", g.text())
		g.optional(s, "immutable", g.maybe())
		settings = append(settings, s)
	}
	return object{"sections": list{object{"name": g.text(), "settings": settings}}, "schema": schemas}
}

func (g *gen) schema(name string) object {
	kind := pick(g, "string", "integer", "double", "boolean", "select")
	s := object{"name": name, "dataType": kind}
	g.optional(s, "allowEmpty", g.maybe())
	switch kind {
	case "string":
		g.optional(s, "minLength", g.IntN(3))
		g.optional(s, "maxLength", 3+g.IntN(20))
		g.optional(s, "regexMatch", pick(g, "", "^[a-z]+$", "."))
	case "integer":
		g.optional(s, "minValue", -g.IntN(10))
		g.optional(s, "maxValue", 1+g.IntN(70000))
	case "double":
		g.optional(s, "minValue", -1.5)
		g.optional(s, "maxValue", 1.5)
		g.optional(s, "minPrecision", 0)
		g.optional(s, "maxPrecision", 1+g.IntN(3))
	case "select":
		s["dataType"] = pick(g, "string", "array[string]")
		s["options"] = list{"a", "b", g.text()}
		g.optional(s, "multiselect", g.maybe())
	}
	return s
}

// values draws values for the parameters of an application.
func (g *gen) values(app *v1rc3.Application) map[string]any {
	values := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(app.Parameters)) {
		if g.IntN(3) > 0 {
			values[name] = pick[any](g, "a", "abc", 5, 1.5, true, "{{x}}", []any{"a"}, []any{"a", "b"}, "ä: #'\"", "\n", "1e3", "0644", "")
		}
	}
	return values
}

// deployment draws a deployment that keeps every rule.
func (g *gen) deployment() object {
	profile, names := g.profile(pick(g, "compose", "helm"))
	spec := object{"applicationId": pick(g, "meter", "-"), "deploymentProfile": profile}
	parameters := g.parameters(names)
	for _, name := range keysOf(parameters) {
		if p := parameters[name].(object); p["value"] == nil {
			p["value"] = "x"
		}
	}
	if len(parameters) > 0 {
		spec["parameters"] = parameters
	}
	g.optional(spec, "x-vendor-extensions", g.extension())
	g.optional(spec, "x-colony-extensions", colonys())
	meta := object{"name": g.text(), "namespace": "colony", "deviceId": pick(g, "plant/*", "plant/gw-1", "a/b/c", "x")}
	g.optional(meta, "labels", pick(g, object{}, object{"a": "b"}))
	return object{"id": "9f3c2d1e-0000-4000-8000-00000000000" + fmt.Sprint(g.IntN(10)), "metadata": meta, "spec": spec}
}

// colonys is a block of Colony's that keeps every rule.
func colonys() object {
	return object{"applicationVersion": "1.0.0", "profile": "p", "replicas": 2, "policy": object{"attempts": 1, "backoff": "5s"}}
}

// odd are values that stand where others should.
func (g *gen) odd() any {
	return pick[any](g, nil, "", "  ", "x", "{{x}}", "../../x", "/abs", "\x00", "[", "v1", "1.0.0", "oci://x", "200000m0s", "5m", "99999999999Gi", 0, -1, 1.5, 1e300,
		true, list{}, list{nil}, list{"x"}, list{1, "a"}, list{object{}}, object{}, object{"a": 1}, "Exists", "Gt", "ContainsAll", "integer", "array[string]", "array[", "custom", "helm")
}

// damage changes one place of a document, each as likely as the others.
func (g *gen) damage(doc object) {
	var places []func()
	var collect func(x any)
	collect = func(x any) {
		switch x := x.(type) {
		case object:
			for _, k := range keysOf(x) {
				places = append(places, func() { g.damageKey(x, k) })
				collect(x[k])
			}
		case list:
			for i := range x {
				places = append(places, func() { x[i] = g.odd() })
				collect(x[i])
			}
		}
	}
	collect(doc)
	pick(g, places...)()
}

// likely are mistakes that a key invites.
var likely = map[string]list{
	"apiVersion": {"v2", "margo.org/v1-alpha1"}, "id": {"A", "a_b", "9F3C2D1E-0000-4000-8000-000000000001"}, "timeout": {"200000m0s", "5m", "1h"},
	"revision": {"v1.0.0", "1.0", "1.0.0+b", "01.0.0"}, "repository": {"https://x", "oci://", "oci://r.example/./web", "oci://r.example/web/"}, "name": {"Web", "a_b", ""}, "type": {"custom", "helm.v3"},
	"regexMatch": {"[", "(?=x)", `(a)\1`}, "minLength": {-1, 30, 1.5}, "minValue": {0.5, 80000}, "maxPrecision": {-1, 0.5}, "dataType": {"text", "array[string", "double", "integer"},
	"options": {list{1, 2}, list{true}, list{"x", "x"}, list{}}, "multiselect": {"yes", nil}, "value": {"\x00", list{nil}, object{"a": 1}, nil, list{"\x00"}},
	"pointer": {"a.b", ""}, "components": {list{"unknown"}, list{}}, "cores": {-1, "1"}, "memory": {"1Ti", "512", "99999999999Gi"}, "operator": {"in", "Exists", "ContainsAny", "Gt"},
	"values": {list{1, "a"}, list{true, false}, list{object{}}, nil}, "key": {"", "no/pointer", "/~2"}, "icon": {"../x", "/x", ""}, "parameters": {nil, list{}},
	"configuration": {nil, object{}}, "deviceConstraints": {nil, object{"capacityRequirements": nil}}, "deviceId": {"a//b", "*", "a/*/b"}, "labels": {nil, object{"a": 1}},
	"wait": {"true", nil}, "immutable": {"no", nil}, "schema": {"unknown", nil}, "parameter": {"unknown", ""}, "email": {"nobody"}, "version": {1.0, ""},
}

func (g *gen) damageKey(o object, key string) {
	if mistakes := likely[key]; len(mistakes) > 0 && g.maybe() {
		o[key] = pick(g, mistakes...)
		return
	}
	switch g.IntN(6) {
	case 0:
		delete(o, key)
	case 1:
		o[pick(g, "unknown", "name", "x-a-extensions", "x-A-extensions", "schema", "values", "options", "minLength", "minValue", "multiselect", "itemSelector")] = g.odd()
	case 2:
		if l, ok := o[key].(list); ok && len(l) > 0 {
			o[key] = append(l, l[0]) // something stands twice
			return
		}
		o[key] = g.odd()
	default:
		o[key] = g.odd()
	}
}
