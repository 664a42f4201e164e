package plan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// Limits are the patience of a Watch.
type Limits struct {
	// RestartBase is the wait before the first restart of a container that exited;
	// it doubles with each further one up to RestartMax. A container that ran for
	// RestartReset, and for MinHealthy where its version is not proven, begins again at RestartBase.
	RestartBase, RestartMax, RestartReset time.Duration
	// StartRestarts is how often in a row a container is restarted while its version is
	// being installed and until that is proven, CrashRestarts how often afterwards,
	// before the deployment counts as failed.
	StartRestarts, CrashRestarts uint32
	// Settle is how long a container without a health probe must run before it
	// counts as healthy for the first time.
	Settle time.Duration
	// MinHealthy is how long an installed version must be up without a break before
	// it counts as proven: from then on no failure ends it. 0: Decide does not say it.
	MinHealthy time.Duration
}

// DefaultLimits returns limits that suit a gateway.
func DefaultLimits() Limits {
	return Limits{
		RestartBase: time.Second, RestartMax: time.Minute, RestartReset: 2 * time.Minute,
		StartRestarts: 3, CrashRestarts: 6, Settle: 400 * time.Millisecond, MinHealthy: 2 * time.Minute,
	}
}

// A Mode is what a Watch is for.
type Mode int

// The modes.
const (
	// Install brings a version up: failures count at once, components have a deadline.
	Install Mode = iota
	// Supervise keeps an installed version up.
	Supervise
	// Tolerate keeps a version up that is about to be replaced: it never fails.
	Tolerate
	// Recover brings a version up again that was proven and has failed since: it
	// never fails, and restarts what its restart policy lets it at the slowest pace.
	Recover
)

// A Watch follows the containers of one version and says what to start, what to
// probe, and when the version is up or has failed. It does no I/O: Observe and
// Probed report to it what happened, Decide what to do. It is not safe for concurrent use.
type Watch struct {
	limits   Limits
	mode     Mode
	spec     *protocol.DeploymentSpec
	parts    []part
	units    []unit
	observed bool
	upSince  time.Time // since when all containers work without a break; zero: they do not
}

// A part is a component.
type part struct {
	spec  protocol.Component
	since time.Time // when its turn came
}

// A unit is a container.
type unit struct {
	part   int
	id     engine.ID
	digest protocol.Digest // its identity
	spec   protocol.Container
	after  []dependency
	health health

	status  engine.Status
	present bool
	since   time.Time // when it was first seen running in this life
	started time.Time // Status.StartedAt of this life

	counted   engine.Status // the exit that was last counted
	failures  uint32
	notBefore time.Time
	trouble   *Failure // why it could not be started last
	broken    bool     // it exited and its policy forbids a restart

	ending *Run      // that a restart on request ends; nil: none, see Watch.Ending
	endBy  time.Time // until when its exit is that of the restart; zero: it was not seen running since

	recoverAt time.Time // when the record of its network may be made anew once more
}

type dependency struct {
	unit int
	on   protocol.Condition
}

// NewWatch returns a watch over the version spec.
func NewWatch(spec *protocol.DeploymentSpec, mode Mode, limits Limits) *Watch {
	w := &Watch{limits: limits, mode: mode, spec: spec}
	digests := Identities(spec)
	for p, c := range spec.Components {
		w.parts = append(w.parts, part{spec: c})
		first := len(w.units)
		for n, k := range c.Containers {
			u := unit{
				part: p, spec: k, health: healthOf(k.Health), digest: digests[p][n],
				id: engine.ID{Deployment: spec.Deployment, Component: c.Name, Name: k.Name},
			}
			for _, d := range k.DependsOn {
				for i := first; i < len(w.units); i++ {
					if w.units[i].spec.Name == d.Container {
						u.after = append(u.after, dependency{i, d.Condition})
					}
				}
			}
			w.units = append(w.units, u)
		}
	}
	return w
}

// Mode returns what the watch is for.
func (w *Watch) Mode() Mode { return w.mode }

// Postpone moves the deadlines of the components by d, in which nothing could be
// done because the engine was away.
func (w *Watch) Postpone(d time.Duration) {
	for i := range w.parts {
		if !w.parts[i].since.IsZero() {
			w.parts[i].since = w.parts[i].since.Add(d)
		}
	}
}

// Observe takes what the engine lists. What has exited before the first look
// went down with the node or the engine: it is started again and not blamed.
func (w *Watch) Observe(list []engine.Status, now time.Time) {
	for i := range w.units {
		u := &w.units[i]
		at, ok := slices.BinarySearchFunc(list, u.id, func(s engine.Status, id engine.ID) int { return s.ID.Compare(id) })
		if !ok || list[at].Digest != u.digest {
			u.present, u.status = false, engine.Status{}
			continue
		}
		u.present, u.status = true, list[at]
		u.awaitEnd(now)
		switch u.status.State {
		case engine.Running:
			if u.since.IsZero() || !u.started.Equal(u.status.StartedAt) {
				u.since, u.started = now, u.status.StartedAt
				u.health.reset()
			}
			u.trouble, u.broken = nil, false
		case engine.Exited:
			u.exited(w, !w.observed, now)
		case engine.Created:
		}
	}
	w.observed = true
}

func (u *unit) exited(w *Watch, first bool, now time.Time) {
	if u.completed() || u.counted.ExitedAt.Equal(u.status.ExitedAt) && u.counted.StartedAt.Equal(u.status.StartedAt) && u.counted.State != "" {
		return
	}
	u.counted = u.status
	u.since = time.Time{}
	if first || u.ends() {
		return
	}
	// What was up for less than would prove its version is not steady, however long that is.
	if u.status.ExitedAt.Sub(u.status.StartedAt) >= max(w.limits.RestartReset, w.limits.MinHealthy) {
		u.failures = 0
	}
	u.fail(w, now)
	switch u.spec.Restart.Policy {
	case protocol.RestartNo:
		u.broken = true
	case protocol.RestartOnFailure:
		u.broken = u.spec.Restart.Max > 0 && u.failures > u.spec.Restart.Max
	case protocol.RestartAlways, protocol.RestartUnlessStopped:
	}
}

func (u *unit) fail(w *Watch, now time.Time) {
	u.failures++
	wait := w.limits.RestartMax
	if w.mode != Recover {
		wait = retry.Policy{Min: w.limits.RestartBase, Max: wait}.Delay(int(u.failures)-1, nil)
	}
	u.notBefore = now.Add(wait)
}

// NotStarted takes note that a container could not be started.
func (w *Watch) NotStarted(id engine.ID, f Failure, now time.Time) {
	if u := w.find(id); u != nil {
		u.fail(w, now)
		u.trouble = &f
	}
}

// Probed takes the answer of a probe that Decide asked for.
func (w *Watch) Probed(id engine.ID, ok bool, message string, now time.Time) {
	if u := w.find(id); u != nil {
		u.health.observe(ok, message, now)
	}
}

// Unprobed takes note that a probe could not be made.
func (w *Watch) Unprobed(id engine.ID, now time.Time) {
	if u := w.find(id); u != nil {
		u.health.missed(now)
	}
}

func (w *Watch) find(id engine.ID) *unit {
	for i := range w.units {
		if w.units[i].id == id {
			return &w.units[i]
		}
	}
	return nil
}

// completed reports whether the container has done its work and is not to run again.
func (u *unit) completed() bool {
	if !u.present || u.status.State != engine.Exited || u.status.ExitCode != 0 || u.ends() {
		return false
	}
	return u.spec.Restart.Policy == protocol.RestartNo || u.spec.Restart.Policy == protocol.RestartOnFailure
}

func (u *unit) running() bool { return u.present && u.status.State == engine.Running }

// ready reports whether the container works. Without a probe it has to run for a moment.
func (w *Watch) ready(u *unit, now time.Time) bool {
	switch {
	case u.completed():
		return true
	case !u.running():
		return false
	case now.Sub(u.since) < w.settle(u):
		return false
	case u.spec.Health != nil:
		return u.health.healthy && (w.mode != Recover || u.health.fails == 0)
	default:
		return true
	}
}

// A Decision is what to do now.
type Decision struct {
	// Start lists the containers to start, in order.
	Start []engine.Container
	// Recover lists the containers that run and of whose network the record was lost: the
	// engine's Start makes it anew.
	Recover []engine.Container
	// Probe lists the containers to probe; Probed or Unprobed must follow for each.
	Probe []Target
	// Ready says that all containers work.
	Ready bool
	// Proven says that an installed version has been up for Limits.MinHealthy.
	Proven bool
	// Failure is set when the version has failed; nothing else counts then.
	Failure *Failure
	// Next is when to decide again if nothing happens before. Zero: never.
	Next time.Time
}

// A Target is a container to probe.
type Target struct {
	ID      engine.ID
	IP      string // empty: the container uses the host's network
	Health  protocol.Health
	Timeout time.Duration // of one probe
}

// Decide says what to do at the time now.
func (w *Watch) Decide(now time.Time) Decision {
	d := Decision{Ready: true}
	turn := true // whether the components before let this one start
	for p := range w.parts {
		if !turn {
			d.Ready = false
			break
		}
		if w.parts[p].since.IsZero() {
			w.parts[p].since = now
		}
		ready, started := w.decidePart(p, now, &d)
		if d.Failure != nil {
			return Decision{Failure: d.Failure}
		}
		d.Ready = d.Ready && ready
		turn = ready || started && w.parts[p].spec.NoWait
	}
	w.prove(now, &d)
	return d
}

func (w *Watch) decidePart(p int, now time.Time, d *Decision) (ready, started bool) {
	ready, started = true, true
	for i := range w.units {
		u := &w.units[i]
		if u.part != p {
			continue
		}
		if f := w.failure(u, now); f != nil && (w.mode == Install || w.mode == Supervise) {
			d.Failure = f
			return false, false
		}
		switch {
		case u.completed():
		case u.running() && u.status.NetworkLost:
			w.decideNetwork(u, now, d) // where it is to be asked for its health is not known
		case u.running() && w.mode == Install && u.spec.Health != nil && !u.health.healthy && !w.dependenciesMet(u, now):
			u.since = now // it stays from the version before, and what it needs is being replaced
		case u.running():
			w.decideHealth(u, now, d)
		default:
			started = false
			w.decideStart(u, now, d)
		}
		ready = ready && w.ready(u, now)
	}
	if w.mode == Install && !ready {
		part := &w.parts[p]
		deadline := part.since.Add(orDefault(part.spec.TimeoutMillis, 5*time.Minute))
		if !now.Before(deadline) {
			d.Failure = w.late(p, now)
		}
		d.wake(deadline)
	}
	return ready, started
}

func (w *Watch) decideStart(u *unit, now time.Time, d *Decision) {
	if u.broken || !w.dependenciesMet(u, now) {
		return // what it waits for wakes the watch
	}
	if now.Before(u.notBefore) {
		d.wake(u.notBefore)
		return
	}
	d.Start = append(d.Start, engine.Container{ID: u.id, Digest: u.digest, Spec: u.spec})
}

// decideNetwork has the record of the network of a container made anew, at the slowest pace.
func (w *Watch) decideNetwork(u *unit, now time.Time, d *Decision) {
	if u.spec.NetworkOf != "" {
		return // that of the other container is looked after
	}
	if !now.Before(u.recoverAt) {
		u.recoverAt = now.Add(w.limits.RestartMax)
		d.Recover = append(d.Recover, engine.Container{ID: u.id, Digest: u.digest, Spec: u.spec})
	}
	d.wake(u.recoverAt)
}

func (w *Watch) decideHealth(u *unit, now time.Time, d *Decision) {
	if settled := u.since.Add(w.settle(u)); now.Before(settled) {
		d.wake(settled)
	}
	if u.spec.Health == nil || u.health.asked {
		return
	}
	if due := u.health.due(u.since); now.Before(due) {
		d.wake(due)
		return
	}
	u.health.asked = true
	t := Target{ID: u.id, IP: u.status.IP, Health: *u.spec.Health, Timeout: u.health.timeout}
	d.Probe = append(d.Probe, t)
}

func (w *Watch) dependenciesMet(u *unit, now time.Time) bool {
	for _, dep := range u.after {
		on := &w.units[dep.unit]
		met := on.running() || on.completed()
		switch dep.on {
		case protocol.ServiceHealthy:
			met = w.ready(on, now)
		case protocol.ServiceCompleted:
			met = on.completed()
		case protocol.ServiceStarted:
		}
		if !met {
			return false
		}
	}
	return true
}

// failure says why a container makes its version fail, or nil.
func (w *Watch) failure(u *unit, now time.Time) *Failure {
	limit := w.limits.CrashRestarts
	if w.mode == Install || w.limits.MinHealthy > 0 {
		limit = w.limits.StartRestarts
	}
	name := u.id.Component + "/" + u.id.Name
	switch {
	case u.broken && w.mode == Install && u.spec.Restart.Policy == protocol.RestartNo:
		return &Failure{protocol.StartFailed, fmt.Sprintf("container %s exited with %d while starting%s", name, u.counted.ExitCode, u.why())}
	case u.broken:
		return &Failure{protocol.CrashLoop, fmt.Sprintf("container %s exited with %d and its restart policy allows no further start%s", name, u.counted.ExitCode, u.why())}
	case u.failures > limit && u.trouble != nil:
		return u.trouble
	case u.failures > limit && !u.running():
		return &Failure{protocol.CrashLoop, fmt.Sprintf("container %s exited %d times, last with %d%s", name, u.failures, u.counted.ExitCode, u.why())}
	case u.running() && u.spec.Health != nil && u.health.unhealthy(u.since, now):
		return &Failure{protocol.ProbeFailed, fmt.Sprintf("container %s is not healthy%s", name, said(u.health.message))}
	}
	return nil
}

// late says why a component missed its deadline.
func (w *Watch) late(p int, now time.Time) *Failure {
	name, limit := w.parts[p].spec.Name, orDefault(w.parts[p].spec.TimeoutMillis, 5*time.Minute)
	for i := range w.units {
		u := &w.units[i]
		if u.part != p || w.ready(u, now) {
			continue
		}
		if u.running() && u.spec.Health != nil {
			return &Failure{protocol.ProbeFailed, fmt.Sprintf("component %s: container %s was not healthy within %s%s", name, u.spec.Name, limit, said(u.health.message))}
		}
		return &Failure{protocol.Timeout, fmt.Sprintf("component %s: container %s did not come up within %s%s", name, u.spec.Name, limit, u.why())}
	}
	return &Failure{protocol.Timeout, fmt.Sprintf("component %s did not come up within %s", name, limit)}
}

func (d *Decision) wake(at time.Time) {
	if d.Next.IsZero() || at.Before(d.Next) {
		d.Next = at
	}
}

// AllStarted reports whether nothing is left to start, so that only health is
// waited for.
func (w *Watch) AllStarted() bool {
	return !slices.ContainsFunc(w.units, func(u unit) bool { return !u.running() && !u.completed() })
}

func orDefault(millis uint64, d time.Duration) time.Duration {
	if millis == 0 {
		return d
	}
	return time.Duration(min(millis, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}
