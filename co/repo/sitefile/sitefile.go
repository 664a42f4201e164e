// Package sitefile reads and writes the file of a site in the deployments repo,
// sites/<site>/site.yaml: the rules of the site's machine data, the accounts of its
// devices, whether programs may be run in its containers, and its maintenance windows. It finds
// every fault of a file at once, each with its line, its path, and what to do. It
// is pure.
package sitefile

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// The words that open a file.
const (
	APIVersion = "colony/v1" // of apiVersion
	Kind       = "Site"      // of kind
)

// MaxBytes is the size up to which a file is read.
const MaxBytes = 256 << 10

// Path returns where the file of a site is in the deployments repo.
func Path(site protocol.SiteID) string { return "sites/" + string(site) + "/site.yaml" }

// SiteOf returns the folder's name where path is that of a site's file. It may be
// a name that no site can have.
func SiteOf(path string) (folder string, ok bool) {
	parts := strings.Split(path, "/")
	if len(parts) != 3 || parts[0] != "sites" || parts[2] != "site.yaml" {
		return "", false
	}
	return parts[1], true
}

// A Rule is a data rule as a file and the API write it. Durations are such as
// 30s, 12h or 7d, sizes such as 512KiB or 256MiB. What is absent has its default.
type Rule struct {
	Name      string   `json:"name" yaml:"name" doc:"DNS label, unique at the site; it names the stream, which stays while the name stays"`
	Direction string   `json:"direction" yaml:"direction" enum:"up,down" doc:"up: from the site to the CO; down: from the CO to the site"`
	Topics    []string `json:"topics" yaml:"topics" doc:"MQTT topic filters, relative to local (up) or to remote (down)"`
	Local     string   `json:"local,omitempty" yaml:"local,omitempty" doc:"prefix of topics at the site's broker, with its final slash; default colony/v1/{site}/data/"`
	Remote    string   `json:"remote,omitempty" yaml:"remote,omitempty" doc:"prefix at the CO's broker after colony/v1/{site}/data/ (up) or /in/ (down), with its final slash"`
	QoS       *uint8   `json:"qos,omitempty" yaml:"qos,omitempty" maximum:"2" doc:"highest QoS of delivery; default 1"`
	KeepQoS0  bool     `json:"keepQoS0,omitempty" yaml:"keepQoS0,omitempty" doc:"keep messages of QoS 0 while the link is down, like those of QoS 1"`
	Priority  string   `json:"priority,omitempty" yaml:"priority,omitempty" enum:"high,normal,low" doc:"among the rules of the site; default normal"`
	TTL       string   `json:"ttl,omitempty" yaml:"ttl,omitempty" doc:"how long after its arrival a message is useful; default without end"`
	MaxBytes  string   `json:"maxBytes,omitempty" yaml:"maxBytes,omitempty" doc:"bound of the stream, above it the oldest messages are dropped and counted; default 256MiB"`
	MaxAge    string   `json:"maxAge,omitempty" yaml:"maxAge,omitempty" doc:"bound of the stream by age; default none"`

	Batch      *Batch      `json:"batch,omitempty" yaml:"batch,omitempty"`
	Sample     *Sample     `json:"sample,omitempty" yaml:"sample,omitempty"`
	Store      *Store      `json:"store,omitempty" yaml:"store,omitempty" doc:"keep the messages in PostgreSQL; absent: do not"`
	Prometheus *Prometheus `json:"prometheus,omitempty" yaml:"prometheus,omitempty" doc:"send the numbers by remote write; it needs store"`
}

// Batch says how messages are gathered for the link.
type Batch struct {
	Bytes       string `json:"bytes,omitempty" yaml:"bytes,omitempty" doc:"how much goes into one batch, before compression; default 256KiB"`
	Wait        string `json:"wait,omitempty" yaml:"wait,omitempty" doc:"how long a message waits for others; default not at all"`
	Compression string `json:"compression,omitempty" yaml:"compression,omitempty" enum:"zstd,none" doc:"default zstd"`
}

// Sample says which messages of a topic the site does not send.
type Sample struct {
	Mode     string `json:"mode" yaml:"mode" enum:"last,change,deadband"` // the rule by which messages are left out
	Period   string `json:"period,omitempty" yaml:"period,omitempty" doc:"of mode last; for the others the longest silence"`
	Deadband string `json:"deadband,omitempty" yaml:"deadband,omitempty" doc:"how far a number must be from the last that passed: 1.5, or 2%"`
	Field    string `json:"field,omitempty" yaml:"field,omitempty" doc:"JSON pointer (RFC 6901) to the number; default the payload is the number"`
}

// Store says how long messages stay in PostgreSQL.
type Store struct {
	Keep string `json:"keep,omitempty" yaml:"keep,omitempty" doc:"default for ever"`
}

// Prometheus says what series the numbers become.
type Prometheus struct {
	Metric string   `json:"metric" yaml:"metric" doc:"name of the metric; the labels are site, rule, topic and field"`
	Fields []string `json:"fields,omitempty" yaml:"fields,omitempty" doc:"JSON pointers (RFC 6901) to the numbers; default the payload is the number"`
}

// A file is the form of the whole document.
type file struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   metadata `yaml:"metadata"`
	Spec       spec     `yaml:"spec"`
}

type metadata struct {
	ID string `yaml:"id"`
}

type spec struct {
	Data   data    `yaml:"data"`
	Broker *broker `yaml:"broker,omitempty"`
	Exec   string  `yaml:"exec,omitempty"`

	Maintenance *Maintenance `yaml:"maintenance,omitempty"`
}

type broker struct {
	Devices []Device `yaml:"devices"`
}

// Content is what a file says.
type Content struct {
	Rules   []fleet.DataRule
	Devices []protocol.DeviceAccount // sorted by user name
	Exec    bool                     // programs may be run in containers of the site (colony exec)

	Maintenance *protocol.Maintenance // when what runs may be updated and removed; nil: at any time
}

type data struct {
	Rules []Rule `yaml:"rules"`
}

// Further is what a site's file says beside the rules of its data.
type Further struct {
	Devices []Device
	Exec    bool // see Content

	Maintenance *Maintenance // nil: none
}

// Further returns what a file says beside the rules.
func (c *Content) Further() Further {
	return Further{Devices(c.Devices), c.Exec, MaintenanceOf(c.Maintenance)}
}

// Marshal writes the file of a site with these rules, and what else it says. Parse says whether they
// are valid.
func Marshal(site protocol.SiteID, rules []Rule, further Further) ([]byte, error) {
	devices := further.Devices
	if rules == nil {
		rules = []Rule{} // shown as a list without rules, not as null
	}
	f := file{APIVersion: APIVersion, Kind: Kind, Metadata: metadata{ID: string(site)}, Spec: spec{Data: data{Rules: rules}}}
	if len(devices) > 0 {
		f.Spec.Broker = &broker{devices}
	}
	if further.Exec {
		f.Spec.Exec = execAllowed
	}
	f.Spec.Maintenance = further.Maintenance
	return encode(f)
}

func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write site file: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("write site file: %w", err)
	}
	return out.Bytes(), nil
}

// Parse reads the file of a site. The error is of type v1rc3.Problems, as for every
// other file of the deployments repo, and lists all that is wrong. What the file does not
// have is nil.
func Parse(site protocol.SiteID, raw []byte) (Content, error) {
	r := &reader{lines: map[string]int{}}
	root, err := r.document(raw)
	if err != nil {
		return Content{}, err
	}
	top := r.object(root, "", "apiVersion", "kind", "metadata", "spec")
	r.constant(top, "apiVersion", APIVersion, "this program reads that version")
	r.constant(top, "kind", Kind, "the file describes a site")
	meta := r.child(top, "metadata", "id")
	if r.required(top, "metadata") {
		r.constant(meta, "id", string(site), "the file is in the folder of that site")
	}
	spec := r.child(top, "spec", "data", "broker", "exec", "maintenance")
	var c Content
	c.Exec, c.Maintenance = r.exec(spec), r.maintenance(spec)
	for _, item := range r.list(r.child(spec, "data", "rules"), "rules") {
		c.Rules = append(c.Rules, r.rule(item))
	}
	for _, item := range r.list(r.child(spec, "broker", "devices"), "devices") {
		c.Devices = append(c.Devices, r.device(item))
	}
	if len(r.problems) == 0 {
		r.validate(c.Rules)
		r.validateDevices(c.Devices)
	}
	if len(r.problems) > 0 {
		return Content{}, r.sorted()
	}
	slices.SortFunc(c.Devices, func(a, b protocol.DeviceAccount) int { return strings.Compare(a.User, b.User) })
	return c, nil
}
