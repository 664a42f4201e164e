package v1rc3

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/colonyfleet/colony/margo/document"
)

var (
	appID         = regexp.MustCompile(`^[a-z0-9-]{1,200}$`)
	componentName = regexp.MustCompile(`^[a-z0-9-]+$`)
	repository    = regexp.MustCompile(`^oci://` + registryHost + `(:[1-9][0-9]*)?/` + repositoryPart + `(/` + repositoryPart + `)*$`)
	timeout       = regexp.MustCompile(`^\d+m\d+s$`)
	email         = regexp.MustCompile(`.*@[a-z0-9.-]*`)
	revision      = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
		`(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?` +
		`(?:_([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$`)
)

// registryHost is a name or an address, and repositoryPart a part of the name of a repository (OCI
// Distribution Specification 1.1, "Pulling manifests"). A repository then has one spelling: a
// client or a registry takes others, as with "./" in them, for the same one.
const (
	registryHost   = `([a-z0-9]+(-+[a-z0-9]+)*(\.[a-z0-9]+(-+[a-z0-9]+)*)*|\[[0-9a-f:.]+\])`
	repositoryPart = `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
	wantRepository = "oci://host/path, with a path of lower-case letters and digits, between them ., _, __ or -, and one / between its parts"
)

// Problem and Problems are what is wrong with a document.
type (
	Problem  = document.Problem
	Problems = document.Problems
)

// MaxDocument is the size of the largest document that is read, in bytes.
const MaxDocument = document.MaxBytes

type (
	value  = document.Value
	object = document.Object
)

// isOpen reports whether the standard leaves the value of a key untyped: that of a
// parameter, in an application or in a deployment, and all of an extension. Path and
// depth are those of the mapping with the key.
func isOpen(path string, depth int, key string) bool {
	parameter := strings.HasPrefix(path, "parameters.") && depth == 2 || strings.HasPrefix(path, "spec.parameters.") && depth == 3
	return parameter && key == "value" || document.IsExtension(key)
}

// ParseApplication reads a margo.yaml. An error is a Problems with everything
// that is wrong with it.
func ParseApplication(doc []byte) (*Application, error) {
	top, d, err := document.Read(doc, isOpen)
	if err != nil {
		return nil, err
	}
	a := new(Application)
	o := top.Object("apiVersion", "id", "metadata", "deploymentProfiles", "parameters", "configuration", document.AnyExtension)
	version := o.Need("apiVersion")
	if a.APIVersion = version.Text(); version.Exists() && a.APIVersion != APIVersion {
		// Another version has other rules: what follows would be noise.
		version.Report("apiVersion %q is not known: this program reads %s", a.APIVersion, APIVersion)
		return nil, d.Err()
	}
	a.ID = o.Need("id").Match(appID, "1 to 200 of a-z, 0-9 and -")
	a.Metadata = readMetadata(o.Need("metadata"))
	a.Profiles = readProfiles(o.Need("deploymentProfiles"))
	a.Configuration = readConfiguration(o.Mapping("configuration"))
	a.Parameters = readParameters(o.Mapping("parameters"), false)
	a.Extensions = o.Extensions()
	a.checkReferences(o)
	if err := d.Err(); err != nil {
		return nil, err
	}
	a.Warnings = d.Warnings()
	return a, nil
}

func readMetadata(v value) Metadata {
	o := v.Object("name", "description", "version", "catalog")
	m := Metadata{
		Name:        o.Need("name").Name(),
		Description: o.Get("description").Text(),
		Version:     o.Need("version").Name(),
	}
	c := o.Need("catalog").Object("application", "author", "organization")
	m.Catalog.Application = readCatalogApplication(c.Mapping("application"))
	for _, item := range c.Get("author").List() {
		author := item.Object("name", "email")
		m.Catalog.Author = append(m.Catalog.Author, Author{
			Name:  author.Get("name").Text(),
			Email: author.Get("email").Match(email, "an address such as name@example.com"),
		})
	}
	for _, item := range c.Need("organization").Some() {
		org := item.Object("name", "site")
		m.Catalog.Organization = append(m.Catalog.Organization, Organization{
			Name: org.Need("name").Name(), Site: org.Get("site").Text(),
		})
	}
	return m
}

func readCatalogApplication(v value) CatalogApplication {
	o := v.Object("descriptionFile", "icon", "licenseFile", "releaseNotes", "site", "tagline", "tags")
	return CatalogApplication{
		DescriptionFile: file(o.Get("descriptionFile")),
		Icon:            file(o.Get("icon")),
		LicenseFile:     file(o.Get("licenseFile")),
		ReleaseNotes:    file(o.Get("releaseNotes")),
		Site:            o.Get("site").Text(),
		Tagline:         o.Get("tagline").Text(),
		Tags:            readTags(o.Get("tags")),
	}
}

// readTags reads texts, of which the standard lets each be empty.
func readTags(v value) []string {
	var all []string
	for _, item := range v.List() {
		all = append(all, item.Text())
	}
	return all
}

// file reads a path relative to the package that does not lead out of it. Whether the
// file is of its kind is seen in its content.
func file(v value) string {
	s := v.Name()
	clean := path.Clean(s)
	if v.Exists() && (path.IsAbs(s) || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsAny(s, "\\\x00")) {
		v.Report("%q: want a path relative to the package that stays within it", s)
	}
	return s
}

func readProfiles(v value) []Profile {
	var all []Profile
	ids := map[string]bool{}
	for _, item := range v.Some() {
		o := item.Object("type", "id", "description", "components", "deviceConstraints", document.AnyExtension)
		p := Profile{
			Type:        ProfileType(o.Need("type").OneOf(rc3.profileTypes...)),
			ID:          o.Need("id").Name(),
			Description: o.Get("description").Text(),
			Components:  readComponents(o.Need("components")),
			Constraints: readConstraints(o.Mapping("deviceConstraints")),
			Extensions:  o.Extensions(),
		}
		if p.ID != "" && ids[p.ID] {
			o.Get("id").Report("the profile id %q is used twice", p.ID)
		}
		ids[p.ID] = true
		if p.Type == Custom && !p.Constraints.hasLabelRules() {
			o.Note("a custom profile needs deviceConstraints.eligibilityRules in which every rule has a labelSelector, " +
				"so that only devices that know its payload take it")
		}
		all = append(all, p)
	}
	return all
}

// CheckRepository says what is wrong with the name of a repository, oci://host/path.
func CheckRepository(name string) error {
	if !repository.MatchString(name) {
		return fmt.Errorf("%q: want %s", name, wantRepository)
	}
	return nil
}

func readComponents(v value) []Component {
	var all []Component
	names := map[string]bool{}
	for _, item := range v.Some() {
		o := item.Object("name", "properties", document.AnyExtension)
		c := Component{
			Name:       o.Need("name").Match(componentName, "lower-case letters, digits and -"),
			Extensions: o.Extensions(),
		}
		if c.Name != "" && names[c.Name] {
			o.Get("name").Report("the component name %q is used twice in this profile", c.Name)
		}
		names[c.Name] = true
		p := o.Need("properties").Object("repository", "revision", "wait", "timeout")
		c.Properties = Properties{
			Repository: p.Need("repository").Match(repository, wantRepository),
			Revision:   p.Need("revision").Match(revision, "a semantic version without a leading v, such as 1.2.3, with _ in the place of +"),
			Wait:       p.Get("wait").Bool(),
			Timeout:    p.Get("timeout").Match(timeout, "minutes and seconds, such as 5m0s"),
		}
		if d, err := time.ParseDuration(c.Properties.Timeout); c.Properties.Timeout != "" && (err != nil || d > maxTimeout) {
			p.Get("timeout").Report("%q: want at most %s", c.Properties.Timeout, maxTimeout)
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
	o := v.Object()
	if len(o.Keys) == 0 {
		return nil
	}
	all := map[string]Parameter{}
	for _, name := range o.Keys {
		known := []string{"value", "targets"}
		if !values {
			known = append(known, "name") // which its key says already
		}
		f := o.Fields[name].Object(known...)
		if own := f.Get("name"); own.Exists() && own.Text() != name {
			own.Warn("the parameter is named %q by its key", name)
		}
		p := Parameter{Value: readParameterValue(f.Get("value"))}
		if values {
			f.Need("value")
		}
		for _, item := range f.Need("targets").Some() {
			t := item.Object("pointer", "components")
			p.Targets = append(p.Targets, Target{Pointer: t.Need("pointer").Name(), Components: readNames(t.Need("components"))})
		}
		all[name] = p
	}
	return all
}

func readNames(v value) []string {
	v.Some()
	return v.Texts()
}

// readParameterValue reads a scalar or a list of scalars.
func readParameterValue(v value) any {
	if !v.Exists() {
		return nil
	}
	if x := spelled(v); x != nil {
		return x
	}
	if v.Kind() != "a list" {
		v.Report("want a text, a number, true, false or a list of these, got %s", v.Kind())
		return nil
	}
	all := []any{}
	for _, item := range v.List() {
		x := spelled(item)
		if x == nil && item.Exists() {
			item.Report("want a text, a number, true or false, got %s", item.Kind())
		}
		all = append(all, x)
	}
	return all
}

// spelled returns a scalar of a parameter. A number that its Go type would spell in
// another way, as 1.1 for 1.10, is a json.Number, or the text, as 0644, where JSON has no
// such number: an application gets it as it was written. A text with a zero byte, which no environment variable can hold, is refused.
func spelled(v value) any {
	x := v.Scalar()
	if text, ok := x.(string); ok && strings.ContainsRune(text, 0) {
		v.Report("a zero byte cannot be passed to an application")
		return ""
	}
	if n, ok := x.(int64); ok && Text(n) != v.Source() {
		return v.Source()
	}
	if f, ok := x.(float64); ok && decimal.MatchString(v.Source()) && Text(f) != v.Source() {
		return json.Number(v.Source())
	}
	return x
}
