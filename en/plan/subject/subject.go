// Package subject finds the containers that a command is about: those of the version of a deployment that is to run on the node. It is pure.
package subject

import (
	"fmt"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Container is one that a command is about.
type Container struct {
	ID     engine.ID
	Digest protocol.Digest // of its identity
	Spec   protocol.Container
	// Status is what the engine says of it. Its State is empty where there is none.
	Status engine.Status
}

// Name is how people call it.
func (c *Container) Name() string { return c.ID.Component + "/" + c.ID.Name }

// Record returns the record of the deployment that a command is about. The error says what the node has.
func Record(records []plan.Record, s command.Subject) (plan.Record, error) {
	var have []string
	for _, r := range records {
		if r.State == lifecycle.Deleted {
			continue
		}
		if r.Deployment == s.Deployment {
			return r, nil
		}
		have = append(have, string(r.Deployment))
	}
	if len(have) == 0 {
		return plan.Record{}, fmt.Errorf("the node has no deployment %s, nor any other", s.Deployment)
	}
	return plan.Record{}, fmt.Errorf("the node has no deployment %s: it has %s", s.Deployment, strings.Join(have, ", "))
}

// Find returns the containers of a deployment that a command is about, in the order of its specification. list is what the engine lists. The
// error says what there is.
func Find(rec plan.Record, list []engine.Status, s command.Subject) ([]Container, error) {
	encoded := rec.Spec
	if rec.Active != "" && len(rec.ActiveSpec) > 0 {
		encoded = rec.ActiveSpec
	}
	spec, err := plan.Decode(encoded)
	if err != nil {
		return nil, fmt.Errorf("the node has no version of deployment %s", s.Deployment)
	}
	digests := plan.Identities(spec)
	var found []Container
	var have []string
	for p, c := range spec.Components {
		for n, k := range c.Containers {
			one := Container{ID: engine.ID{Deployment: spec.Deployment, Component: c.Name, Name: k.Name}, Digest: digests[p][n], Spec: k}
			have = append(have, one.Name())
			if !s.Has(c.Name, k.Name) {
				continue
			}
			if i := slices.IndexFunc(list, func(st engine.Status) bool { return st.ID == one.ID }); i >= 0 {
				one.Status = list[i]
			}
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("deployment %s has no such container: it has %s", s.Deployment, strings.Join(have, ", "))
	}
	return found, nil
}
