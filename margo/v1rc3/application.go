package v1rc3

// APIVersion is the only apiVersion of an ApplicationDescription that is read.
const APIVersion = "v1"

// An Application is an ApplicationDescription: what a package's margo.yaml says.
type Application struct {
	APIVersion    string               `json:"apiVersion"`
	ID            string               `json:"id"`
	Metadata      Metadata             `json:"metadata"`
	Profiles      []Profile            `json:"deploymentProfiles"`
	Parameters    map[string]Parameter `json:"parameters,omitempty"`
	Configuration Configuration        `json:"configuration,omitzero"`

	// Extensions are the root's x-…-extensions blocks by key. They speak to the
	// fleet manager and never reach a device.
	Extensions map[string]any `json:"extensions,omitempty"`

	// Warnings are what ParseApplication accepted and is probably not meant.
	Warnings Problems `json:"-"`
}

// Metadata is what people read of an application.
type Metadata struct {
	Name        string  `json:"name"`
	Description string  `json:"description,omitempty"`
	Version     string  `json:"version"` // any text; equals the OCI tag of the package
	Catalog     Catalog `json:"catalog"`
}

// Catalog is the catalog entry of an application.
type Catalog struct {
	Application  CatalogApplication `json:"application,omitzero"`
	Author       []Author           `json:"author,omitempty"`
	Organization []Organization     `json:"organization"`
}

// CatalogApplication names the files of a package, by paths relative to it.
type CatalogApplication struct {
	DescriptionFile string   `json:"descriptionFile,omitempty"`
	Icon            string   `json:"icon,omitempty"`
	LicenseFile     string   `json:"licenseFile,omitempty"`
	ReleaseNotes    string   `json:"releaseNotes,omitempty"`
	Site            string   `json:"site,omitempty"`
	Tagline         string   `json:"tagline,omitempty"`
	Tags            []string `json:"tags,omitempty"`
}

// Files returns the files that the catalog entry names, by their key there, such
// as "icon". An importer checks that the package holds them.
func (c CatalogApplication) Files() map[string]string {
	files := map[string]string{}
	for key, file := range map[string]string{
		"descriptionFile": c.DescriptionFile, "icon": c.Icon,
		"licenseFile": c.LicenseFile, "releaseNotes": c.ReleaseNotes,
	} {
		if file != "" {
			files[key] = file
		}
	}
	return files
}

// An Author wrote an application.
type Author struct {
	Name  string `json:"name,omitempty"`
	Email string `json:"email,omitempty"`
}

// An Organization publishes an application.
type Organization struct {
	Name string `json:"name"`
	Site string `json:"site,omitempty"`
}

// A ProfileType says what the components of a profile are.
type ProfileType string

// The profile types. Colony's nodes run Compose.
const (
	Helm    ProfileType = "helm" // a Helm chart: imported and not run
	Compose ProfileType = "compose"
	Custom  ProfileType = "custom" // a type of another vendor: imported and not run
)

// A Profile is one way to deploy an application.
type Profile struct {
	Type        ProfileType    `json:"type"`
	ID          string         `json:"id"` // unique within the application
	Description string         `json:"description,omitempty"`
	Components  []Component    `json:"components"` // in the order of installation
	Constraints *Constraints   `json:"deviceConstraints,omitempty"`
	Extensions  map[string]any `json:"extensions,omitempty"` // copied to the device unchanged
}

// A Component is one Helm chart, Compose archive or custom payload.
type Component struct {
	Name       string         `json:"name" yaml:"name"`
	Properties Properties     `json:"properties" yaml:"properties"`
	Extensions map[string]any `json:"extensions,omitempty" yaml:",inline"` // copied to the device unchanged
}

// Properties say where a component is and how it is waited for.
type Properties struct {
	Repository string `json:"repository" yaml:"repository"` // oci://host/path
	Revision   string `json:"revision" yaml:"revision"`     // SemVer, with _ for +
	// Wait holds the next component back until this one is up. Nil means true.
	Wait *bool `json:"wait,omitempty" yaml:"wait,omitempty"`
	// Timeout bounds the waiting, in the form 8m30s. Empty: the device's default.
	Timeout string `json:"timeout,omitempty" yaml:"timeout,omitempty"`
}

// Waits says whether the next component waits for this one.
func (p Properties) Waits() bool { return p.Wait == nil || *p.Wait }

// A Parameter is a value that goes to components.
type Parameter struct {
	// Value is a string, int64, float64, bool or []any of these; in an
	// Application it is the default, and nil where there is none.
	Value   any      `json:"value,omitempty" yaml:"value"`
	Targets []Target `json:"targets" yaml:"targets"`
}

// A Target says where a parameter's value goes.
type Target struct {
	// Pointer is a dotted path of a Helm value, or the name of an environment variable.
	Pointer    string   `json:"pointer" yaml:"pointer"`
	Components []string `json:"components" yaml:"components"`
}

// Configuration says how parameters are shown to people and checked.
type Configuration struct {
	Sections []Section `json:"sections,omitempty"`
	Schemas  []Schema  `json:"schema,omitempty"`
}

// A Section is a group of settings.
type Section struct {
	Name     string    `json:"name"`
	Settings []Setting `json:"settings"`
}

// A Setting shows one parameter.
type Setting struct {
	Parameter   string `json:"parameter"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Immutable   bool   `json:"immutable,omitempty"` // may not change after the first install
	Schema      string `json:"schema"`              // name of a Schema
}

// A Schema is a set of rules for a value. A nil rule does not hold.
type Schema struct {
	Name string `json:"name"`
	// DataType is string, integer, double or boolean, or one of these as array[…].
	DataType     string   `json:"dataType"`
	AllowEmpty   bool     `json:"allowEmpty,omitempty"`
	MinLength    *int64   `json:"minLength,omitempty"` // characters
	MaxLength    *int64   `json:"maxLength,omitempty"` // characters
	RegexMatch   string   `json:"regexMatch,omitempty"`
	MinValue     *float64 `json:"minValue,omitempty"`
	MaxValue     *float64 `json:"maxValue,omitempty"`
	MinPrecision *int64   `json:"minPrecision,omitempty"` // digits after the point
	MaxPrecision *int64   `json:"maxPrecision,omitempty"` // digits after the point
	Options      []any    `json:"options,omitempty"`
	Multiselect  bool     `json:"multiselect,omitempty"`
}

// Profile returns the profile with this id.
func (a *Application) Profile(id string) (*Profile, bool) {
	for i := range a.Profiles {
		if a.Profiles[i].ID == id {
			return &a.Profiles[i], true
		}
	}
	return nil, false
}

// Setting returns the setting that shows a parameter, and its schema. It is false
// for a parameter that no section shows.
func (a *Application) Setting(parameter string) (Setting, Schema, bool) {
	for _, section := range a.Configuration.Sections {
		for _, setting := range section.Settings {
			if setting.Parameter != parameter {
				continue
			}
			for _, schema := range a.Configuration.Schemas {
				if schema.Name == setting.Schema {
					return setting, schema, true
				}
			}
		}
	}
	return Setting{}, Schema{}, false
}
