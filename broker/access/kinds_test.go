package access

import (
	"testing"

	"github.com/colonyfleet/colony/protocol/wiretest"
)

const topics = "../../protocol/topic/topic.go"

// TestEveryKindIsOpen wants each kind of topic open to the tiers that send and receive it: a broker
// disconnects a client that publishes another one.
func TestEveryKindIsOpen(t *testing.T) {
	t.Parallel()
	site, co := Site("s1"), CO{}
	node, lo := Identity{Name: "g1.s1", Site: "s1", Node: "g1"}, Identity{Name: "s1", Site: "s1"}
	for _, kind := range wiretest.Kinds(t, topics, "EN → LO") {
		if name := wiretest.ForNode(kind, "s1", "g1"); !site.MayPublish(node, name) {
			t.Errorf("%s: a node may not publish it at the broker of its site", name)
		}
		if name := wiretest.ForNode(kind, "s1", "g2"); site.MayPublish(node, name) {
			t.Errorf("%s: a node may publish in the name of another", name)
		}
	}
	for _, kind := range wiretest.Kinds(t, topics, "LO → EN") {
		name := wiretest.ForNode(kind, "s1", "g1")
		if !site.MaySubscribe(node, wiretest.Filter(name)) {
			t.Errorf("%s: a node may not subscribe to it", name)
		}
		// The broker asks once more for each message.
		if !site.MaySubscribe(node, name) || site.MaySubscribe(Identity{Name: "g2.s1", Site: "s1", Node: "g2"}, name) && name != wiretest.ForSite(kind, "s1") {
			t.Errorf("%s: the node does not receive it, or another one does", name)
		}
		if site.MayPublish(node, name) {
			t.Errorf("%s: a node may publish it", name)
		}
	}
	for _, kind := range wiretest.Kinds(t, topics, "LO → CO") {
		if name := wiretest.ForSite(kind, "s1"); !co.MayPublish(lo, name) {
			t.Errorf("%s: an LO may not publish it at the CO's broker", name)
		}
		if name := wiretest.ForSite(kind, "s2"); co.MayPublish(lo, name) {
			t.Errorf("%s: an LO may publish in the name of another site", name)
		}
	}
	for _, kind := range wiretest.Kinds(t, topics, "CO → LO") {
		name := wiretest.ForSite(kind, "s1")
		if !co.MaySubscribe(lo, wiretest.Filter(name)) {
			t.Errorf("%s: an LO may not subscribe to it", name)
		}
		if !co.MaySubscribe(lo, name) || co.MaySubscribe(Identity{Name: "s2", Site: "s2"}, name) {
			t.Errorf("%s: the LO does not receive it, or that of another site does", name)
		}
		if co.MayPublish(lo, name) {
			t.Errorf("%s: an LO may publish it", name)
		}
	}
}
