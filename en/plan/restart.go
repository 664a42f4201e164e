package plan

import (
	"fmt"
	"slices"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// Restartable returns why containers of a deployment are not restarted on request; nil: they are. The error says what to do.
func (r *Record) Restartable() error {
	switch r.State {
	case lifecycle.Installed:
		return nil
	case lifecycle.Failed:
		if r.Recovers() || len(r.StaysUp().Components) > 0 {
			return nil
		}
		return fmt.Errorf("deployment %s has FAILED (%s), and nothing of it is kept up: what has failed is tried again by a new version, or by colony retry", r.Deployment, r.Code)
	case lifecycle.Installing, lifecycle.Updating, lifecycle.RollingBack:
		return fmt.Errorf("deployment %s is %s: it starts its containers by itself", r.Deployment, r.State)
	case lifecycle.Pending, lifecycle.Deleting, lifecycle.Deleted:
	}
	return fmt.Errorf("deployment %s is %s: it has no containers to restart", r.Deployment, r.State)
}

// Restart returns the containers to restart: those that are wanted, and those that use the network of one of them. A container that has done
// its work is left alone, unless it is named, by a want that is exact.
func (w *Watch) Restart(want func(component, container string) bool, exact bool) []engine.Container {
	var list []engine.Container
	chosen := func(id engine.ID) bool {
		return slices.ContainsFunc(list, func(c engine.Container) bool { return c.ID == id })
	}
	for again := true; again; {
		again = false
		for i := range w.units {
			u := &w.units[i]
			owner := u.id
			owner.Name = u.spec.NetworkOf
			if chosen(u.id) || u.completed() && !exact || !want(u.id.Component, u.id.Name) && (u.spec.NetworkOf == "" || !chosen(owner)) {
				continue
			}
			list = append(list, engine.Container{ID: u.id, Digest: u.digest, Spec: u.spec})
			again = true
		}
	}
	return list
}

// StopGroups returns the containers of the list as StopOrder does, for the version of the watch.
func (w *Watch) StopGroups(list []engine.Status) [][]engine.Status { return StopOrder(w.spec, list) }
