package fleet

import (
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// Words in an image's name that say how its program behaves.
const (
	good    = "good"    // it runs until it is stopped
	crashes = "crashes" // it exits soon after each start
	sick    = "sick"    // it runs and never becomes healthy
	missing = "missing" // no registry has the image
)

// A machine has the semantics of engine.Engine, without its waiting: what takes time
// there is left to the node that calls. It outlives the agent.
type machine struct {
	w          *world
	clock      *clock
	images     map[string]bool
	containers map[engine.ID]*process
	// exited is called when a program ends by itself.
	exited func(id engine.ID)
}

// A process is a container.
type process struct {
	status engine.Status
	end    *event // of a program that exits by itself
}

func newMachine(w *world, c *clock) *machine {
	return &machine{w: w, clock: c, images: map[string]bool{}, containers: map[engine.ID]*process{}}
}

// list is engine.Engine.List.
func (m *machine) list() []engine.Status {
	out := make([]engine.Status, 0, len(m.containers))
	for _, p := range m.containers {
		out = append(out, p.status)
	}
	slices.SortFunc(out, func(a, b engine.Status) int { return a.ID.Compare(b.ID) })
	return out
}

// pull makes an image present.
func (m *machine) pull(ref string) error {
	if strings.Contains(ref, missing) {
		return engine.Errorf(protocol.ImageNotFound, "pull image %s: the registry has none", ref)
	}
	m.images[ref] = true
	return nil
}

// start is engine.Engine.Start.
func (m *machine) start(c engine.Container) error {
	p := m.containers[c.ID]
	switch {
	case p == nil && !m.images[c.Spec.Image]:
		return engine.Errorf(protocol.ImageNotFound, "create container %s: the image %s is not on the node", c.ID, c.Spec.Image)
	case p == nil:
		p = &process{status: engine.Status{ID: c.ID, Digest: c.Digest, Image: c.Spec.Image, State: engine.Created}}
		m.containers[c.ID] = p
	case p.status.Digest != c.Digest:
		return protocol.Errorf(protocol.Conflict, "container %s exists for another version", c.ID)
	case p.status.State == engine.Running:
		return nil
	}
	if !p.status.StartedAt.IsZero() {
		p.status.Restarts++
	}
	p.status.State, p.status.StartedAt, p.status.ExitedAt = engine.Running, m.clock.wall(), time.Time{}
	if strings.Contains(c.Spec.Image, crashes) {
		p.end = m.w.after(2*time.Second, func() { m.exit(c.ID, 1) })
	}
	return nil
}

// exit ends the program of a container with a code.
func (m *machine) exit(id engine.ID, code int32) {
	p := m.containers[id]
	if p == nil || p.status.State != engine.Running {
		return
	}
	p.end.stop()
	p.status.State, p.status.ExitCode, p.status.ExitedAt = engine.Exited, code, m.clock.wall()
	m.exited(id)
}

// remove stops and removes a container.
func (m *machine) remove(id engine.ID) {
	if p := m.containers[id]; p != nil {
		p.end.stop()
		delete(m.containers, id)
	}
}

// healthy answers a probe.
func (m *machine) healthy(id engine.ID) bool {
	p := m.containers[id]
	return p != nil && p.status.State == engine.Running && !strings.Contains(p.status.Image, sick)
}

// reboot ends all programs and leaves no exit code.
func (m *machine) reboot() {
	for _, p := range m.containers {
		p.end.stop()
		if p.status.State == engine.Running {
			p.status.State = engine.Created
		}
	}
}

// sweep is engine.Host.Sweep.
func (m *machine) sweep(o engine.SweepOptions) {
	used := map[string]bool{}
	for _, ref := range o.KeepImages {
		used[ref] = true
	}
	for _, s := range m.list() {
		if slices.Contains(o.Removed, s.ID.Deployment) {
			m.remove(s.ID)
		} else {
			used[s.Image] = true
		}
	}
	for ref := range m.images {
		if !used[ref] {
			delete(m.images, ref)
		}
	}
}
