package v1rc3

import (
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	appID         = regexp.MustCompile(`^[a-z0-9-]{1,200}$`)
	componentName = regexp.MustCompile(`^[a-z0-9-]+$`)
	repository    = regexp.MustCompile(`^oci://.+`)
	timeout       = regexp.MustCompile(`^\d+m\d+s$`)
	email         = regexp.MustCompile(`.*@[a-z0-9.-]*`)
	revision      = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
		`(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?` +
		`(?:_([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$`)
)

// ParseApplication reads a margo.yaml. An error is a Problems with everything
// that is wrong with it.
func ParseApplication(doc []byte) (*Application, error) {
	top, d, err := read(doc)
	if err != nil {
		return nil, err
	}
	a := new(Application)
	o := top.object("apiVersion", "id", "metadata", "deploymentProfiles", "parameters", "configuration", anyExtension)
	version := o.need("apiVersion")
	if a.APIVersion = version.text(); version.exists() && a.APIVersion != APIVersion {
		// Another version has other rules: what follows would be noise.
		version.report("apiVersion %q is not known: this program reads %s", a.APIVersion, APIVersion)
		return nil, d.problems.err()
	}
	a.ID = o.need("id").match(appID, "1 to 200 of a-z, 0-9 and -")
	a.Metadata = readMetadata(o.need("metadata"))
	a.Profiles = readProfiles(o.need("deploymentProfiles"))
	a.Configuration = readConfiguration(o.get("configuration"))
	a.Parameters = readParameters(o.get("parameters"), false)
	a.Extensions = o.extensions()
	a.checkReferences(o)
	if err := d.problems.err(); err != nil {
		return nil, err
	}
	return a, nil
}

func readMetadata(v value) Metadata {
	o := v.object("name", "description", "version", "catalog")
	m := Metadata{
		Name:        o.need("name").name(),
		Description: o.get("description").text(),
		Version:     o.need("version").name(),
	}
	c := o.need("catalog").object("application", "author", "organization")
	m.Catalog.Application = readCatalogApplication(c.get("application"))
	for _, item := range c.get("author").list() {
		author := item.object("name", "email")
		m.Catalog.Author = append(m.Catalog.Author, Author{
			Name:  author.get("name").text(),
			Email: author.get("email").match(email, "an address such as name@example.com"),
		})
	}
	for _, item := range c.need("organization").some() {
		org := item.object("name", "site")
		m.Catalog.Organization = append(m.Catalog.Organization, Organization{
			Name: org.need("name").name(), Site: org.get("site").text(),
		})
	}
	return m
}

func readCatalogApplication(v value) CatalogApplication {
	o := v.object("descriptionFile", "icon", "licenseFile", "releaseNotes", "site", "tagline", "tags")
	return CatalogApplication{
		DescriptionFile: o.get("descriptionFile").file(".md"),
		Icon:            o.get("icon").file(),
		LicenseFile:     o.get("licenseFile").file(".txt", ".md", ".pdf"),
		ReleaseNotes:    o.get("releaseNotes").file(".md", ".pdf"),
		Site:            o.get("site").text(),
		Tagline:         o.get("tagline").text(),
		Tags:            readTags(o.get("tags")),
	}
}

// readTags reads texts, of which the standard lets each be empty.
func readTags(v value) []string {
	var all []string
	for _, item := range v.list() {
		all = append(all, item.text())
	}
	return all
}

// file reads a path relative to the package that does not lead out of it.
func (v value) file(extensions ...string) string {
	s := v.name()
	if !v.exists() {
		return s
	}
	clean := path.Clean(s)
	switch ext := strings.ToLower(path.Ext(s)); {
	case path.IsAbs(s), clean == "..", strings.HasPrefix(clean, "../"), strings.ContainsAny(s, "\\\x00"):
		v.report("%q: want a path relative to the package that stays within it", s)
	case len(extensions) > 0 && !slices.Contains(extensions, ext):
		v.report("%q: want a file of type %s", s, strings.Join(extensions, ", "))
	}
	return s
}

func readProfiles(v value) []Profile {
	var all []Profile
	ids := map[string]bool{}
	for _, item := range v.some() {
		o := item.object("type", "id", "description", "components", "deviceConstraints", anyExtension)
		p := Profile{
			Type:        ProfileType(o.need("type").oneOf(string(Helm), string(Compose), string(Custom))),
			ID:          o.need("id").name(),
			Description: o.get("description").text(),
			Components:  readComponents(o.need("components")),
			Constraints: readConstraints(o.get("deviceConstraints")),
			Extensions:  o.extensions(),
		}
		if p.ID != "" && ids[p.ID] {
			o.get("id").report("the profile id %q is used twice", p.ID)
		}
		ids[p.ID] = true
		if p.Type == Custom && !p.Constraints.hasLabelRules() {
			o.problem("a custom profile needs deviceConstraints.eligibilityRules in which every rule has a labelSelector, " +
				"so that only devices that know its payload take it")
		}
		all = append(all, p)
	}
	return all
}

func readComponents(v value) []Component {
	var all []Component
	names := map[string]bool{}
	for _, item := range v.some() {
		o := item.object("name", "properties", anyExtension)
		c := Component{
			Name:       o.need("name").match(componentName, "lower-case letters, digits and -"),
			Extensions: o.extensions(),
		}
		if c.Name != "" && names[c.Name] {
			o.get("name").report("the component name %q is used twice in this profile", c.Name)
		}
		names[c.Name] = true
		p := o.need("properties").object("repository", "revision", "wait", "timeout")
		c.Properties = Properties{
			Repository: p.need("repository").match(repository, "oci://host/path"),
			Revision:   p.need("revision").match(revision, "a semantic version without a leading v, such as 1.2.3, with _ in the place of +"),
			Wait:       p.get("wait").boolean(),
			Timeout:    p.get("timeout").match(timeout, "minutes and seconds, such as 5m0s"),
		}
		if d, err := time.ParseDuration(c.Properties.Timeout); c.Properties.Timeout != "" && (err != nil || d > maxTimeout) {
			p.get("timeout").report("%q: want at most %s", c.Properties.Timeout, maxTimeout)
		}
		all = append(all, c)
	}
	return all
}

// maxTimeout bounds the timeout of a component. The standard has no bound, and its
// form holds centuries, which no clock here can count.
const maxTimeout = 7 * 24 * time.Hour

// TimeoutDuration returns the timeout, or 0 where none is given.
func (p Properties) TimeoutDuration() time.Duration {
	d, err := time.ParseDuration(p.Timeout)
	if err != nil {
		return 0
	}
	return d
}

// SemVer returns the revision in the form of SemVer 2.0, with + before the build
// metadata, for comparing versions.
func (p Properties) SemVer() string { return strings.Replace(p.Revision, "_", "+", 1) }

// readParameters reads the parameters of an application, or of a deployment,
// where each has a value.
func readParameters(v value, values bool) map[string]Parameter {
	o := v.object()
	if len(o.keys) == 0 {
		return nil
	}
	all := map[string]Parameter{}
	for _, name := range o.keys {
		f := o.fields[name].object("value", "targets")
		p := Parameter{Value: readParameterValue(f.get("value"))}
		if values {
			f.need("value")
		}
		for _, item := range f.need("targets").some() {
			t := item.object("pointer", "components")
			p.Targets = append(p.Targets, Target{Pointer: t.need("pointer").name(), Components: readNames(t.need("components"))})
		}
		all[name] = p
	}
	return all
}

func readNames(v value) []string {
	v.some()
	return v.texts()
}

// readParameterValue reads a scalar or a list of scalars.
func readParameterValue(v value) any {
	if !v.exists() {
		return nil
	}
	if x := v.spelled(); x != nil {
		return x
	}
	if v.kind() != "a list" {
		v.report("want a text, a number, true, false or a list of these, got %s", v.kind())
		return nil
	}
	all := []any{}
	for _, item := range v.list() {
		x := item.spelled()
		if x == nil && item.exists() {
			item.report("want a text, a number, true or false, got %s", item.kind())
		}
		all = append(all, x)
	}
	return all
}

// spelled returns a scalar of a parameter. A number that its Go type would spell in
// another way, as 1.1 for 1.10, is a json.Number: an application gets it as it was
// written. A text with a zero byte, which no environment variable can hold, is refused.
func (v value) spelled() any {
	x := v.scalar()
	if text, ok := x.(string); ok && strings.ContainsRune(text, 0) {
		v.report("a zero byte cannot be passed to an application")
		return ""
	}
	if f, ok := x.(float64); ok && decimal.MatchString(v.node.Value) && Text(f) != v.node.Value {
		return json.Number(v.node.Value)
	}
	return x
}
