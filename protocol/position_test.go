package protocol

import "testing"

// TestHeldRepeatsTheStatedContent holds that a receiver, which may not know all fields of
// a later sender, reports the digest that the sender stated, and that stating it changes
// no digest.
func TestHeldRepeatsTheStatedContent(t *testing.T) {
	t.Parallel()
	stated := DigestOf([]byte("a state with a field of a later release"))
	site := SiteDesired{V: Version, Site: "s1", Position: Position{1, 2}, Removals: []Removal{{Deployment: "web", Position: Position{1, 2}}}}
	node := NodeDesired{V: Version, Node: "n1", Position: Position{1, 2}, Removals: []NodeRemoval{{Deployment: "web", Site: Position{1, 2}}}}
	computedSite, computedNode := site.ContentDigest(), node.ContentDigest()
	if got := site.Held().Digest; got != computedSite {
		t.Errorf("a site holds %s of a state that states no digest, want the computed %s", got, computedSite)
	}
	if got := node.Held().Digest; got != computedNode {
		t.Errorf("a node holds %s of a state that states no digest, want the computed %s", got, computedNode)
	}
	site.Content, node.Content = stated, stated
	var arrivedSite SiteDesired
	var arrivedNode NodeDesired
	if err := Unmarshal(Marshal(&site), &arrivedSite); err != nil {
		t.Fatal(err)
	}
	if err := Unmarshal(Marshal(&node), &arrivedNode); err != nil {
		t.Fatal(err)
	}
	if got := arrivedSite.Held().Digest; got != stated {
		t.Errorf("a site holds %s, want the stated %s", got, stated)
	}
	if got := arrivedNode.Held().Digest; got != stated {
		t.Errorf("a node holds %s, want the stated %s", got, stated)
	}
	if got := arrivedSite.ContentDigest(); got != computedSite {
		t.Errorf("the digest of the site's state is %s once it is stated, want %s", got, computedSite)
	}
	if got := arrivedNode.ContentDigest(); got != computedNode {
		t.Errorf("the digest of the node's state is %s once it is stated, want %s", got, computedNode)
	}
}
