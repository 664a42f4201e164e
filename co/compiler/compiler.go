package compiler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/compiler/addresses"
	"github.com/colonyfleet/colony/co/compiler/fault"
	"github.com/colonyfleet/colony/co/compiler/packagecheck"
	"github.com/colonyfleet/colony/co/compiler/pinning"
	"github.com/colonyfleet/colony/co/compiler/topology"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// MaxSpec is the largest encoded DeploymentSpec, in bytes. A site's desired state
// carries the specs of all its deployments in one message.
const MaxSpec = 512 << 10

// maxConstraints bounds the encoded device constraints of a deployment, in bytes: they are in the
// statement that each node of its site gets, which is bounded as well (sign.MaxStatement).
const maxConstraints = 16 << 10

// A Resolver fetches what a deployment names. Its errors should carry a
// protocol.Kind, which Compile keeps.
type Resolver interface {
	// Archive returns the Compose archive of a component, a .tar.gz, and its
	// digest. repository is oci://host/path.
	Archive(ctx context.Context, repository, revision string) ([]byte, protocol.Digest, error)
	pinning.Resolver
}

// Compile returns the spec of a deployment and the entry for its site's desired
// state, with the encoded spec inside and without a signature. An error of kind
// protocol.Invalid lists everything that is wrong with one component, one line
// each; other kinds come from the Resolver and may pass.
func Compile(ctx context.Context, d *v1rc3.Deployment, r Resolver) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
	entry, err := Entry(d)
	if err != nil {
		return protocol.SiteEntry{}, nil, err
	}
	spec := &protocol.DeploymentSpec{
		V: protocol.Version, ID: d.ID, Deployment: entry.Deployment, App: d.Spec.ApplicationID,
		// A deployment that another tool wrote does not say the version of the
		// application. That of its first component is the next best thing.
		AppVersion: d.Spec.Profile.Components[0].Properties.Revision,
	}
	if c := d.Spec.Colony; c != nil {
		spec.Profile = c.Profile
		if c.ApplicationVersion != "" {
			spec.AppVersion = c.ApplicationVersion
		}
	}
	images := &pinning.Pins{Resolver: r, HealthKey: healthKey}
	for _, component := range d.Spec.Profile.Components {
		c, err := compileComponent(ctx, d, component, r, images)
		if err != nil {
			return protocol.SiteEntry{}, nil, err
		}
		spec.Components = append(spec.Components, *c)
	}
	if err := CheckShared(spec.Components); err != nil {
		return protocol.SiteEntry{}, nil, err
	}
	addresses.Share(spec.Components)
	entry.Spec = protocol.Marshal(spec)
	if len(entry.Spec) > MaxSpec {
		return protocol.SiteEntry{}, nil, protocol.Errorf(protocol.Invalid,
			"the compiled deployment has %d bytes, the limit is %d%s", len(entry.Spec), MaxSpec, largest(spec.Components))
	}
	entry.Size, entry.Digest = uint64(len(entry.Spec)), protocol.DigestOf(entry.Spec)
	return entry, spec, nil
}

// Entry returns what the entry of a site says beside the specification: on which nodes a deployment runs, and what follows on a failure.
func Entry(d *v1rc3.Deployment) (protocol.SiteEntry, error) {
	var entry protocol.SiteEntry
	var err error
	if entry.Deployment, err = protocol.ParseDeploymentName(d.Metadata.Name); err != nil {
		return entry, fmt.Errorf("metadata.name: %w", err)
	}
	if t := d.Spec.Profile.Type; t != v1rc3.Compose {
		why := map[v1rc3.ProfileType]string{
			v1rc3.Helm: "helm profiles need a Kubernetes node; Colony nodes run compose",
		}[t]
		if why == "" {
			why = fmt.Sprintf("%s profiles need a runtime of their own; Colony nodes run compose", t)
		}
		return entry, protocol.Errorf(protocol.Invalid, "%s: choose a profile of type compose", why)
	}
	if len(d.Spec.Profile.Components) == 0 {
		return entry, protocol.Errorf(protocol.Invalid, "the deployment has no components")
	}
	site, node, ok := d.Device()
	if !ok {
		return entry, protocol.Errorf(protocol.Invalid, "metadata.deviceId %q: want <site>/<node> or <site>/*", d.Metadata.DeviceID)
	}
	if _, err := protocol.ParseSiteID(site); err != nil {
		return entry, fmt.Errorf("metadata.deviceId: %w", err)
	}
	if node != "" {
		if entry.Placement.Node, err = protocol.ParseNodeID(node); err != nil {
			return entry, fmt.Errorf("metadata.deviceId: %w", err)
		}
	}
	if c := d.Spec.Profile.Constraints; c != nil {
		if entry.Placement.Constraints, err = json.Marshal(c); err != nil {
			return entry, fmt.Errorf("encode constraints: %w", err)
		}
		if n := len(entry.Placement.Constraints); n > maxConstraints {
			return entry, protocol.Errorf(protocol.Invalid, "the device constraints take %d bytes, the limit is %d: name fewer, or choose the nodes by their labels", n, maxConstraints)
		}
	}
	c := d.Spec.Colony
	if c == nil {
		return entry, nil
	}
	entry.Placement.Selector, entry.Placement.Replicas = maps.Clone(c.Selector), c.Replicas
	entry.Rollback, entry.Retry = fleet.RolledBack(d), c.Retry
	if p := c.Policy; p != nil {
		backoff, fits := p.Backoff.Millis()
		minHealthy, fit := p.MinHealthy.Millis()
		if !fits || !fit {
			return entry, protocol.Errorf(protocol.Invalid, "policy: backoff %s, minHealthy %s: want less than 49 days", time.Duration(p.Backoff), time.Duration(p.MinHealthy))
		}
		entry.Policy = protocol.Policy{Attempts: p.Attempts, BackoffMillis: backoff, NoRollback: p.Rollback != nil && !*p.Rollback, MinHealthyMillis: minHealthy, AnyTime: p.AnyTime != nil && *p.AnyTime}
	}
	return entry, nil
}

// compileComponent fetches and translates one component, and pins its images. Errors are faults.
func compileComponent(ctx context.Context, d *v1rc3.Deployment, c v1rc3.Component, r Resolver, images *pinning.Pins) (*protocol.Component, error) {
	failed := func(err error, variables ...string) (*protocol.Component, error) {
		return nil, &fault.Fault{Component: c.Name, Variables: variables, Err: err}
	}
	variables, err := variablesOf(d, c.Name)
	if err != nil {
		return failed(err)
	}
	tgz, digest, err := r.Archive(ctx, c.Properties.Repository, c.Properties.Revision)
	if err != nil {
		return failed(fmt.Errorf("fetch component %s: %w", c.Name, err))
	}
	if err := digest.Verify(tgz); err != nil {
		return failed(protocol.Errorf(protocol.Invalid, "component %s: archive %s:%s: %w", c.Name, c.Properties.Repository, c.Properties.Revision, err))
	}
	a, err := readArchive(c.Name, tgz)
	if err != nil {
		return failed(err)
	}
	t := newTranslation(c.Name, a, variables)
	containers, err := t.containers(ctx)
	if err != nil {
		return failed(err, t.variablesAt(slices.Sorted(maps.Values(t.paths))...)...)
	}
	compiled := &protocol.Component{
		Name: c.Name, Revision: c.Properties.Revision, NoWait: !c.Properties.Waits(),
		TimeoutMillis: uint64(c.Properties.TimeoutDuration().Milliseconds()), Containers: containers,
	}
	var missing []string // the paths of images that no registry has
	err = images.Pin(ctx, compiled, func(image string) string {
		path, line := t.imagePlace(image)
		missing = append(missing, path)
		return line + path
	})
	if err != nil {
		return failed(fmt.Errorf("component %s: %w", c.Name, err), t.variablesAt(missing...)...)
	}
	return compiled, nil
}

// imagePlace returns where the file has an image first, with "line N: ".
func (t *translation) imagePlace(image string) (path, line string) {
	for _, name := range slices.Sorted(maps.Keys(t.project.Services)) {
		if t.project.Services[name].Image == image {
			return t.located("services."+name+".image", "")
		}
	}
	return "services", ""
}

// variablesAt returns the variables of the texts at places of the document, and below them.
func (t *translation) variablesAt(paths ...string) (all []string) {
	for place, names := range t.uses {
		for _, at := range paths {
			if at != "" && (place == at || strings.HasPrefix(place, at+".") || strings.HasPrefix(place, at+"[")) {
				all = append(all, names...)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// variablesOf returns the environment variables that the parameters of a
// deployment set for a component.
func variablesOf(d *v1rc3.Deployment, component string) (map[string]string, error) {
	variables, setBy := map[string]string{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(d.Spec.Parameters)) {
		p := d.Spec.Parameters[name]
		for _, t := range p.Targets {
			if !slices.Contains(t.Components, component) {
				continue
			}
			if !packagecheck.IsVariable(t.Pointer) {
				return nil, protocol.Errorf(protocol.Invalid, "parameter %s: pointer %q: %s", name, t.Pointer, packagecheck.WantVariable)
			}
			if other, dup := setBy[t.Pointer]; dup && other != name {
				return nil, protocol.Errorf(protocol.Invalid, "parameters %s and %s both set %s of component %s", other, name, t.Pointer, component)
			}
			value := v1rc3.Text(p.Value)
			if strings.ContainsRune(value, 0) {
				return nil, protocol.Errorf(protocol.Invalid, "parameter %s: the value holds a zero byte", name)
			}
			variables[t.Pointer], setBy[t.Pointer] = value, name
		}
	}
	return variables, nil
}

// largest names the largest file that a deployment carries, and where it belongs instead.
func largest(components []protocol.Component) string {
	name, size := "", 0
	for _, c := range components {
		for _, container := range c.Containers {
			for _, m := range container.Mounts {
				at := func(target string, n int) {
					if n > size {
						name, size = fmt.Sprintf("%s of service %s of component %s", target, container.Name, c.Name), n
					}
				}
				at(m.Target, len(m.Content))
				for _, f := range m.Files {
					at(path.Join(m.Target, f.Path), len(f.Content))
				}
			}
		}
	}
	if name == "" {
		return ": move what is large into images"
	}
	return fmt.Sprintf("; the largest file is that at %s with %d bytes: put it into an image, or into a directory of the node that an absolute path names", name, size)
}

// CheckShared finds what two components of a deployment claim both: the names on
// the deployment's network, and the ports of the node. It also bounds their size. Errors
// are of kind protocol.Invalid.
func CheckShared(components []protocol.Component) error {
	if n := len(protocol.Marshal(components)); n > MaxSpec {
		return protocol.Errorf(protocol.Invalid, "the compiled deployment has more than %d bytes, the limit is %d%s", n, MaxSpec, largest(components))
	}
	if err := addresses.Check(components); err != nil {
		return err
	}
	type holder struct {
		component string
		protocol.Container
	}
	names, ports := map[string]holder{}, []protocol.Port(nil)
	for _, c := range components {
		for _, container := range c.Containers {
			owner := fmt.Sprintf("service %s of component %s", container.Name, c.Name)
			for _, name := range append([]string{container.Name}, container.Aliases...) {
				other, taken := names[name]
				if taken && (other.component != c.Name || !topology.MayShare(name, other.Container, container)) {
					return protocol.Errorf(protocol.Invalid, "service %s of component %s and %s share the name %s on the network of the deployment: rename one", other.Name, other.component, owner, name)
				}
				if !taken {
					names[name] = holder{c.Name, container}
				}
			}
			for _, p := range container.Ports {
				if p.Host == 0 {
					continue // each gets a free one
				}
				if slices.ContainsFunc(ports, p.Meets) {
					return protocol.Errorf(protocol.Invalid, "%s: port %d of the node is published twice in this deployment", owner, p.Host)
				}
				ports = append(ports, p)
			}
		}
	}
	return nil
}
