package co

import (
	"context"
	"slices"

	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/ingest"
	"github.com/colonyfleet/colony/protocol"
)

// events is a store of events that calls refused after a site has reported that it did not
// adopt a desired state, with what it holds instead, and machines after it has reported certificates of
// nodes, or that one was removed.
type events struct {
	ingest.Store
	refused  func(protocol.SiteID)
	machines func()
}

// CommitBatch commits what is new in a batch and returns the position.
func (e events) CommitBatch(ctx context.Context, site protocol.SiteID, b protocol.Batch, list []protocol.Event) (protocol.Ack, error) {
	ack, err := e.Store.CommitBatch(ctx, site, b, list)
	if err == nil && slices.ContainsFunc(list, func(v protocol.Event) bool { return v.Kind == protocol.DesiredRefused }) {
		e.refused(site)
	}
	if err == nil && slices.ContainsFunc(list, func(v protocol.Event) bool {
		return v.Kind == protocol.MachineEnrolled || v.Kind == protocol.NodeDecommissioned
	}) {
		e.machines()
	}
	return ack, err
}

// removals is a record of positions that calls machines after a site was removed.
type removals struct {
	desired.PositionStore
	machines func()
}

// RemoveSite forgets a site whose removal was asked for.
func (r removals) RemoveSite(ctx context.Context, site protocol.SiteID) (removed bool, err error) {
	if removed, err = r.PositionStore.RemoveSite(ctx, site); removed {
		r.machines()
	}
	return removed, err
}
