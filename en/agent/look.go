package agent

import (
	"context"
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
)

// A firstLook is what a Runner knows of the containers that were there before it. Until it has seen them it removes nothing: the files of the
// agent may be of before what the containers were made for.
type firstLook struct {
	// strays are the containers without a record, as listed last.
	strays []engine.Status
	// forgotten are the deployments that were forgotten since the last list was asked for, which may have their containers yet.
	forgotten map[protocol.DeploymentName]bool
	// followed is, at the first look, up to where deployments were followed, as it says beside their volumes.
	followed map[protocol.DeploymentName]protocol.Position
	// looked is closed after the first look, with the Runner's mutex held.
	looked chan struct{}
}

// seen reports whether the first look was had.
func (l *firstLook) seen() bool {
	select {
	case <-l.looked:
		return true
	default:
		return false
	}
}

// listed lists the containers, for lookedAt, and for the first look what was followed.
func (r *Runner) listed() ([]engine.Status, error) {
	r.listing()
	observed, err := r.o.Engine.List(r.ctx)
	if err != nil || r.seen() {
		return observed, err
	}
	followed, err := r.o.Host.Followed(r.ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.followed = followed
	return observed, err
}

// listing notes that the containers are about to be listed.
func (r *Runner) listing() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.forgotten)
}

// lookedAt takes a list of the containers. The caller holds r.mu.
func (r *Runner) lookedAt(observed []engine.Status) {
	r.firstLooked(observed)
	unknown := slices.DeleteFunc(plan.Unknown(r.list(), observed), func(name protocol.DeploymentName) bool { return r.forgotten[name] })
	r.strays = slices.DeleteFunc(slices.Clone(observed), func(s engine.Status) bool { return !slices.Contains(unknown, s.ID.Deployment) })
	if slices.Equal(unknown, r.unknown) {
		return
	}
	if len(unknown) > 0 {
		r.log.Warn("containers of deployments that the agent has no record of: they stay", "deployments", unknown)
	}
	r.unknown = unknown
	r.o.Changed()
}

// forgot notes that a deployment is forgotten, whose containers are none without a record: they are removed. The caller holds r.mu.
func (r *Runner) forgot(name protocol.DeploymentName) {
	r.forgotten[name] = true
	r.strays = slices.DeleteFunc(r.strays, func(s engine.Status) bool { return s.ID.Deployment == name })
}

// wait waits for the first look, for as long as most, or for ever where that is 0.
func (l *firstLook) wait(ctx context.Context, most time.Duration) error {
	var late <-chan time.Time
	if most > 0 {
		t := time.NewTimer(most)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-l.looked:
	case <-ctx.Done():
	case <-late:
		return engine.Errorf(protocol.EngineUnavailable, "the container engine has not said for %s which containers there are, see that it works", most)
	}
	return context.Cause(ctx) // the look may have ended what waits, too
}

// firstLooked compares the containers with what the agent has on disk, once: removals of before what they were made for do not count, and
// what runs without a record counts as proven. It is tried again with the next look where the disk fails. The caller holds r.mu.
func (r *Runner) firstLooked(observed []engine.Status) {
	if r.seen() {
		return
	}
	for _, name := range plan.Overtaken(r.list(), observed, r.followed) {
		r.log.Warn("the record says that a deployment was removed, and there are containers or volumes of a later one: they stay", "deployment_id", name)
		if err := r.drop(name); err != nil {
			r.log.Warn("record of a deployment that was removed not set aside, trying again", "deployment_id", name, "err", err)
			return
		}
		if w := r.workers[name]; w != nil {
			w.interrupt()
		}
	}
	for _, rec := range r.list() {
		if !rec.Unseen {
			continue
		}
		if err := r.save(rec.Seen(observed)); err != nil {
			r.log.Warn("record not compared with the containers, trying again", "deployment_id", rec.Deployment, "err", err)
			return
		}
		if w := r.workers[rec.Deployment]; w != nil {
			w.interrupt()
		}
	}
	if r.o.Check.Observe(observed, r.followed) {
		r.wholeDue = r.wholeDue || r.up // the LO is to know up to where this node has followed
		r.outbox.Notify()
		if r.desired != nil {
			r.obey(r.ctx, r.judge(r.desired))
		}
	}
	close(r.looked)
	r.sweep.Notify()
	r.retain.Notify()
}
