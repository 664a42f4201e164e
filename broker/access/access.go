// Package access identifies the clients of a broker, and says what each may publish and subscribe
// to: by tables, one for the broker of a site and one for that of the CO.
package access

import (
	"crypto/tls"
	"fmt"
	"strings"

	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// ConnectInfo is what a connection says of itself, and what its transport proves.
type ConnectInfo struct {
	Listener string // name of the listener
	Network  string // its transport: tcp, tls, ws or unix
	Remote   string // address of the peer
	// ClientID is empty if the client asks for one. It is then given one that
	// begins with the name of its identity and "/".
	ClientID string
	Username string // user name of CONNECT; empty: none
	Password []byte // password of CONNECT; nil: none
	// TLS is the state of the TLS connection, or nil.
	TLS *tls.ConnectionState
}

// An Identity is the identity of a client, as access control established it.
type Identity struct {
	// Name is unique; a client id belongs to the identity that uses it.
	Name string
	// Site is empty for an application that may speak with every site.
	Site protocol.SiteID
	// Node is empty for all but the Execution Nodes of a site.
	Node protocol.NodeID
	// Client is the name of a workload or application that is no part of Colony,
	// and empty for a node or a site.
	Client string
	// Device says that it has an account of its own, which Client names.
	Device bool
}

// allSites stands in a user name for every site.
const allSites = "*"

// identify derives a client's identity from its user name: <node>.<site>, <site>, <name>@<site> or
// <name>@*. It is proved only on a listener where clients have certificates; see Certified. The
// client id of a node or a site must equal the user name; that of another client may also be empty,
// or be its user name with a slash and more text. Only names of other clients have an @, and none
// has a slash. So a client cannot use the client id of another identity.
func identify(info ConnectInfo) (Identity, error) {
	user := info.Username
	name, site, isClient := strings.Cut(user, "@")
	if !isClient {
		return identifyTier(info)
	}
	if _, err := protocol.ParseNodeID(name); err != nil {
		return Identity{}, protocol.Errorf(protocol.Denied, "user name %q: the part before the @: want 1 to 63 of a-z, 0-9 and -", user)
	}
	id := Identity{Name: user, Client: name}
	if site != allSites {
		var err error
		if id.Site, err = protocol.ParseSiteID(site); err != nil {
			return Identity{}, protocol.Errorf(protocol.Denied, "user name %q: %w", user, err)
		}
	}
	if info.ClientID != "" && info.ClientID != user && !strings.HasPrefix(info.ClientID, user+"/") {
		return Identity{}, protocol.Errorf(protocol.Invalid, "client id %q of user %q: want none, %s, or one that begins with %s/", info.ClientID, user, user, user)
	}
	return id, nil
}

// identifyTier is identify for nodes and sites.
func identifyTier(info ConnectInfo) (Identity, error) {
	if info.Username == "" {
		return Identity{}, protocol.Errorf(protocol.Denied, "no user name: want <name>@<site>, or <node>.<site> or <site> for a part of Colony")
	}
	if info.ClientID != info.Username {
		return Identity{}, protocol.Errorf(protocol.Invalid, "client id %q of user %q: want the same", info.ClientID, info.Username)
	}
	id := Identity{Name: info.Username}
	var err error
	node, site, isNode := strings.Cut(info.Username, ".")
	if !isNode {
		site = node
	} else if id.Node, err = protocol.ParseNodeID(node); err != nil {
		return Identity{}, protocol.Errorf(protocol.Denied, "user name %q: %w", info.Username, err)
	}
	if id.Site, err = protocol.ParseSiteID(site); err != nil {
		return Identity{}, protocol.Errorf(protocol.Denied, "user name %q: %w", info.Username, err)
	}
	return id, nil
}

// A Site is the access control of the broker of that site's Local Orchestrator.
// Its clients are the nodes and the workloads of the site. A node publishes its
// own presence, heartbeat, inventory and status, and subscribes to its own desired
// state. All of them share the site's machine data, and local topics: those whose
// first level is neither colony nor begins with $.
type Site protocol.SiteID

// Connect implements Access.
func (a Site) Connect(info ConnectInfo) (Identity, error) {
	id, err := identify(info)
	switch {
	case err != nil:
		return Identity{}, err
	case id.Node == "" && id.Client == "":
		return Identity{}, protocol.Errorf(protocol.Denied, "%s is no node: this is the broker of a site, for <node>.<site> and <name>@<site>", id.Name)
	case id.Site == "":
		return Identity{}, protocol.Errorf(protocol.Denied, "%s: this is the broker of site %s: connect as %s@%s", id.Name, a.id(), id.Client, a.id())
	case id.Site != a.id():
		return Identity{}, protocol.Errorf(protocol.Denied, "%s belongs to site %s: this is the broker of site %s", id.Name, id.Site, a.id())
	}
	return id, nil
}

// MayPublish implements Access.
func (a Site) MayPublish(id Identity, name string) bool {
	if isLocal(name) {
		return !strings.ContainsAny(name, "+#\x00")
	}
	t, err := topic.Parse(name)
	if err != nil || t.Site != a.id() {
		return false
	}
	switch t.Kind {
	case topic.Data:
		return true
	case topic.NodeOnline, topic.Heartbeat, topic.Inventory, topic.Status, topic.NodeReport, topic.CommandResult, topic.NodeLive, topic.NodeTimeAsk:
		return id.Node != "" && t.Node == id.Node
	}
	return false
}

// MaySubscribe implements Access.
func (a Site) MaySubscribe(id Identity, want string) bool {
	if isLocal(want) || filter.Covers(topic.ForTail(topic.Data, a.id(), "#"), want) {
		return true
	}
	if id.Node == "" {
		return false
	}
	switch want {
	case topic.ForNode(topic.NodeDesired, a.id(), id.Node), topic.ForSite(topic.Revocations, a.id()), topic.ForNode(topic.NodeTime, a.id(), id.Node):
		return true
	}
	return filter.Covers(topic.ForNodeCommand(topic.NodeCommand, a.id(), id.Node, topic.AnyCommand), want) ||
		filter.Covers(topic.ForNodeCommand(topic.NodeCredit, a.id(), id.Node, topic.AnyCommand), want) ||
		filter.Covers(topic.ForNodeCommand(topic.NodeInput, a.id(), id.Node, topic.AnyCommand), want)
}

// Refusal says why a filter was refused.
func (a Site) Refusal(_ Identity, filter string) string {
	if first, _, _ := strings.Cut(filter, "/"); first == "#" || first == "+" {
		return fmt.Sprintf("filter %s covers colony/, which is not open as a whole: begin with a literal level, such as line1/#", filter)
	}
	return fmt.Sprintf("filter %s: want %s, or a local topic", filter, topic.ForTail(topic.Data, a.id(), "#"))
}

func (a Site) id() protocol.SiteID { return protocol.SiteID(a) }

// isLocal reports whether the first level of a topic or filter is a literal that
// leaves it to the site's own clients.
func isLocal(filter string) bool {
	first, _, _ := strings.Cut(filter, "/")
	return filter != "" && !topic.Reserved(filter) && first != "+" && first != "#" && !strings.HasPrefix(first, "$")
}

// CO is the access control of the Central Orchestrator's broker. Its
// clients are the Local Orchestrators, one per site, and applications. A Local
// Orchestrator publishes its presence, its batches and its acknowledgements, and
// subscribes to what is sent to it. An application subscribes to the machine data
// of its site, or of all sites, and publishes what is to be delivered there.
type CO struct{}

// Connect implements Access.
func (CO) Connect(info ConnectInfo) (Identity, error) {
	id, err := identify(info)
	if err != nil {
		return Identity{}, err
	}
	if id.Node != "" {
		return Identity{}, protocol.Errorf(protocol.Denied, "%s is a node: connect it to the broker of its site", id.Name)
	}
	return id, nil
}

// MayPublish implements Access.
func (CO) MayPublish(id Identity, name string) bool {
	t, err := topic.Parse(name)
	if err != nil || id.Site != "" && t.Site != id.Site {
		return false
	}
	switch t.Kind {
	case topic.In:
		return id.Client != ""
	case topic.SiteOnline, topic.Up, topic.DownAck, topic.SiteLive, topic.SiteTimeAsk:
		return id.Client == "" && t.Site == id.Site
	}
	return false
}

// MaySubscribe implements Access.
func (CO) MaySubscribe(id Identity, want string) bool {
	if id.Client != "" {
		return filter.Covers(dataOf(id), want)
	}
	switch want {
	case topic.ForSite(topic.SiteDesired, id.Site), topic.ForSite(topic.SiteTokens, id.Site), topic.ForSite(topic.Revocations, id.Site), topic.ForSite(topic.Ack, id.Site), topic.ForSite(topic.Down, id.Site),
		topic.ForSite(topic.SiteTime, id.Site):
		return id.Site != ""
	}
	return id.Site != "" && (filter.Covers(topic.ForCommand(topic.SiteCommand, id.Site, topic.AnyCommand), want) ||
		filter.Covers(topic.ForCommand(topic.SiteCredit, id.Site, topic.AnyCommand), want) ||
		filter.Covers(topic.ForCommand(topic.SiteInput, id.Site, topic.AnyCommand), want))
}

// Refusal says why a filter was refused.
func (CO) Refusal(id Identity, filter string) string {
	if id.Client == "" {
		return fmt.Sprintf("filter %s: want a topic of site %s itself", filter, id.Site)
	}
	return fmt.Sprintf("filter %s: want one that %s covers", filter, dataOf(id))
}

// dataOf is the filter of all machine data that an application may receive.
func dataOf(id Identity) string {
	if id.Site == "" {
		return topic.ForTail(topic.Data, "+", "#")
	}
	return topic.ForTail(topic.Data, id.Site, "#")
}
