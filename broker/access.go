package broker

import (
	"crypto/tls"
	"strings"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// ConnectInfo is what a connection says of itself, and what its transport proves.
type ConnectInfo struct {
	Listener string
	Network  Network
	Remote   string // address of the peer
	ClientID string
	Username string
	Password []byte
	// TLS is the state of the TLS connection, or nil.
	TLS *tls.ConnectionState
}

// An Identity is who a client is, as access control established it.
type Identity struct {
	// Name is unique; a client id belongs to the identity that uses it.
	Name string
	Site protocol.SiteID
	// Node is empty for the Local Orchestrator of a site.
	Node protocol.NodeID
}

// Access decides what clients may do. Its methods are called concurrently, and
// often: MayPublish for each message, MaySubscribe for each delivery too.
type Access interface {
	// Connect returns who the client is, or an error: of Kind Denied if it may not
	// connect, Invalid if its client id is not its own.
	Connect(info ConnectInfo) (Identity, error)
	// MayPublish reports whether id may publish to a topic name.
	MayPublish(id Identity, name string) bool
	// MaySubscribe reports whether id may receive every topic that a filter matches.
	// A topic name is a filter too. The $share prefix has been taken off.
	MaySubscribe(id Identity, filter string) bool
}

// identify reads who a client is from its user name, node.site or site; the
// client id must be the same.
func identify(info ConnectInfo) (Identity, error) {
	if info.Username == "" {
		return Identity{}, protocol.Errorf(protocol.Denied, "no user name: want <node>.<site> or <site>")
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

// A table is an Access: the kinds of topics of its own that an identity may use.
// What the table does not name is denied.
type table struct {
	site      protocol.SiteID // "": every site
	nodes     bool            // clients are nodes, not sites
	publish   map[topic.Kind]bool
	subscribe map[topic.Kind]bool
}

// SiteAccess is the access control of the broker of a site's Local Orchestrator.
// Its clients are the nodes of that site. A node publishes its own presence,
// heartbeat, inventory and status, subscribes to its own desired state, and shares
// the site's machine data.
func SiteAccess(site protocol.SiteID) Access {
	return table{
		site:      site,
		nodes:     true,
		publish:   kinds(topic.NodeOnline, topic.Heartbeat, topic.Inventory, topic.Status, topic.Data),
		subscribe: kinds(topic.NodeDesired, topic.Data),
	}
}

// CentralAccess is the access control of the Central Orchestrator's broker. Its
// clients are the Local Orchestrators, one per site. Each publishes its presence,
// its journal and its machine data, and subscribes to its own desired state and
// acknowledgements.
func CentralAccess() Access {
	return table{
		publish:   kinds(topic.SiteOnline, topic.Up, topic.Data),
		subscribe: kinds(topic.SiteDesired, topic.Ack),
	}
}

func kinds(ks ...topic.Kind) map[topic.Kind]bool {
	m := make(map[topic.Kind]bool, len(ks))
	for _, k := range ks {
		m[k] = true
	}
	return m
}

// Connect implements Access.
func (t table) Connect(info ConnectInfo) (Identity, error) {
	id, err := identify(info)
	if err != nil {
		return Identity{}, err
	}
	if t.nodes && id.Node == "" {
		return Identity{}, protocol.Errorf(protocol.Denied, "%s is no node: this is the broker of a site, for <node>.<site>", id.Name)
	}
	if !t.nodes && id.Node != "" {
		return Identity{}, protocol.Errorf(protocol.Denied, "%s is a node: connect it to the broker of its site", id.Name)
	}
	if t.site != "" && id.Site != t.site {
		return Identity{}, protocol.Errorf(protocol.Denied, "%s belongs to site %s: this is the broker of site %s", id.Name, id.Site, t.site)
	}
	return id, nil
}

// MayPublish implements Access.
func (t table) MayPublish(id Identity, name string) bool { return owns(id, name, t.publish) }

// MaySubscribe implements Access.
func (t table) MaySubscribe(id Identity, filter string) bool {
	if !strings.ContainsAny(filter, "+#") {
		return owns(id, filter, t.subscribe)
	}
	// Of the protocol's topics only machine data has a tail to put a wildcard in.
	return t.subscribe[topic.Data] && covers(topic.Prefix+string(id.Site)+"/data/#", filter)
}

// owns reports whether a topic is of one of the kinds and speaks of id itself.
func owns(id Identity, name string, allowed map[topic.Kind]bool) bool {
	t, err := topic.Parse(name)
	if err != nil || !allowed[t.Kind] || t.Site != id.Site {
		return false
	}
	return t.Node == "" || t.Node == id.Node
}

// covers reports whether every topic that filter matches is matched by allowed too.
func covers(allowed, filter string) bool {
	for {
		a, arest, amore := strings.Cut(allowed, "/")
		f, frest, fmore := strings.Cut(filter, "/")
		switch {
		case a == "#":
			return true
		case f == "#", a != "+" && a != f:
			return false
		case !amore && !fmore:
			return true
		case !fmore:
			return false // a filter without the tail; allowed asks for more levels
		case !amore:
			return false
		}
		allowed, filter = arest, frest
	}
}
