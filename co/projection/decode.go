package projection

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// maxText bounds a text of a report, in bytes: the rest is cut off.
const maxText = 8 << 10

// A Batch is consecutive events with their bodies decoded.
type Batch struct{ reports []report }

type report struct {
	protocol.Event
	// message is the decoded body; nil where the kind has none, is not known, or
	// the body is not what the kind names.
	message any
	// reason says why the report cannot be applied; empty where it can.
	reason string
}

// Decode decodes the bodies of events. It never fails: what cannot be read
// becomes an anomaly.
func Decode(events []protocol.Event) *Batch {
	b := &Batch{reports: make([]report, len(events))}
	for i, e := range events {
		r := report{Event: e}
		r.message, r.reason = decode(&e)
		if e.Node != "" {
			if _, err := protocol.ParseNodeID(string(e.Node)); err != nil {
				r.reason, r.Node = err.Error(), ""
			}
		}
		b.reports[i] = r
	}
	return b
}

func decode(e *protocol.Event) (message any, reason string) {
	switch e.Kind {
	case protocol.LOStarted, protocol.NodeOnlineEvent, protocol.NodeOfflineEvent:
		message = &protocol.Presence{}
	case protocol.InventoryChanged:
		message = &protocol.Inventory{}
	case protocol.StatusEvent:
		message = &protocol.DeploymentStatus{}
	case protocol.NameConflict:
		message = &protocol.NodeGateways{}
	case protocol.NodeRestrictions:
		message = &restriction.Report{}
	case protocol.PlacementEvent:
		message = &protocol.PlacementReport{}
	case protocol.DesiredAdopted, protocol.DesiredRefused:
		message = &protocol.Adopted{}
	case protocol.NodeEpochRaised:
		message = &protocol.EpochRaised{}
	case protocol.NodeHoldings:
		message = &protocol.Holdings{}
	case protocol.NodeDecommissioned:
		message = &protocol.Decommissioned{}
	case protocol.DataLost, protocol.StateDamaged:
		message = &protocol.Loss{}
	case protocol.MachineEnrolled, protocol.MachineRefused, protocol.MachinePending:
		message = &protocol.Enrolment{}
	case protocol.RevocationsAdopted, protocol.RevocationsRefused:
		message = &protocol.RevocationsReport{}
	case protocol.ClocksDiffer:
		message = &protocol.ClocksReport{}
	case protocol.ClientConnected, protocol.ClientDisconnected, protocol.ClientsChanged:
		message = &protocol.ClientReport{}
	case protocol.CommandReceived:
		message = &command.Received{}
	case protocol.CommandResult:
		message = &command.Result{}
	case protocol.SnapshotEvent:
		message = &protocol.Snapshot{}
	case protocol.AnomalyEvent:
		s := &protocol.DeploymentStatus{}
		if protocol.Unmarshal(e.Body, s) == nil && checkStatus(s, e.Node) == "" {
			return s, "the site refused this report"
		}
		return nil, "the site could not read this report"
	case protocol.Superseded:
		return nil, ""
	default:
		return nil, fmt.Sprintf("kind %q is not known here: a later version of the site's program made it", clean(string(e.Kind)))
	}
	if err := unmarshal(e.Body, message); err != nil {
		return nil, clean(err.Error())
	}
	return message, check(message, e.Node)
}

func unmarshal(b []byte, message any) error {
	if m, ok := message.(*restriction.Report); ok {
		return restriction.Unmarshal(b, m)
	}
	if m, ok := message.(command.Message); ok {
		return command.Unmarshal(b, m)
	}
	return protocol.Unmarshal(b, message)
}

func check(message any, node protocol.NodeID) string {
	switch m := message.(type) {
	case *protocol.DeploymentStatus:
		return checkStatus(m, node)
	case *protocol.PlacementReport:
		_, err := protocol.ParseDeploymentName(string(m.Deployment))
		return text(err)
	case *protocol.Snapshot:
		for i := range m.Nodes {
			if _, err := protocol.ParseNodeID(string(m.Nodes[i].Node)); err != nil {
				return text(err)
			}
		}
		for i := range m.Statuses {
			if reason := checkStatus(&m.Statuses[i], m.Statuses[i].Node); reason != "" {
				return reason
			}
		}
	case *protocol.Inventory:
		if node == "" {
			return "an inventory without a node"
		}
	case *protocol.NodeGateways:
		if node == "" {
			return "gateways without the node whose name they use"
		}
	case *restriction.Report:
		if node == "" {
			return "restrictions without the node that they restrict"
		}
	case *protocol.Decommissioned:
		if node == "" {
			return "the removal of a node without the node"
		}
	case *protocol.Holdings:
		if node == "" {
			return "holdings without the node that has them"
		}
	case *command.Received:
		_, err := command.ParseID(string(m.ID))
		return text(err)
	case *command.Result:
		return checkResult(m, node)
	case *protocol.Enrolment:
		if m.Code == "" && (node == "" || len(m.Key) != sha256.Size) {
			return "a certificate without its node, or without the SHA-256 of its key"
		}
	}
	return ""
}

func checkStatus(s *protocol.DeploymentStatus, node protocol.NodeID) string {
	if node == "" {
		node = s.Node
	}
	_, err1 := protocol.ParseNodeID(string(s.Node))
	_, err2 := protocol.ParseDeploymentName(string(s.Deployment))
	switch {
	case err1 != nil:
		return text(err1)
	case err2 != nil:
		return text(err2)
	case s.Node != node:
		return fmt.Sprintf("node %s reports for node %s", node, s.Node)
	case !s.State.Valid():
		return fmt.Sprintf("no state %q: the states are %v", clean(string(s.State)), lifecycle.States)
	}
	return ""
}

func checkResult(m *command.Result, node protocol.NodeID) string {
	_, err := command.ParseID(string(m.ID))
	switch {
	case err != nil:
		return text(err)
	case node == "" || m.Node != "" && m.Node != node:
		return fmt.Sprintf("a result of node %q is reported for node %q", clean(string(m.Node)), node)
	case !slices.Contains(command.States(), m.State):
		return fmt.Sprintf("no state %q of a command: the states are %v", clean(string(m.State)), command.States())
	}
	return ""
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return clean(err.Error())
}

// clean makes a text storable: PostgreSQL refuses NUL and what is not UTF-8.
func clean(s string) string {
	if strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s) {
		s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	}
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// bounded keeps a number within the database's signed 64 bits.
func bounded(n uint64) uint64 { return min(n, math.MaxInt64) }

// siteTime returns the site's clock, or nil where it cannot be a time.
func siteTime(unixMillis int64) *time.Time {
	const year10000 = 253402300800000
	if unixMillis <= 0 || unixMillis >= year10000 {
		return nil
	}
	t := time.UnixMilli(unixMillis).UTC()
	return &t
}
