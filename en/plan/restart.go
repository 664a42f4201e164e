package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
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

// A Run is what a container does from one start to the next.
type Run struct {
	Component string          `cbor:"1,keyasint"` // the container's component
	Container string          `cbor:"2,keyasint"` // the container's name in it
	Identity  protocol.Digest `cbor:"3,keyasint"` // of the settings with which the container was made
	// Restarts counts the starts of the container before that of the run, without the first one.
	Restarts uint32 `cbor:"4,keyasint,omitempty"`
}

// Runs returns the present runs of those of the containers that have been started.
func (w *Watch) Runs(containers []engine.Container) (runs []Run) {
	for _, c := range containers {
		if u := w.find(c.ID); u.present && u.status.State != engine.Created {
			runs = append(runs, Run{c.ID.Component, c.ID.Name, u.digest, u.status.Restarts})
		}
	}
	return runs
}

// Ending has the exits of these runs, which a restart on request ends, count as no crash, and the containers be started afterwards. One that goes
// on for the time that it has to stop, as the watch sees it, was not stopped: its exit counts from then on.
func (w *Watch) Ending(runs []Run) {
	for _, r := range runs {
		if u := w.find(engine.ID{Deployment: w.spec.Deployment, Component: r.Component, Name: r.Container}); u != nil && u.digest == r.Identity {
			u.ending, u.endBy = &r, time.Time{}
		}
	}
}

// ends reports whether the run of the container that was observed is one that a restart on request ends.
func (u *unit) ends() bool {
	return u.ending != nil && u.present && u.ending.Restarts == u.status.Restarts
}

// awaitEnd takes note of what was observed of a run that is to end: it has the time that its container has to stop.
func (u *unit) awaitEnd(now time.Time) {
	running := u.status.State == engine.Running
	switch {
	case !u.ends() || u.endBy.IsZero() && !running:
	case u.endBy.IsZero():
		u.endBy = now.Add(StopTimeout(&u.spec))
	case now.After(u.endBy):
		u.ending = nil
	case !running: // in time
		u.endBy = time.Time{}
	}
}

// StopGroups returns the containers of the list as StopOrder does, for the version of the watch.
func (w *Watch) StopGroups(list []engine.Status) [][]engine.Status { return StopOrder(w.spec, list) }
