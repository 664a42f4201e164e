package projection

import (
	"fmt"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// A nodeCommand names a command on a node.
type nodeCommand struct {
	id   command.ID
	node protocol.NodeID
}

// commandReceived records that the site has a command, or refuses it. The last report of a batch counts.
func (f *fold) commandReceived(r *report, m *command.Received) {
	t := fleet.CommandReceived{Command: m.ID, Meant: bounded(m.Nodes), Code: command.Code(clean(string(m.Code))), Message: clean(m.Message)}
	if f.received == nil {
		f.received = map[command.ID]int{}
	}
	if i, ok := f.received[m.ID]; ok {
		f.Received[i] = t
	} else {
		f.received[m.ID] = len(f.Received)
		f.Received = append(f.Received, t)
	}
	message := fmt.Sprintf("command %s: %d nodes are meant", m.ID, m.Nodes)
	if m.Code != "" {
		message = fmt.Sprintf("command %s: the site refuses it: %s", m.ID, t.Message)
	}
	f.event(r, fleet.Event{Code: protocol.Code(t.Code), Message: message})
}

// commandResult records how far a command is on a node. Of several results of a batch the one of the greatest rank counts,
// and of those the first.
func (f *fold) commandResult(r *report, m *command.Result) {
	result := fleet.CommandResult{
		Command: m.ID, Node: r.Node, State: m.State, Code: command.Code(clean(string(m.Code))), Message: clean(m.Message),
		Output: clean(m.Output), Cut: m.Cut || len(m.Output) > maxText, Duration: bounded(m.DurationMillis), By: fleet.ByNode, At: f.now,
	}
	if m.ByLO {
		result.By = fleet.ByLO
	}
	if f.results == nil {
		f.results = map[nodeCommand]int{}
	}
	key := nodeCommand{m.ID, r.Node}
	if i, ok := f.results[key]; !ok {
		f.results[key] = len(f.Results)
		f.Results = append(f.Results, result)
	} else if result.Rank() > f.Results[i].Rank() {
		f.Results[i] = result
	}
	message := fmt.Sprintf("command %s: %s", m.ID, m.State)
	if result.Message != "" {
		message += ": " + result.Message
	}
	f.event(r, fleet.Event{Node: r.Node, Code: protocol.Code(result.Code), Message: clean(message)})
}
