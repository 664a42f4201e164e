package co

import (
	"context"
	"slices"

	"github.com/colonyfleet/colony/co/ingest"
	"github.com/colonyfleet/colony/protocol"
)

// events is a store of events that calls refused after a site has reported that it did not
// adopt a desired state, with what it holds instead.
type events struct {
	ingest.Store
	refused func(protocol.SiteID)
}

// CommitBatch commits what is new in a batch and returns the position.
func (e events) CommitBatch(ctx context.Context, site protocol.SiteID, b protocol.Batch, list []protocol.Event) (protocol.Ack, error) {
	ack, err := e.Store.CommitBatch(ctx, site, b, list)
	if err == nil && slices.ContainsFunc(list, func(v protocol.Event) bool { return v.Kind == protocol.DesiredRefused }) {
		e.refused(site)
	}
	return ack, err
}
