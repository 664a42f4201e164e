// Package fleetfile reads and writes the files of a fleet deployment in the deployments repo: one application for many
// sites, in fleet/<name>/deployment.yaml, and what is other at one site, in fleet/<name>/sites/<site>.yaml. It expands
// them into one Margo ApplicationDeployment for each site. It finds every fault of a file at once, each with its line,
// its path, and what to do. It is pure.
package fleetfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/protocol"
)

// The words that open the files.
const (
	APIVersion    = "colony/v1"       // of apiVersion
	Kind          = "FleetDeployment" // of kind, in the file of a fleet deployment
	ExceptionKind = "FleetException"  // of kind, in the file of an exception
)

// Path returns where the file of a fleet deployment is in the deployments repo.
func Path(name protocol.DeploymentName) string {
	return path.Join("fleet", string(name), "deployment.yaml")
}

// ExceptionPath returns where the file is that says what is other at one site.
func ExceptionPath(name protocol.DeploymentName, site protocol.SiteID) string {
	return path.Join("fleet", string(name), "sites", string(site)+".yaml")
}

// Of returns the names in the path of a file of a fleet deployment; site is empty where it is not an exception. The names
// may be ones that nothing can have.
func Of(file string) (name, site string, ok bool) {
	parts := strings.Split(file, "/")
	switch {
	case parts[0] != "fleet":
	case len(parts) == 3 && parts[2] == "deployment.yaml":
		return parts[1], "", true
	case len(parts) == 4 && parts[2] == "sites":
		if site, ok = strings.CutSuffix(parts[3], ".yaml"); ok && site != "" {
			return parts[1], site, true
		}
	}
	return "", "", false
}

// Stray returns why a file that lies below fleet/ is not read, and "" where it is, or is not meant to be.
func Stray(file string) string {
	if !strings.HasPrefix(file, "fleet/") {
		return ""
	}
	misnamed := strings.Count(file, "/") == 2 && Misnamed(path.Base(file))
	if !misnamed && !strings.HasSuffix(file, ".yaml") && !strings.HasSuffix(file, ".yml") {
		return ""
	}
	if name, site, ok := Of(file); ok {
		if _, err := protocol.ParseDeploymentName(name); err != nil {
			return err.Error()
		}
		if site != "" {
			if _, err := protocol.ParseSiteID(site); err != nil {
				return err.Error()
			}
		}
		return ""
	}
	return "a fleet deployment is read from fleet/<name>/deployment.yaml and fleet/<name>/sites/<site>.yaml only"
}

// Misnamed reports whether the name of a file is that of a deployment's with another ending, or with none.
func Misnamed(base string) bool {
	stem, _, _ := strings.Cut(strings.ToLower(base), ".")
	return strings.TrimSpace(stem) == "deployment" && base != "deployment.yaml"
}

// Unread returns why a file that lies below fleet/ is not read, or refused as it is, whatever the catalog and the sites are; "" where it is neither.
func Unread(file string, content []byte) string {
	if why := Stray(file); why != "" {
		return why
	}
	name, site, ok := Of(file)
	var err error
	switch {
	case !ok:
	case site != "":
		_, err = ParseException(protocol.SiteID(site), content)
	default:
		_, err = Parse(protocol.DeploymentName(name), content)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// A File is what a fleet deployment says.
type File struct {
	Name protocol.DeploymentName
	// ID is a UUID that stays with it: the ids of its sites' deployments are made of it.
	ID string
	Spec
}

// A Spec is what is deployed, where, and how it spreads.
type Spec struct {
	Application Application       `json:"application" yaml:"application"`
	Targets     Targets           `json:"targets" yaml:"targets"`
	Nodes       map[string]string `json:"nodes,omitempty" yaml:"nodes,omitempty" doc:"at each site only nodes with these labels; default any"`
	Replicas    uint32            `json:"replicas,omitempty" yaml:"replicas,omitempty" doc:"at each site on so many nodes; 0: on all that match, the default"`
	Parameters  Values            `json:"parameters,omitempty" yaml:"parameters,omitempty" doc:"values of the application's parameters at all sites"`
	Groups      []GroupValues     `json:"groups,omitempty" yaml:"groups,omitempty" doc:"values at the sites of groups, over those of all; a later group's over an earlier one's"`
	Policy      *NodePolicy       `json:"policy,omitempty" yaml:"policy,omitempty"` // of the nodes; absent: the defaults
	Strategy    Strategy          `json:"strategy,omitzero" yaml:"strategy,omitempty"`
}

// An Application names a version of an application of the catalog.
type Application struct {
	ID      string `json:"id" yaml:"id" doc:"application id"`
	Version string `json:"version" yaml:"version" doc:"of the application"`
	Profile string `json:"profile,omitempty" yaml:"profile,omitempty" doc:"id of a deployment profile; default the first that nodes can run"`
}

// Targets say at which sites. A site that is named in any way is one, unless Except names it.
type Targets struct {
	Sites  []string `json:"sites,omitempty" yaml:"sites,omitempty" doc:"names of sites, or how names begin with a * after it; * alone: all"`
	Groups []string `json:"groups,omitempty" yaml:"groups,omitempty" doc:"groups of sites, by name"`
	Except []string `json:"except,omitempty" yaml:"except,omitempty" doc:"sites that are left out, written as those of sites"`
}

// GroupValues are values at the sites of a group.
type GroupValues struct {
	Group      string `json:"group" yaml:"group" doc:"name of a group of sites"`
	Parameters Values `json:"parameters" yaml:"parameters"` // that replace those of all sites
}

// A NodePolicy says what is done about a failure at a node.
type NodePolicy struct {
	Attempts   uint32 `json:"attempts,omitempty" yaml:"attempts,omitempty" maximum:"100" doc:"tries of one version on a node; default 3"`
	Backoff    string `json:"backoff,omitempty" yaml:"backoff,omitempty" doc:"wait before the second try, such as 10s"`
	Rollback   *bool  `json:"rollback,omitempty" yaml:"rollback,omitempty" doc:"return to the last healthy version after the last try; default true"`
	MinHealthy string `json:"minHealthy,omitempty" yaml:"minHealthy,omitempty" doc:"how long a version must be up on a node before no later failure ends it"`
	AnyTime    *bool  `json:"anyTime,omitempty" yaml:"anyTime,omitempty" doc:"carry updates out outside of the maintenance windows of a site, too; default false"`
}

// A Strategy says how a revision spreads. The zero Strategy admits all sites at once, and no failure pauses it.
type Strategy struct {
	Waves          []Wave `json:"waves,omitempty" yaml:"waves,omitempty" doc:"one after the other; default one of all sites"`
	MaxFailed      string `json:"maxFailed,omitempty" yaml:"maxFailed,omitempty" doc:"how many sites may fail, as 2, or which share of those that have it, as 5%; one more pauses the rollout; default 0"`
	SitesPerMinute int    `json:"sitesPerMinute,omitempty" yaml:"sitesPerMinute,omitempty" minimum:"0" doc:"most sites that begin in a minute; 0: no bound"`
	Gates          []Gate `json:"gates,omitempty" yaml:"gates,omitempty" doc:"while one does not pass, no site begins and no wave ends"`
	AtOnce         int    `json:"atOnce,omitempty" yaml:"atOnce,omitempty" minimum:"0" doc:"most sites that are on their way at a time; 0: no bound"`
	Deadline       string `json:"deadline,omitempty" yaml:"deadline,omitempty" doc:"how long a site that is online may take until it runs the revision, such as 2h; then it has failed; default 1h"`
}

// A Wave is a part of the sites: a share, or a group.
type Wave struct {
	Percent  int    `json:"percent,omitempty" yaml:"percent,omitempty" minimum:"0" maximum:"100" doc:"share of all sites once the wave is through, those of the waves before included"`
	Group    string `json:"group,omitempty" yaml:"group,omitempty" doc:"the sites of this group, in place of a share"`
	Bake     string `json:"bake,omitempty" yaml:"bake,omitempty" doc:"how long all of it must work before the next wave, such as 30m or 1h30m; default not at all"`
	Approval bool   `json:"approval,omitempty" yaml:"approval,omitempty" doc:"the next wave waits until a person promotes the rollout"`
}

// A Gate is a question to a source that the configuration of the CO names.
type Gate struct {
	Name   string   `json:"name" yaml:"name" doc:"for people"`
	Source string   `json:"source" yaml:"source" doc:"of the configuration of the CO (rollouts.gates)"`
	Query  string   `json:"query,omitempty" yaml:"query,omitempty" doc:"in PromQL, to a Prometheus server; each series has to be from min to max"`
	Min    *float64 `json:"min,omitempty" yaml:"min,omitempty"` // the least value that passes; absent: no bound
	Max    *float64 `json:"max,omitempty" yaml:"max,omitempty"` // the greatest value that passes; absent: no bound
}

// An Exception is what is other at one site.
type Exception struct {
	Site       protocol.SiteID `json:"-" yaml:"-"`
	Parameters Values          `json:"parameters" yaml:"parameters" doc:"values at this site, over those of the fleet deployment and of its groups"`
}

// Values are values of an application's parameters, by name.
type Values map[string]any

// UnmarshalJSON reads whole numbers as such, so that they are written without a point.
func (v *Values) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var values map[string]any
	if err := d.Decode(&values); err != nil {
		return err
	}
	for name, x := range values {
		values[name] = plain(x)
	}
	*v = values
	return nil
}

// plain returns a value of JSON without json.Number: a number whose digits Go has no type for is a text.
func plain(x any) any {
	switch x := x.(type) {
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n
		}
		if f, err := x.Float64(); err == nil && strconv.FormatFloat(f, 'f', -1, 64) == x.String() {
			return f
		}
		return x.String()
	case []any:
		for i := range x {
			x[i] = plain(x[i])
		}
	}
	return x
}

type document struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   map[string]string `yaml:"metadata"`
	Spec       any               `yaml:"spec"`
}

// Marshal writes the file of a fleet deployment. Parse says whether it is valid.
func (f *File) Marshal() ([]byte, error) {
	return encode(document{APIVersion, Kind, map[string]string{"name": string(f.Name), "id": f.ID}, f.Spec})
}

// Marshal writes the file of an exception. ParseException says whether it is valid.
func (e *Exception) Marshal() ([]byte, error) {
	return encode(document{APIVersion, ExceptionKind, map[string]string{"site": string(e.Site)}, *e})
}

func encode(d document) ([]byte, error) {
	b, err := yaml.Dump(d, yaml.WithV4Defaults(), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("write file of a fleet deployment: %w", err)
	}
	return bytes.TrimLeft(b, "\n"), nil
}
