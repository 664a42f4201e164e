package plan

import "time"

// ToRecover makes a watch that has failed one that recovers the version: what it
// knows of the containers stays, so that one whose restart policy allows no further
// start is not started.
func (w *Watch) ToRecover() {
	w.mode = Recover
	for i := range w.units {
		w.units[i].health.asked = false // that answer is no longer awaited
	}
}

// settle is how long a container must run before it can count as working. A
// version that recovers has to run for as long as the wait before a restart, or
// one that crashes all the time would be reported as up between two crashes.
func (w *Watch) settle(u *unit) time.Duration {
	switch {
	case w.mode == Recover:
		return w.limits.RestartMax
	case w.mode == Install && u.spec.Health == nil:
		return w.limits.Settle
	default:
		return 0
	}
}

// prove says when an installed version has been up for long enough.
func (w *Watch) prove(now time.Time, d *Decision) {
	switch {
	case w.mode != Supervise || w.limits.MinHealthy == 0:
		return
	case !d.Ready:
		w.upSince = time.Time{}
		return
	case w.upSince.IsZero():
		w.upSince = now
	}
	due := w.upSince.Add(w.limits.MinHealthy)
	if d.Proven = !now.Before(due); !d.Proven {
		d.wake(due)
	}
}
