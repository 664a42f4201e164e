package plan

import (
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// An identity is what makes a container the one that a version wants. Its encoding
// is hashed: a field that is added must be left out while it is empty, or every
// container of a fleet is replaced by an upgrade of the agent.
type identity struct {
	Component string             `cbor:"1,keyasint"`
	Container protocol.Container `cbor:"2,keyasint"`
	// First are the identities of the containers that wait for this one to
	// complete: a job is done again before each of them that is replaced.
	First []protocol.Digest `cbor:"3,keyasint,omitempty"`
	// After are the replaced containers that require this one to be replaced too: the one whose
	// network it shares, and those of its dependencies that ask for it.
	After []protocol.Digest `cbor:"4,keyasint,omitempty"`
}

// Identities returns the identity of each container of a version, by component and
// in the order of the spec. Two versions of a deployment share a container where
// its identity is the same: an update leaves it alone. What only the agent acts
// upon is no part of it: health probes, restart policy, order of start.
func Identities(spec *protocol.DeploymentSpec) [][]protocol.Digest {
	out := make([][]protocol.Digest, len(spec.Components))
	for i, c := range spec.Components {
		out[i] = identities(c)
	}
	return out
}

// identities goes forwards for what follows from the dependencies of a container, which
// come before it, and then backwards for the containers that wait for it.
func identities(c protocol.Component) []protocol.Digest {
	own := make([]identity, len(c.Containers))
	before := map[string]protocol.Digest{} // by name, the identity without those that wait
	for i, k := range c.Containers {
		own[i] = identity{Component: c.Name, Container: stripped(k)}
		if d, ok := before[k.NetworkOf]; ok {
			own[i].After = append(own[i].After, d)
		}
		for _, d := range k.DependsOn {
			if on, ok := before[d.Container]; ok && d.Restart {
				own[i].After = append(own[i].After, on)
			}
		}
		before[k.Name] = protocol.DigestOf(protocol.Marshal(own[i]))
	}
	out := make([]protocol.Digest, len(c.Containers))
	for i := len(c.Containers) - 1; i >= 0; i-- {
		for j := i + 1; j < len(c.Containers); j++ {
			if waitsForEnd(c.Containers[j], c.Containers[i].Name) {
				own[i].First = append(own[i].First, out[j])
			}
		}
		out[i] = protocol.DigestOf(protocol.Marshal(own[i]))
	}
	return out
}

// stripped returns a container without what only the agent acts upon.
func stripped(k protocol.Container) protocol.Container {
	k.Health, k.Restart, k.DependsOn = nil, protocol.Restart{}, nil
	// Whom a volume belongs to is said when it is made: a container that is there has it.
	owned := func(m protocol.Mount) bool { return m.Kind == protocol.MountVolume && (m.UID != 0 || m.GID != 0) }
	if slices.ContainsFunc(k.Mounts, owned) {
		k.Mounts = slices.Clone(k.Mounts)
		for i, m := range k.Mounts {
			if owned(m) {
				k.Mounts[i].UID, k.Mounts[i].GID = 0, 0
			}
		}
	}
	// The host of a reference is a hint: the digest decides.
	if _, digest, ok := strings.Cut(k.Image, "@"); ok {
		k.Image = digest
	}
	return k
}

// waitsForEnd reports whether a container starts only after another one is complete.
func waitsForEnd(k protocol.Container, other string) bool {
	return slices.ContainsFunc(k.DependsOn, func(d protocol.Dependency) bool {
		return d.Container == other && d.Condition == protocol.ServiceCompleted
	})
}

// identitiesOf lists the identities of an encoded spec; none of one that cannot be
// read.
func identitiesOf(spec []byte) []protocol.Digest {
	s, err := Decode(spec)
	if err != nil {
		return nil
	}
	return slices.Concat(Identities(s)...)
}

// Only returns the part of a version whose containers have one of the identities.
func Only(spec *protocol.DeploymentSpec, keep []protocol.Digest) *protocol.DeploymentSpec {
	part := *spec
	part.Components = nil
	for i, ids := range Identities(spec) {
		c := spec.Components[i]
		c.Containers = nil
		for j, id := range ids {
			if slices.Contains(keep, id) {
				c.Containers = append(c.Containers, spec.Components[i].Containers[j])
			}
		}
		if len(c.Containers) > 0 {
			part.Components = append(part.Components, c)
		}
	}
	return &part
}
