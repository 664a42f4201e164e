package plan

import (
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// StopOrder returns the given containers of a deployment in the order in which they are stopped. The
// containers of a group are stopped together, and each after all that need it, because they started
// after it or share its network. Containers that spec does not have come first; spec may be nil.
func StopOrder(spec *protocol.DeploymentSpec, list []engine.Status) (groups [][]engine.Status) {
	after := map[[2]string]int{} // how many groups must be stopped before
	if spec != nil {
		for _, c := range spec.Components {
			for range c.Containers { // as many times as the longest chain can be, at most
				if !deepen(after, c) {
					break
				}
			}
		}
	}
	for _, s := range list {
		n := after[[2]string{s.ID.Component, s.ID.Name}]
		for len(groups) <= n {
			groups = append(groups, nil)
		}
		groups[n] = append(groups[n], s)
	}
	return slices.DeleteFunc(groups, func(g []engine.Status) bool { return len(g) == 0 })
}

// deepen puts what a container of a component needs after it, and reports whether that changed anything.
func deepen(after map[[2]string]int, c protocol.Component) (changed bool) {
	for _, k := range c.Containers {
		least := after[[2]string{c.Name, k.Name}] + 1
		needs := []string{k.NetworkOf}
		for _, d := range k.DependsOn {
			needs = append(needs, d.Container)
		}
		for _, name := range needs {
			if on := [2]string{c.Name, name}; name != "" && after[on] < least {
				after[on], changed = least, true
			}
		}
	}
	return changed
}

// StopTimeout is how long a container may take to stop; nil: one of which nothing is known.
func StopTimeout(c *protocol.Container) time.Duration {
	const usual, longest = 10 * time.Second, 24 * time.Hour
	if c == nil {
		return usual
	}
	return min(orDefault(c.StopTimeoutMillis, usual), longest)
}

// Ports lists what the containers of a version publish.
func Ports(spec *protocol.DeploymentSpec) (ports []protocol.Port) {
	for _, c := range spec.Components {
		for _, k := range c.Containers {
			ports = append(ports, k.Ports...)
		}
	}
	return ports
}
