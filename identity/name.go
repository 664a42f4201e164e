// Package identity defines the names and certificates of Colony's machines. A machine has a name,
// which is one DNS name in the subject alternative name of its certificate (RFC 5280, section
// 4.2.1.6); the common name carries nothing. The CO's root issues the certificates of the CO, of
// each site's LO, and of one authority for each site, which can name nodes of that site and nothing
// else (name constraints, RFC 5280, section 4.2.1.10).
//
// Verify is the one place that decides whether a chain belongs to a machine. Keys are used through
// crypto.Signer and are ECDSA P-256.
package identity

import (
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// The suffixes of names. The top-level domain internal is reserved for private use (ICANN,
// 2024).
const (
	domain   = "colony.internal"
	coName   = "co." + domain
	loSuffix = ".lo." + domain
	enSuffix = ".en." + domain
)

// A Tier is the kind of a machine.
type Tier uint8

// The tiers.
const (
	CO Tier = iota + 1 // central orchestrator, each replica
	LO                 // local orchestrator of a site
	EN                 // node of a site
)

// A Name is the name of a machine. The zero value names none.
type Name struct {
	Tier Tier
	Site protocol.SiteID // empty for the CO
	Node protocol.NodeID // empty for all but nodes
}

// OfCO is the name of the CO.
func OfCO() Name { return Name{Tier: CO} }

// OfLO is the name of the LO of a site.
func OfLO(site protocol.SiteID) Name { return Name{Tier: LO, Site: site} }

// OfNode is the name of a node.
func OfNode(site protocol.SiteID, node protocol.NodeID) Name {
	return Name{Tier: EN, Site: site, Node: node}
}

// DNS is the name as it stands in a certificate.
func (n Name) DNS() string {
	switch n.Tier {
	case CO:
		return coName
	case LO:
		return string(n.Site) + loSuffix
	case EN:
		return string(n.Node) + "." + string(n.Site) + enSuffix
	}
	return ""
}

// String names the machine for people, as it names itself on MQTT: co, <site> or
// <node>.<site>.
func (n Name) String() string {
	switch n.Tier {
	case CO:
		return "co"
	case LO:
		return string(n.Site)
	case EN:
		return string(n.Node) + "." + string(n.Site)
	}
	return "nobody"
}

// ParseName reads a name of a certificate. It takes only what DNS would have written.
func ParseName(dns string) (Name, error) {
	if dns == coName {
		return OfCO(), nil
	}
	if site, ok := strings.CutSuffix(dns, loSuffix); ok {
		id, err := protocol.ParseSiteID(site)
		return Name{Tier: LO, Site: id}.or(err)
	}
	if rest, ok := strings.CutSuffix(dns, enSuffix); ok {
		node, site, _ := strings.Cut(rest, ".")
		n := Name{Tier: EN}
		var err error
		if n.Node, err = protocol.ParseNodeID(node); err == nil {
			n.Site, err = protocol.ParseSiteID(site)
		}
		return n.or(err)
	}
	return Name{}, protocol.Errorf(protocol.Denied, "name %q of a certificate: want %s, <site>%s or <node>.<site>%s", dns, coName, loSuffix, enSuffix)
}

func (n Name) or(err error) (Name, error) {
	if err != nil {
		return Name{}, protocol.Errorf(protocol.Denied, "name of a certificate: %w", err)
	}
	return n, nil
}

// siteDomain is what the authority of a site may name.
func siteDomain(site protocol.SiteID) string { return string(site) + enSuffix }
