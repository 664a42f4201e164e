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

// identities goes backwards, for a container comes after those it depends on.
func identities(c protocol.Component) []protocol.Digest {
	out := make([]protocol.Digest, len(c.Containers))
	for i := len(c.Containers) - 1; i >= 0; i-- {
		id := identity{Component: c.Name, Container: c.Containers[i]}
		id.Container.Health, id.Container.Restart, id.Container.DependsOn = nil, protocol.Restart{}, nil
		// The host of a reference is a hint: the digest decides.
		if _, digest, ok := strings.Cut(id.Container.Image, "@"); ok {
			id.Container.Image = digest
		}
		for j := i + 1; j < len(c.Containers); j++ {
			waits := protocol.Dependency{Container: c.Containers[i].Name, Condition: protocol.ServiceCompleted}
			if slices.Contains(c.Containers[j].DependsOn, waits) {
				id.First = append(id.First, out[j])
			}
		}
		out[i] = protocol.DigestOf(protocol.Marshal(id))
	}
	return out
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
