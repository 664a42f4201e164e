package plan

import (
	"slices"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// Statuses describes the containers for a report.
func (w *Watch) Statuses() []protocol.ComponentStatus {
	out := make([]protocol.ComponentStatus, 0, len(w.units))
	for i := range w.units {
		u := &w.units[i]
		s := protocol.ComponentStatus{
			Component: u.id.Component, Container: u.id.Name, State: "created",
			Restarts: u.status.Restarts, Message: u.status.Message, Ports: u.chosenPorts(),
		}
		switch {
		case u.completed():
			s.State = "completed"
		case u.running() && u.spec.Health == nil:
			s.State = "running"
		case u.running():
			s.State, s.Message = u.health.String(), u.health.message
		case u.present && u.status.State == engine.Exited:
			s.State, s.ExitCode = "exited", u.status.ExitCode
			if u.status.OutOfMemory {
				s.Message = "out of memory" + said(s.Message)
			}
		case u.trouble != nil:
			s.Message = u.trouble.Message
		}
		out = append(out, s)
	}
	return out
}

// chosenPorts returns the published ports for which the node chose a port.
func (u *unit) chosenPorts() (ports []protocol.Port) {
	for i, p := range u.spec.Ports {
		if p.Host == 0 && i < len(u.status.Ports) {
			ports = append(ports, u.status.Ports[i])
		}
	}
	return ports
}

// Telling reports whether statuses say something that those which were reported last, shown, do
// not. The text of a probe's answer is not compared. Where all is up, a running container whose
// health has not been asked yet is no news: after a restart of the agent its health is unknown.
func (w *Watch) Telling(statuses, shown []protocol.ComponentStatus) bool {
	if slices.EqualFunc(statuses, shown, sameStatus) {
		return false
	}
	up := w.AllStarted()
	asking := slices.ContainsFunc(w.units, func(u unit) bool { return u.running() && u.spec.Health != nil && u.health.String() == "running" })
	restarted := len(shown) == len(statuses) && !slices.EqualFunc(statuses, shown, func(a, b protocol.ComponentStatus) bool { return a.Restarts == b.Restarts })
	return !up || !asking || restarted
}

// sameStatus reports whether a container is as before; its messages are not compared.
func sameStatus(a, b protocol.ComponentStatus) bool {
	return a.Component == b.Component && a.Container == b.Container && a.State == b.State && a.ExitCode == b.ExitCode &&
		a.Restarts == b.Restarts && slices.Equal(a.Ports, b.Ports)
}
