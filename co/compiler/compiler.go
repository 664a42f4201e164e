package compiler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/compiler/addresses"
	"github.com/colonyfleet/colony/co/compiler/packagecheck"
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
	// Image returns the reference with the digest of the image: host/repo@sha256:….
	Image(ctx context.Context, ref string) (string, error)
	// Health returns the check that an image declares with HEALTHCHECK, nil where it has
	// none. The reference is one that Image returned.
	Health(ctx context.Context, ref string) (*protocol.Health, error)
}

// Compile returns the spec of a deployment and the entry for its site's desired
// state, with the encoded spec inside and without a signature. An error of kind
// protocol.Invalid lists everything that is wrong with one component, one line
// each; other kinds come from the Resolver and may pass.
func Compile(ctx context.Context, d *v1rc3.Deployment, r Resolver) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
	entry, err := placement(d)
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
	images := &imageCache{resolver: r, known: map[string]string{}}
	for _, component := range d.Spec.Profile.Components {
		c, err := compileComponent(ctx, d, component, r)
		if err != nil {
			return protocol.SiteEntry{}, nil, err
		}
		if err := images.pin(ctx, c); err != nil {
			return protocol.SiteEntry{}, nil, fmt.Errorf("component %s: %w", component.Name, err)
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
			"the compiled deployment has %d bytes, the limit is %d: move large configs into an image", len(entry.Spec), MaxSpec)
	}
	entry.Size, entry.Digest = uint64(len(entry.Spec)), protocol.DigestOf(entry.Spec)
	return entry, spec, nil
}

// placement fills what a site's entry says beside the spec.
func placement(d *v1rc3.Deployment) (protocol.SiteEntry, error) {
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
		entry.Policy = protocol.Policy{Attempts: p.Attempts, BackoffMillis: backoff, NoRollback: p.Rollback != nil && !*p.Rollback, MinHealthyMillis: minHealthy}
	}
	return entry, nil
}

// compileComponent fetches and translates one component; images are not pinned yet.
func compileComponent(ctx context.Context, d *v1rc3.Deployment, c v1rc3.Component, r Resolver) (*protocol.Component, error) {
	variables, err := variablesOf(d, c.Name)
	if err != nil {
		return nil, err
	}
	tgz, digest, err := r.Archive(ctx, c.Properties.Repository, c.Properties.Revision)
	if err != nil {
		return nil, fmt.Errorf("fetch component %s: %w", c.Name, err)
	}
	if err := digest.Verify(tgz); err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "component %s: archive %s:%s: %w", c.Name, c.Properties.Repository, c.Properties.Revision, err)
	}
	a, err := readArchive(c.Name, tgz)
	if err != nil {
		return nil, err
	}
	containers, err := translate(ctx, c.Name, a, variables)
	if err != nil {
		return nil, err
	}
	return &protocol.Component{
		Name: c.Name, Revision: c.Properties.Revision, NoWait: !c.Properties.Waits(),
		TimeoutMillis: uint64(c.Properties.TimeoutDuration().Milliseconds()), Containers: containers,
	}, nil
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

// An imageCache resolves each reference once, so that two containers with one
// tag never run two images.
type imageCache struct {
	resolver Resolver
	known    map[string]string
}

var pinned = regexp.MustCompile(`^[^@\s]+@sha256:[0-9a-f]{64}$`)

func (i *imageCache) pin(ctx context.Context, c *protocol.Component) error {
	for n := range c.Containers {
		ref := c.Containers[n].Image
		if i.known[ref] == "" {
			got, err := i.resolver.Image(ctx, ref)
			if err != nil {
				return fmt.Errorf("resolve image %s: %w", ref, err)
			}
			if !pinned.MatchString(got) {
				return protocol.Errorf(protocol.Internal, "image %s was resolved to %q, which is not pinned by digest", ref, got)
			}
			i.known[ref] = got
		}
		c.Containers[n].Image = i.known[ref]
		if h := c.Containers[n].Health; h != nil && ofImage(h) {
			if err := i.complete(ctx, &c.Containers[n]); err != nil {
				return fmt.Errorf("services.%s.healthcheck: %w", c.Containers[n].Name, err)
			}
		}
	}
	return nil
}

// complete fills in the health check of a container whose image has it.
func (i *imageCache) complete(ctx context.Context, c *protocol.Container) error {
	h, err := i.resolver.Health(ctx, c.Image)
	if err != nil {
		return fmt.Errorf("read the check of image %s: %w", c.Image, err)
	}
	if h == nil {
		return protocol.Errorf(protocol.Invalid, "its image %s has none: give it a healthcheck, or %s", c.Image, healthKey)
	}
	merge(h, c.Health)
	c.Health = h
	return nil
}

// CheckShared finds what two components of a deployment claim both: the names on
// the deployment's network, and the ports of the node. It also bounds their size. Errors
// are of kind protocol.Invalid.
func CheckShared(components []protocol.Component) error {
	if n := len(protocol.Marshal(components)); n > MaxSpec {
		return protocol.Errorf(protocol.Invalid, "the compiled deployment has more than %d bytes, the limit is %d: move large configs into an image", n, MaxSpec)
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
