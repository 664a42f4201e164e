package v1rc3

import (
	"strings"

	"github.com/colonyfleet/colony/margo/document"
)

// ParseDeployment reads an ApplicationDeployment. An error is a Problems with
// everything that is wrong with it.
func ParseDeployment(doc []byte) (*Deployment, error) {
	top, d, err := document.Read(doc, isOpen)
	if err != nil {
		return nil, err
	}
	o := top.Object("id", "metadata", "spec")
	m := o.Need("metadata").Object("name", "namespace", "deviceId", "labels", "annotations")
	s := o.Need("spec").Object("applicationId", "deploymentProfile", "parameters", document.AnyExtension)
	dep := &Deployment{
		ID: strings.ToLower(o.Need("id").Match(anyUUID, wantUUID)),
		Metadata: DeploymentMetadata{
			Name:      m.Need("name").Name(),
			Namespace: m.Need("namespace").Name(),
			DeviceID:  m.Need("deviceId").Match(deviceID, wantDeviceID),
			Labels:    m.Mapping("labels").StringMap(),
		},
		Spec: DeploymentSpec{
			ApplicationID: s.Need("applicationId").Match(appID, "1 to 200 of a-z, 0-9 and -"),
			Profile:       readDeploymentProfile(s.Need("deploymentProfile")),
			Parameters:    readParameters(s.Mapping("parameters"), true),
			Colony:        readExtensions(s.Get(ExtensionKey)),
			Extensions:    s.Extensions(ExtensionKey),
		},
	}
	dep.checkTargets(s.Mapping("parameters").Object())
	if err := d.Err(); err != nil {
		return nil, err
	}
	return dep, nil
}

func readDeploymentProfile(v value) DeploymentProfile {
	o := v.Object("type", "components", "deviceConstraints", document.AnyExtension)
	return DeploymentProfile{
		Type:        ProfileType(o.Need("type").OneOf(rc3.profileTypes...)),
		Components:  readComponents(o.Need("components")),
		Constraints: readConstraints(o.Mapping("deviceConstraints")),
		Extensions:  o.Extensions(),
	}
}

// checkTargets checks that the parameters go to components of the profile.
func (d *Deployment) checkTargets(parameters object) {
	components := map[string]bool{}
	for _, c := range d.Spec.Profile.Components {
		components[c.Name] = true
	}
	for _, name := range parameters.Keys {
		for _, target := range parameters.Fields[name].Object().Get("targets").List() {
			for _, c := range target.Object().Get("components").List() {
				if n := c.Text(); n != "" && !components[n] {
					c.Report("the profile has no component %q", n)
				}
			}
		}
	}
}

// readExtensions reads Colony's own block. Its keys are ours, so that an unknown
// one is a mistake.
func readExtensions(v value) *Extensions {
	if v.Absent() {
		return nil
	}
	o := v.Object("applicationVersion", "profile", "selector", "replicas", "policy", "rollback", "retry")
	rollback := "" // true or false, as files of before have it, names no content and counts as none
	if v := o.Get("rollback"); v.Exists() && v.Source() != "true" && v.Source() != "false" {
		rollback = v.Source()
	}
	e := &Extensions{
		ApplicationVersion: o.Get("applicationVersion").Text(),
		Profile:            o.Get("profile").Text(),
		Selector:           o.Mapping("selector").StringMap(),
		Replicas:           o.Get("replicas").Uint32(),
		Rollback:           rollback,
		Retry:              o.Get("retry").Uint32(),
	}
	if p := o.Mapping("policy"); !p.Absent() {
		f := p.Object("attempts", "backoff", "rollback", "minHealthy", "anyTime")
		e.Policy = &Policy{Attempts: f.Get("attempts").Uint32(), Rollback: f.Get("rollback").Bool(), AnyTime: f.Get("anyTime").Bool()}
		for _, span := range []struct {
			key  string
			into *Duration
		}{{"backoff", &e.Policy.Backoff}, {"minHealthy", &e.Policy.MinHealthy}} {
			if v := f.Get(span.key); v.Exists() {
				if err := span.into.UnmarshalText([]byte(v.Text())); err != nil && v.Exists() {
					v.Report("%v", err)
				}
			}
		}
	}
	return e
}
