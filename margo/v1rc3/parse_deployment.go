package v1rc3

import (
	"math"
	"strings"
)

// ParseDeployment reads an ApplicationDeployment. An error is a Problems with
// everything that is wrong with it.
func ParseDeployment(doc []byte) (*Deployment, error) {
	top, d, err := read(doc)
	if err != nil {
		return nil, err
	}
	o := top.object("id", "metadata", "spec")
	m := o.need("metadata").object("name", "namespace", "deviceId", "labels", "annotations")
	s := o.need("spec").object("applicationId", "deploymentProfile", "parameters", anyExtension)
	dep := &Deployment{
		ID: strings.ToLower(o.need("id").match(anyUUID, wantUUID)),
		Metadata: DeploymentMetadata{
			Name:      m.need("name").name(),
			Namespace: m.need("namespace").name(),
			DeviceID:  m.need("deviceId").match(deviceID, wantDeviceID),
			Labels:    m.get("labels").stringMap(),
		},
		Spec: DeploymentSpec{
			ApplicationID: s.need("applicationId").match(appID, "1 to 200 of a-z, 0-9 and -"),
			Profile:       readDeploymentProfile(s.need("deploymentProfile")),
			Parameters:    readParameters(s.get("parameters"), true),
			Colony:        readExtensions(s.get(ExtensionKey)),
			Extensions:    s.extensions(ExtensionKey),
		},
	}
	dep.checkTargets(s.get("parameters").object())
	if err := d.problems.err(); err != nil {
		return nil, err
	}
	return dep, nil
}

func readDeploymentProfile(v value) DeploymentProfile {
	o := v.object("type", "components", "deviceConstraints", anyExtension)
	return DeploymentProfile{
		Type:        ProfileType(o.need("type").oneOf(string(Helm), string(Compose), string(Custom))),
		Components:  readComponents(o.need("components")),
		Constraints: readConstraints(o.get("deviceConstraints")),
		Extensions:  o.extensions(),
	}
}

// checkTargets checks that the parameters go to components of the profile.
func (d *Deployment) checkTargets(parameters object) {
	components := map[string]bool{}
	for _, c := range d.Spec.Profile.Components {
		components[c.Name] = true
	}
	for _, name := range parameters.keys {
		for _, target := range parameters.fields[name].object().get("targets").list() {
			for _, c := range target.object().get("components").list() {
				if n := c.text(); n != "" && !components[n] {
					c.report("the profile has no component %q", n)
				}
			}
		}
	}
}

// readExtensions reads Colony's own block. Its keys are ours, so that an unknown
// one is a mistake.
func readExtensions(v value) *Extensions {
	if v.node == nil {
		return nil
	}
	o := v.object("applicationVersion", "profile", "selector", "replicas", "policy", "rollback", "retry")
	rollback := "" // true or false, as files of before have it, names no content and counts as none
	if v := o.get("rollback"); v.exists() && v.node.ShortTag() == "!!str" {
		rollback = v.node.Value
	}
	e := &Extensions{
		ApplicationVersion: o.get("applicationVersion").text(),
		Profile:            o.get("profile").text(),
		Selector:           o.get("selector").stringMap(),
		Replicas:           o.get("replicas").uint32(),
		Rollback:           rollback,
		Retry:              o.get("retry").uint32(),
	}
	if p := o.get("policy"); p.node != nil {
		f := p.object("attempts", "backoff", "rollback")
		e.Policy = &Policy{Attempts: f.get("attempts").uint32(), Rollback: f.get("rollback").boolean()}
		if b := f.get("backoff"); b.exists() {
			if err := e.Policy.Backoff.UnmarshalText([]byte(b.text())); err != nil && b.exists() {
				b.report("%v", err)
			}
		}
	}
	return e
}

func (v value) uint32() uint32 {
	n := v.count()
	if n == nil {
		return 0
	}
	if *n > math.MaxUint32 {
		v.report("%d is too large", *n)
		return 0
	}
	return uint32(*n)
}

// stringMap reads a mapping of texts.
func (v value) stringMap() map[string]string {
	o := v.object()
	if len(o.keys) == 0 {
		return nil
	}
	m := make(map[string]string, len(o.keys))
	for _, key := range o.keys {
		m[key] = o.fields[key].text()
	}
	return m
}
