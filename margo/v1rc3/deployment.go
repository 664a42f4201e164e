package v1rc3

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// ExtensionKey is the key of Colony's extension block in a deployment's spec.
const ExtensionKey = "x-colony-extensions"

// A Deployment is an ApplicationDeployment: one application, with its
// parameters, for one device. To Margo an LO is a gateway and its nodes are the
// children, so that a deviceId is <site>/<node>, or <site>/* where the LO chooses.
type Deployment struct {
	ID       string             `json:"id" yaml:"id"` // a UUID; it stays when the content changes
	Metadata DeploymentMetadata `json:"metadata" yaml:"metadata"`
	Spec     DeploymentSpec     `json:"spec" yaml:"spec"`
}

// DeploymentMetadata names a deployment and its device.
type DeploymentMetadata struct {
	Name      string            `json:"name" yaml:"name"`
	Namespace string            `json:"namespace" yaml:"namespace"`
	DeviceID  string            `json:"deviceId" yaml:"deviceId"`
	Labels    map[string]string `json:"labels,omitempty" yaml:"labels,omitempty"`
}

// A DeploymentSpec says what to run.
type DeploymentSpec struct {
	ApplicationID string               `json:"applicationId" yaml:"applicationId"`
	Profile       DeploymentProfile    `json:"deploymentProfile" yaml:"deploymentProfile"`
	Parameters    map[string]Parameter `json:"parameters,omitempty" yaml:"parameters,omitempty"`

	// Colony is the x-colony-extensions block, or nil.
	Colony *Extensions `json:"x-colony-extensions,omitempty" yaml:"x-colony-extensions,omitempty"`
	// Extensions are the other x-…-extensions blocks by key.
	Extensions map[string]any `json:"extensions,omitempty" yaml:",inline"`
}

// A DeploymentProfile is the chosen profile, without its id and description.
type DeploymentProfile struct {
	Type        ProfileType    `json:"type" yaml:"type"`
	Components  []Component    `json:"components" yaml:"components"`
	Constraints *Constraints   `json:"deviceConstraints,omitempty" yaml:"deviceConstraints,omitempty"`
	Extensions  map[string]any `json:"extensions,omitempty" yaml:",inline"`
}

// Extensions are what Margo has no word for and Colony needs. Zero values mean
// the defaults.
type Extensions struct {
	ApplicationVersion string            `json:"applicationVersion,omitempty" yaml:"applicationVersion,omitempty"`
	Profile            string            `json:"profile,omitempty" yaml:"profile,omitempty"`   // id of the profile
	Selector           map[string]string `json:"selector,omitempty" yaml:"selector,omitempty"` // labels that a node must have
	Replicas           uint32            `json:"replicas,omitempty" yaml:"replicas,omitempty"` // 0: every node that matches
	Policy             *Policy           `json:"policy,omitempty" yaml:"policy,omitempty"`
	Rollback           string            `json:"rollback,omitempty" yaml:"rollback,omitempty"` // digest of the content that a person returned to; empty: none
	Retry              uint32            `json:"retry,omitempty" yaml:"retry,omitempty"`       // grows each time that a person asks to try a refused version again
}

// A Policy says what is done about a failure.
type Policy struct {
	Attempts uint32   `json:"attempts,omitempty" yaml:"attempts,omitempty"` // 0: the default, 3
	Backoff  Duration `json:"backoff,omitempty" yaml:"backoff,omitempty"`   // 0: the default, 10s
	Rollback *bool    `json:"rollback,omitempty" yaml:"rollback,omitempty"` // nil: true
	// MinHealthy is how long a version must be up on a node before no later failure ends it.
	// 0: the node's own.
	MinHealthy Duration `json:"minHealthy,omitempty" yaml:"minHealthy,omitempty"`
	// AnyTime has updates carried out outside of the site's maintenance windows, too. Nil: false.
	AnyTime *bool `json:"anyTime,omitempty" yaml:"anyTime,omitempty"`
}

// A Duration is a time.Duration that is written as text, such as "1m30s".
type Duration time.Duration

// Millis returns the duration in milliseconds, and 1 for one that is shorter: 0 stands for
// a default. ok is false where it is negative, or 32 bits do not hold it.
func (d Duration) Millis() (ms uint32, ok bool) {
	n := time.Duration(d).Milliseconds()
	if n == 0 && d > 0 {
		n = 1
	}
	return uint32(n), n >= 0 && n <= math.MaxUint32
}

// MarshalText writes the duration as text.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads a duration of zero or more.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil || v < 0 {
		return fmt.Errorf("duration %q: want a form such as 30s or 1m30s", b)
	}
	*d = Duration(v)
	return nil
}

// Device splits the deviceId: the gateway, which is a site of Colony, and the
// child below it. The child is empty where the gateway chooses ("site/*"). ok is
// false for a deviceId of another form.
func (d *Deployment) Device() (site, node string, ok bool) {
	site, node, ok = strings.Cut(d.Metadata.DeviceID, "/")
	if !ok || strings.Contains(node, "/") {
		return "", "", false
	}
	if node == "*" {
		node = ""
	}
	return site, node, true
}

// Marshal returns the deployment as YAML: equal deployments give equal bytes.
func (d *Deployment) Marshal() ([]byte, error) {
	b, err := yaml.Dump(d, yaml.WithV4Defaults(), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("encode deployment %s: %w", d.ID, err)
	}
	return bytes.TrimLeft(b, "\n"), nil
}
