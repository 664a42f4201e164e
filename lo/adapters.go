package lo

import (
	"context"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/lo/command"
	"github.com/colonyfleet/colony/lo/control"
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/lo/data/downlink"
	"github.com/colonyfleet/colony/lo/desired"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/reconciler"
	"github.com/colonyfleet/colony/lo/uplink"
	"github.com/colonyfleet/colony/placement/demand"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// eventJournal is the journal as control writes it.
type eventJournal struct {
	*journal.Journal
	unsynced func() bool // of the clock that stamps the facts
}

// Append implements control.Journal.
func (j eventJournal) Append(ctx context.Context, facts []nodes.Fact) (uint64, error) {
	entries := make([]journal.Entry, len(facts))
	unsynced := j.unsynced()
	for i, f := range facts {
		f.Event.Unsynced = unsynced
		entries[i] = entry(f)
	}
	return j.Journal.Append(ctx, entries...)
}

// entry is a fact as the journal has it: of those with one key the last counts.
func entry(f nodes.Fact) journal.Entry {
	body := protocol.Marshal(f.Event)
	if f.Key == "" {
		return journal.Entry{Class: journal.Event, Body: body}
	}
	return journal.Entry{Class: journal.State, Key: f.Key, Body: body}
}

// desiredStore is the desired state as control reads it.
type desiredStore struct{ *desired.Store }

// Spec implements control.Desired.
func (s desiredStore) Spec(d protocol.Digest) (reconciler.Spec, bool) {
	spec, ok := s.Store.Spec(d)
	return reconciler.Spec{Bytes: spec.Bytes, Signature: spec.Signature, App: spec.Decoded.App, AppVersion: spec.Decoded.AppVersion}, ok
}

// Demand implements control.Desired.
func (s desiredStore) Demand(d protocol.Digest) demand.Demand {
	spec, _ := s.Store.Spec(d) // of one that is not stored, nothing is known
	return demand.Of(&spec.Decoded)
}

// router gives the messages of the site's clients to the part that they are for.
type router struct {
	site     *control.Site
	data     *data.Forwarder
	commands *command.Service
}

// accept implements broker.Options.Accept.
func (r router) accept(ctx context.Context, from access.Identity, m broker.Message) error {
	if !topic.Reserved(m.Topic) {
		return r.data.Accept(ctx, from.Node, m) // a topic of the site's own
	}
	t, err := topic.Parse(m.Topic)
	if err == nil && t.Kind == topic.Data {
		return r.data.Accept(ctx, from.Node, m)
	}
	if err == nil && command.IsOf(t.Kind) {
		return r.commands.Accept(ctx, t, m.Payload)
	}
	return r.site.Accept(ctx, m.Topic, m.Payload)
}

// admit implements broker.Options.Admit: of several gateways with the name of one node
// one may connect.
func (r router) admit(ctx context.Context, id access.Identity, info access.ConnectInfo, will *broker.Message) error {
	if id.Node == "" || will == nil {
		return nil
	}
	return r.site.Admit(ctx, id.Node, will.Payload, info.Remote)
}

// receiver gives what arrives from the CO to the part that it is for.
type receiver struct {
	uplink *uplink.Uplink
	data   *data.Forwarder
	source *desired.MQTT
	down   *downlink.Downlink

	commands *command.Service
	clocks   func() // reports whether the clocks of site and CO agree
}

// Connected implements link.Receiver.
func (r receiver) Connected(up bool) {
	r.uplink.Connected(up)
	r.data.Connected(up)
	r.commands.Connected(up)
	if up {
		r.source.Retry()
		r.clocks()
	}
}

// Desired implements link.Receiver.
func (r receiver) Desired(payload []byte) { r.source.Put(payload) }

// Ack implements link.Receiver.
func (r receiver) Ack(a protocol.Ack) {
	if a.Stream == "" {
		r.uplink.Ack(a)
	}
	r.data.Ack(a)
}

// Down implements link.Receiver.
func (r receiver) Down(payload []byte) { r.down.Offer(payload) }

// reportClient reports to the CO what a client of the broker did.
func (p *parts) reportClient(ctx context.Context, kind protocol.EventKind, m protocol.ClientReport) error {
	return p.site.Report(ctx, kind, "client/"+m.Client, &m)
}
