package nodes

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// Replay folds in an event that the journal holds and the stored record may lack: the LO
// was killed between the two writes. It makes no facts. An event that the record
// includes already changes nothing that matters. One that cannot be decoded is ignored;
// the CO gets it from the journal all the same.
func (r *Record) Replay(e protocol.Event) {
	now := time.UnixMilli(e.UnixMillis)
	switch e.Kind { //nolint:exhaustive // the other kinds say nothing of a node's record
	case protocol.NodeOnlineEvent, protocol.NodeOfflineEvent:
		var p protocol.Presence
		if protocol.Unmarshal(e.Body, &p) != nil {
			return
		}
		if p.Agent != "" {
			r.Agent = p.Agent
		}
		if p.Online != r.Presence.Online {
			r.ChangedMillis = e.UnixMillis
		}
		r.Presence = p
	case protocol.InventoryChanged:
		var inv protocol.Inventory
		if protocol.Unmarshal(e.Body, &inv) == nil {
			r.Inventory = &inv
		}
	case protocol.NodeRestrictions:
		var m restriction.Report
		if restriction.Unmarshal(e.Body, &m) == nil {
			r.replayRestrictions(&m)
		}
	case protocol.StatusEvent:
		var m protocol.DeploymentStatus
		if protocol.Unmarshal(e.Body, &m) == nil && m.State.Valid() {
			r.replayStatus(m, now)
		}
	}
}

func (r *Record) replayStatus(m protocol.DeploymentStatus, now time.Time) {
	d := r.Deployments[m.Deployment]
	if d == nil {
		d = &Deployment{}
		r.Deployments[m.Deployment] = d
	}
	if m.Actor == lifecycle.EN && m.Agent != "" {
		r.Agent = m.Agent
		// Events that are folded in already are replayed too: the last event decides, so
		// that the record ends where the journal does.
		if d.Agent != m.Agent {
			d.Seq = 0
		}
		d.Agent, d.Seq = m.Agent, max(d.Seq, m.Seq)
	}
	before := d.Status.Code
	d.record(m, now)
	if m.Actor != lifecycle.LO {
		return
	}
	if m.Position.After(r.Position) {
		r.Position = m.Position
	}
	switch m.State {
	case lifecycle.Installing, lifecycle.Updating, lifecycle.RollingBack:
		d.Removing = false
		if m.Attempt == 0 {
			return // a bridge, which assigns nothing
		}
		if m.Digest != d.Assigned.Digest {
			d.Tries = 1
		} else if !d.tried(m.Digest, m.Attempt) && before != protocol.RegistryUnavailable {
			d.Tries++
		}
		d.noteTry(m.Digest, m.Attempt)
		d.Assigned = Assignment{
			Digest: m.Digest, Attempt: m.Attempt, Rollback: m.State == lifecycle.RollingBack, Position: m.Position,
		}
		if m.Refused != "" {
			d.Refused = Refusal{Digest: m.Refused, Code: m.Code, Message: m.Message}
		}
	case lifecycle.Deleting:
		d.Removing, d.Assigned = true, Assignment{Position: m.Position}
	case lifecycle.Pending:
		d.Removing = false
		if m.Message == reinstalled || m.Message == reinstalledOld {
			d.Agent, d.Seq = "", 0
		}
	case lifecycle.Installed, lifecycle.Failed, lifecycle.Deleted:
	}
}
