package placement

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// TestNowhere looks past what ends by itself: that a node is away, or restricted.
func TestNowhere(t *testing.T) {
	t.Parallel()
	nodes := []Node{{ID: "gw", Inventory: &protocol.Inventory{Labels: map[string]string{"hall": "7"}}, Restricted: Restricted{Closed: "cordoned"}}}
	e := protocol.SiteEntry{Deployment: "meter", Placement: protocol.Placement{Selector: map[string]string{"hall": "7"}}}
	if why := Nowhere(e, nodes); why != "" || nodes[0].Online || nodes[0].Restricted.Closed == "" {
		t.Errorf("%q; %+v", why, nodes[0])
	}
	e.Placement.Selector["hall"] = "8"
	if why := Nowhere(e, nodes); !strings.Contains(why, `its label hall is "7"`) {
		t.Errorf("%q", why)
	}
	if why := Nowhere(e, nil); !strings.Contains(why, "no nodes yet") {
		t.Errorf("%q", why)
	}
}

// TestRestrictedBy has each kind mean what the scheduler keeps to.
func TestRestrictedBy(t *testing.T) {
	t.Parallel()
	hold := restriction.Restriction{Kind: restriction.Hold, Reason: "h"}
	drain := restriction.Restriction{Kind: restriction.Drain, Reason: "d", Force: true}
	if r := RestrictedBy(restriction.Restriction{Kind: restriction.Cordon, Reason: "c"}); r.Closed == "" || r.Drained != "" || r.Held != "" {
		t.Errorf("cordon: %+v", r)
	}
	if r := RestrictedBy(hold); r.Held == "" || r.Closed != r.Held {
		t.Errorf("hold: %+v", r)
	}
	if r := RestrictedBy(drain, hold); r.Drained == "" || r.Closed != r.Drained || !r.Forced || r.Held == "" {
		t.Errorf("drain and hold: %+v", r)
	}
}
