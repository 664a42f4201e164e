package fleet

import (
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// An operation is what a node does about one deployment, until another takes its place.
type operation struct {
	n     *node
	name  protocol.DeploymentName
	ended bool
	watch *plan.Watch // of the containers that are looked after now; nil: none
	next  *event      // the next look
	tries int         // of the step that is being done
}

// stepTime is how long it takes to stop and remove a deployment's containers.
const stepTime = time.Second

// perform does what a record says, in the place of what was done before.
func (n *node) perform(name protocol.DeploymentName) {
	n.ops[name].end()
	o := &operation{n: n, name: name}
	n.ops[name] = o
	rec := n.records[name]
	switch rec.State {
	case lifecycle.Installing, lifecycle.Updating, lifecycle.RollingBack:
		o.install(rec)
	case lifecycle.Installed:
		o.follow(rec.Spec, plan.Supervise)
	case lifecycle.Failed:
		o.after(stepTime, func() {
			up := rec.StaysUp()
			o.clear(up)
			o.look(plan.NewWatch(up, plan.Tolerate, plan.DefaultLimits()))
		})
	case lifecycle.Deleting:
		o.after(stepTime, func() {
			o.clear(nil)
			n.sweep(name)
			removed := n.records[name].Deleted()
			n.report(removed, removed.Report(lifecycle.Deleting))
			n.perform(name)
		})
	case lifecycle.Deleted, lifecycle.Pending:
	}
}

// end stops an operation. A nil one is stopped already.
func (o *operation) end() {
	if o != nil {
		o.ended = true
		o.next.stop()
	}
}

// after does the next step, if the operation has not ended by then.
func (o *operation) after(d time.Duration, step func()) *event {
	return o.n.w.after(d, func() {
		if !o.ended {
			step()
		}
	})
}

// install pulls the version of a record while the one before runs, and lets it take
// that one's place.
func (o *operation) install(rec plan.Record) {
	if rec.Active != "" && rec.Active != rec.Digest {
		o.follow(rec.ActiveSpec, plan.Tolerate)
	}
	m := rec.Report(rec.State)
	m.Phase = protocol.Pulling
	o.n.progress(m)
	o.pull(rec, plan.Images(rec.Spec))
}

// pull gets images one after another.
func (o *operation) pull(rec plan.Record, refs []string) {
	if len(refs) == 0 {
		o.after(stepTime, func() { o.cutOver(rec) })
		return
	}
	o.after(between(o.n.rng, time.Second, 30*time.Second), func() {
		err := o.n.machine.pull(refs[0])
		if o.tries++; err != nil && rec.State == lifecycle.RollingBack && o.tries < 5 {
			o.pull(rec, refs)
			return
		}
		if err != nil {
			o.fail(plan.Failure{Code: engine.CodeOf(err), Message: err.Error()})
			return
		}
		o.tries = 0
		o.pull(rec, refs[1:])
	})
}

// cutOver removes the version before and brings the new one up.
func (o *operation) cutOver(rec plan.Record) {
	rec.Reports = o.n.records[o.name].Reports
	if rec.Active != "" && rec.Active != rec.Digest {
		rec = rec.CutOver()
		o.n.save(rec)
	}
	spec, err := plan.Decode(rec.Spec)
	if err != nil {
		o.fail(plan.Failure{Code: protocol.Incompatible, Message: err.Error()})
		return
	}
	o.clear(spec)
	o.look(plan.NewWatch(spec, plan.Install, plan.DefaultLimits()))
}

// clear removes the deployment's containers that a version, nil for none, does not share.
func (o *operation) clear(keep *protocol.DeploymentSpec) {
	o.watch = nil
	o.next.stop()
	var identities []protocol.Digest
	if keep != nil {
		identities = slices.Concat(plan.Identities(keep)...)
	}
	for _, s := range o.n.machine.list() {
		if s.ID.Deployment == o.name && !slices.Contains(identities, s.Digest) {
			o.n.machine.remove(s.ID)
		}
	}
}

// follow looks after the containers of an encoded version.
func (o *operation) follow(encoded []byte, mode plan.Mode) {
	spec, err := plan.Decode(encoded)
	if err != nil {
		o.fail(plan.Failure{Code: protocol.Incompatible, Message: err.Error()})
		return
	}
	o.look(plan.NewWatch(spec, mode, plan.DefaultLimits()))
}

// look begins to do what a watch decides.
func (o *operation) look(watch *plan.Watch) {
	o.watch = watch
	o.turn()
}

// turn does what the watch decides.
func (o *operation) turn() {
	n, watch := o.n, o.watch
	now := n.clock.mono()
	watch.Observe(n.machine.list(), now)
	d := watch.Decide(now)
	switch {
	case d.Failure != nil:
		o.fail(*d.Failure)
		return
	case d.Ready && watch.Mode() == plan.Install:
		o.installed()
		return
	}
	for _, t := range d.Probe {
		o.after(between(n.rng, 10*time.Millisecond, 500*time.Millisecond), func() {
			if o.watch == watch {
				watch.Probed(t.ID, n.machine.healthy(t.ID), "not healthy", n.clock.mono())
				o.turn()
			}
		})
	}
	for _, c := range d.Start {
		if f := o.start(c); f != nil && watch.Mode() == plan.Install && n.records[o.name].State != lifecycle.RollingBack {
			o.fail(*f)
			return
		} else if f != nil {
			watch.NotStarted(c.ID, *f, now)
		}
	}
	o.next.stop()
	switch {
	case len(d.Start) > 0:
		o.next = o.after(50*time.Millisecond, o.turn)
	case !d.Next.IsZero():
		o.next = o.after(d.Next.Sub(now), o.turn)
	}
}

// start makes a container run, in the place of one of another version.
func (o *operation) start(c engine.Container) *plan.Failure {
	m := o.n.machine
	err := m.start(c)
	if err != nil {
		m.remove(c.ID)
		if err = m.pull(c.Spec.Image); err == nil {
			err = m.start(c)
		}
	}
	if err != nil {
		return &plan.Failure{Code: engine.CodeOf(err), Message: err.Error()}
	}
	return nil
}

func (o *operation) installed() {
	from := o.n.records[o.name].State
	next := o.n.records[o.name].Installed()
	o.n.report(next, next.Report(from))
	o.n.sweep("") // the images of the version before
	o.n.perform(o.name)
}

func (o *operation) fail(f plan.Failure) {
	from := o.n.records[o.name].State
	next := o.n.records[o.name].Failed(f)
	o.n.report(next, next.Report(from))
	o.n.perform(o.name)
}

// exited makes the operation of a container that exited look at it.
func (n *node) exited(id engine.ID) {
	if o := n.ops[id.Deployment]; n.alive && o != nil && o.watch != nil {
		o.turn()
	}
}
