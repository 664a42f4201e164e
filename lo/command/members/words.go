package members

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

func sortNodes(nodes []protocol.NodeID) { slices.Sort(nodes) }

// noNode says why no node is meant.
func noNode(c *command.Command) string {
	if len(c.Selector) == 0 {
		if len(c.Nodes) == 0 {
			return "the site has no node"
		}
		return fmt.Sprintf("the site has no node %s: see colony nodes", c.Nodes[0])
	}
	var labels []string
	for _, k := range slices.Sorted(maps.Keys(c.Selector)) {
		labels = append(labels, k+"="+c.Selector[k])
	}
	return fmt.Sprintf("no node of the site has the labels %s", strings.Join(labels, ","))
}

// Unknown is the result for a node that a command names and that the site does not have.
func Unknown(id command.ID, node protocol.NodeID) command.Result {
	return command.Result{
		V: protocol.Version, ID: id, Node: node, State: command.Refused, Code: command.NoNode, ByLO: true,
		Message: fmt.Sprintf("the site has no node %s", node),
	}
}

// Busy is the result for a node that has as many open commands as it may have.
func Busy(id command.ID, node protocol.NodeID) command.Result {
	return command.Result{
		V: protocol.Version, ID: id, Node: node, State: command.Refused, Code: command.Busy, ByLO: true,
		Message: fmt.Sprintf("the node has %d commands that have not ended, which is the limit: cancel some, or ask again when they have", command.MaxPerNode),
	}
}
