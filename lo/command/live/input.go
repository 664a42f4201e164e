package live

import (
	"context"
	"slices"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/topic"
)

// maxInputs bounds what waits on its way down, in messages; each has at most command.MaxSegment bytes of data.
const maxInputs = 1024

// input is a segment on its way down.
type input struct {
	id      command.ID
	node    protocol.NodeID
	payload []byte
}

// Input takes an encoded Segment of the CO for a command. If the command is not followed, or there is no room, the segment is dropped: the
// CO sends it again.
func (l *Live) Input(id command.ID, payload []byte) error {
	var m command.Segment
	if err := command.Unmarshal(payload, &m); err != nil {
		return err
	}
	if _, err := protocol.ParseNodeID(string(m.Node)); err != nil || len(m.Data) > command.MaxSegment {
		return protocol.Errorf(protocol.Invalid, "segment of command %s for node %q with %d bytes: want the name of a node, and at most %d bytes", id, m.Node, len(m.Data), command.MaxSegment)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.find(id) == nil || len(l.inputs) >= maxInputs {
		return nil
	}
	l.inputs = append(l.inputs, input{id, m.Node, slices.Clone(payload)}) // of the broker's buffer
	l.arrived.Notify()
	return nil
}

// deliver hands segments to the nodes that carry out their commands, until ctx ends.
func (l *Live) deliver(ctx context.Context) {
	for ctx.Err() == nil {
		l.mu.Lock()
		list := l.inputs
		l.inputs = nil
		l.mu.Unlock()
		for _, in := range list {
			if !slices.Contains(l.o.Open(in.id, maxNodes), in.node) {
				continue
			}
			if err := l.o.Publish(ctx, topic.ForNodeCommand(topic.NodeInput, l.o.Site, in.node, string(in.id)), in.payload, false); err != nil {
				l.log.DebugContext(ctx, "input not handed on", "node_id", in.node, "command_id", string(in.id), "err", err)
			}
		}
		if len(list) == 0 {
			_ = l.arrived.Wait(ctx) // its end ends the loop
		}
	}
}
