// Package topic builds and parses every MQTT topic that crosses a tier; no other
// package does. A topic here never holds an id that was not parsed: a value of type protocol.SiteID or NodeID from outside must have
// passed its Parse function first.
package topic

import (
	"fmt"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// root is the first level of every topic of Colony.
const root = "colony"

// prefix opens every topic of this major version of the protocol.
const prefix = root + "/v1/"

// Everything is the filter of all topics of this major version.
const Everything = prefix + "#"

// A Kind says what a topic carries.
type Kind string

// The kinds. The comment names the direction, the QoS and whether it is retained.
const (
	SiteDesired Kind = "site-desired" // CO → LO, 1, retained
	SiteTokens  Kind = "site-tokens"  // CO → LO, 1, retained
	Revocations Kind = "revocations"  // CO → LO, and LO → EN, 1, retained
	SiteOnline  Kind = "site-online"  // LO → CO, 1, retained, will
	Up          Kind = "up"           // LO → CO, 1
	Ack         Kind = "ack"          // CO → LO, 1
	NodeDesired Kind = "node-desired" // LO → EN, 1, retained
	NodeOnline  Kind = "node-online"  // EN → LO, 1, retained, will
	Heartbeat   Kind = "heartbeat"    // EN → LO, 0
	Inventory   Kind = "inventory"    // EN → LO, 1, retained
	Status      Kind = "status"       // EN → LO, 1
	NodeReport  Kind = "node-report"  // EN → LO, 1
	Down        Kind = "down"         // CO → LO, 1: batches of machine data
	DownAck     Kind = "down-ack"     // LO → CO, 1
	Data        Kind = "data"         // workloads → LO → CO, as the user says
	In          Kind = "in"           // MQTT clients of the CO → LO → workloads, as the user says

	SiteCommand   Kind = "site-command"   // CO → LO, 1, retained
	NodeCommand   Kind = "node-command"   // LO → EN, 1, retained
	CommandResult Kind = "command-result" // EN → LO, 1
	SiteLive      Kind = "site-live"      // LO → CO, 0
	NodeLive      Kind = "node-live"      // EN → LO, 0
	SiteCredit    Kind = "site-credit"    // CO → LO, 0
	NodeCredit    Kind = "node-credit"    // LO → EN, 0
	SiteInput     Kind = "site-input"     // CO → LO, 0
	NodeInput     Kind = "node-input"     // LO → EN, 0
	SiteTimeAsk   Kind = "site-time-ask"  // LO → CO, 0
	SiteTime      Kind = "site-time"      // CO → LO, 0
	NodeTimeAsk   Kind = "node-time-ask"  // EN → LO, 0
	NodeTime      Kind = "node-time"      // LO → EN, 0
)

// A Topic is a parsed topic. Node and Tail are empty where the kind has none.
type Topic struct {
	Kind Kind
	Site protocol.SiteID
	Node protocol.NodeID
	// Tail is the deployment of a Status topic, the id of a command, or the rest of a Data or In topic.
	Tail string
}

var siteKinds = map[Kind]string{SiteDesired: "desired", SiteTokens: "tokens", Revocations: "revocations", SiteOnline: "online", Up: "up", Ack: "ack", Down: "down", DownAck: "down-ack", SiteTimeAsk: "time-ask", SiteTime: "time"}

// tailKinds are those whose topics go on as the user says.
var tailKinds = map[Kind]string{Data: "data", In: "in"}

var nodeKinds = map[Kind]string{NodeDesired: "desired", NodeOnline: "online", Heartbeat: "heartbeat", Inventory: "inventory", NodeReport: "report", CommandResult: "result", NodeTimeAsk: "time-ask", NodeTime: "time"}

// siteCommandKinds and nodeCommandKinds are those whose topics end with the id of a command.
var (
	siteCommandKinds = map[Kind]string{SiteCommand: "cmd", SiteLive: "live", SiteCredit: "credit", SiteInput: "input"}
	nodeCommandKinds = map[Kind]string{NodeCommand: "cmd", NodeLive: "live", NodeCredit: "credit", NodeInput: "input"}
)

// ForSite returns the topic of a kind that belongs to a whole site.
func ForSite(kind Kind, site protocol.SiteID) string {
	return prefix + string(site) + "/" + siteKinds[kind]
}

// ForNode returns the topic of a kind that belongs to a node.
func ForNode(kind Kind, site protocol.SiteID, node protocol.NodeID) string {
	return prefix + string(site) + "/node/" + string(node) + "/" + nodeKinds[kind]
}

// ForStatus returns the topic on which a node reports one deployment.
func ForStatus(site protocol.SiteID, node protocol.NodeID, d protocol.DeploymentName) string {
	return prefix + string(site) + "/node/" + string(node) + "/status/" + string(d)
}

// AnyCommand stands, in a filter, for the id of every command.
const AnyCommand = "+"

// ForCommand returns the topic of a kind that belongs to a command at a site; AnyCommand as its id gives the filter of all of them.
func ForCommand(kind Kind, site protocol.SiteID, id string) string {
	return prefix + string(site) + "/" + siteCommandKinds[kind] + "/" + id
}

// ForNodeCommand is ForCommand of a node.
func ForNodeCommand(kind Kind, site protocol.SiteID, node protocol.NodeID, id string) string {
	return prefix + string(site) + "/node/" + string(node) + "/" + nodeCommandKinds[kind] + "/" + id
}

// isCommandID reports whether s is 32 lower-case hex digits.
func isCommandID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == ""
}

// ofCommand reads the last two levels of a topic that belongs to a command: its word and its id.
func ofCommand(kinds map[Kind]string, word, id string) (Kind, bool) {
	for kind, w := range kinds {
		if w == word && isCommandID(id) {
			return kind, true
		}
	}
	return "", false
}

// ForTail returns the topic of machine data (Data or In) with the given rest; the
// empty rest gives the prefix of all of them, with its final slash.
func ForTail(kind Kind, site protocol.SiteID, tail string) string {
	return prefix + string(site) + "/" + tailKinds[kind] + "/" + tail
}

// HasTail reports whether a name is a topic of machine data of a kind and a site.
func HasTail(kind Kind, site protocol.SiteID, name string) bool {
	return strings.HasPrefix(name, ForTail(kind, site, ""))
}

// Parse reads a topic name (not a filter). It refuses wildcards, unknown kinds,
// and ids that are no DNS labels.
func Parse(name string) (Topic, error) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return Topic{}, fmt.Errorf("topic %q: does not begin with %s", name, prefix)
	}
	site, rest, _ := strings.Cut(rest, "/")
	id, err := protocol.ParseSiteID(site)
	if err != nil {
		return Topic{}, fmt.Errorf("topic %q: %w", name, err)
	}
	t := Topic{Site: id}
	for kind, word := range tailKinds {
		tail, ok := strings.CutPrefix(rest, word+"/")
		if !ok {
			continue
		}
		if tail == "" || strings.ContainsAny(tail, "+#\x00") {
			return Topic{}, fmt.Errorf("topic %q: wildcard or empty data topic", name)
		}
		t.Kind, t.Tail = kind, tail
		return t, nil
	}
	for kind, word := range siteKinds {
		if rest == word {
			t.Kind = kind
			return t, nil
		}
	}
	parts := strings.Split(rest, "/")
	if len(parts) == 2 {
		if kind, ok := ofCommand(siteCommandKinds, parts[0], parts[1]); ok {
			t.Kind, t.Tail = kind, parts[1]
			return t, nil
		}
	}
	if len(parts) < 3 || len(parts) > 4 || parts[0] != "node" {
		return Topic{}, fmt.Errorf("topic %q: no such topic in the protocol", name)
	}
	if t.Node, err = protocol.ParseNodeID(parts[1]); err != nil {
		return Topic{}, fmt.Errorf("topic %q: %w", name, err)
	}
	if len(parts) == 4 && parts[2] == "status" {
		d, err := protocol.ParseDeploymentName(parts[3])
		if err != nil {
			return Topic{}, fmt.Errorf("topic %q: %w", name, err)
		}
		t.Kind, t.Tail = Status, string(d)
		return t, nil
	}
	if len(parts) == 4 {
		if kind, ok := ofCommand(nodeCommandKinds, parts[2], parts[3]); ok {
			t.Kind, t.Tail = kind, parts[3]
			return t, nil
		}
	}
	for kind, word := range nodeKinds {
		if len(parts) == 3 && parts[2] == word {
			t.Kind = kind
			return t, nil
		}
	}
	return Topic{}, fmt.Errorf("topic %q: no such topic in the protocol", name)
}

// Matches reports whether a valid topic filter, without the prefix of a shared subscription,
// matches a topic name (MQTT 5, section 4.7). a/# matches a too [MQTT-4.7.1-1], + matches one level
// [MQTT-4.7.1-2], and a leading wildcard does not match a leading $ [MQTT-4.7.2-1].
func Matches(filter, name string) bool {
	if name == "" || name[0] == '$' && (filter == "" || filter[0] == '+' || filter[0] == '#') {
		return false
	}
	for {
		f, frest, fmore := strings.Cut(filter, "/")
		if f == "#" {
			return true
		}
		n, nrest, nmore := strings.Cut(name, "/")
		switch {
		case f != "+" && f != n:
			return false
		case !fmore || !nmore:
			return !nmore && (!fmore || frest == "#")
		}
		filter, name = frest, nrest
	}
}

// Reserved reports whether a topic or filter belongs to Colony by its first level,
// which is then that of prefix. The other first levels are the users', but for the
// broker's, which begin with $.
func Reserved(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return first == root
}
