package access_test

import (
	"crypto/tls"
	"errors"
	"testing"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/identity"
)

// TestCertified tries which certificates are admitted, by which listener, and as which identity.
func TestCertified(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what     string
		control  access.Control
		tier     identity.Tier
		listener string
		peer     identity.Name // the zero value: the certificate does not count
		user, id string
		want     string // name of the identity; "": refused
	}{
		{"an lo", access.CO{}, identity.LO, "machines", identity.OfLO("plant1"), "plant1", "plant1", "plant1"},
		{"an lo that names itself another", access.CO{}, identity.LO, "machines", identity.OfLO("plant1"), "plant2", "plant2", ""},
		{"an lo with another client id", access.CO{}, identity.LO, "machines", identity.OfLO("plant1"), "plant1", "plant2", ""},
		{"an lo as an application", access.CO{}, identity.LO, "machines", identity.OfLO("plant1"), "app@plant1", "app@plant1", ""},
		{"an lo without a name", access.CO{}, identity.LO, "machines", identity.OfLO("plant1"), "", "", ""},
		{"a node at the co", access.CO{}, identity.LO, "machines", identity.OfNode("plant1", "g1"), "g1.plant1", "g1.plant1", ""},
		{"the co as a site of its name", access.CO{}, identity.LO, "machines", identity.OfCO(), "co", "co", ""},
		{"a site named co", access.CO{}, identity.LO, "machines", identity.OfLO("co"), "co", "co", "co"},
		{"a certificate that does not count", access.CO{}, identity.LO, "machines", identity.Name{}, "plant1", "plant1", ""},
		{"a site without a certificate", access.CO{}, identity.LO, "mqtt", identity.Name{}, "plant1", "plant1", ""},
		{"an application", access.CO{}, identity.LO, "mqtt", identity.Name{}, "app@plant1", "app@plant1", "app@plant1"},
		{"a node", access.Site("plant1"), identity.EN, "machines", identity.OfNode("plant1", "g1"), "g1.plant1", "g1.plant1", "g1.plant1"},
		{"a node of another site", access.Site("plant1"), identity.EN, "machines", identity.OfNode("plant2", "g1"), "g1.plant2", "g1.plant2", ""},
		{"a node of another site as one of this", access.Site("plant1"), identity.EN, "machines", identity.OfNode("plant2", "g1"), "g1.plant1", "g1.plant1", ""},
		{"the lo of another site", access.Site("plant1"), identity.EN, "machines", identity.OfLO("plant2"), "plant2", "plant2", ""},
		{"a node without a certificate", access.Site("plant1"), identity.EN, "mqtt", identity.Name{}, "g1.plant1", "g1.plant1", ""},
		{"a workload", access.Site("plant1"), identity.EN, "mqtt", identity.Name{}, "plc@plant1", "plc@plant1", "plc@plant1"},
	} {
		a := access.Certified{Control: c.control, Listener: "machines", Tier: c.tier, Peer: func(tls.ConnectionState) (identity.Peer, error) {
			if c.peer == (identity.Name{}) {
				return identity.Peer{}, errors.New("revoked")
			}
			return identity.Peer{Name: c.peer}, nil
		}}
		info := access.ConnectInfo{Listener: c.listener, Username: c.user, ClientID: c.id}
		if c.listener == "machines" {
			info.TLS = &tls.ConnectionState{}
		}
		id, err := a.Connect(info)
		if (err == nil) != (c.want != "") || id.Name != c.want {
			t.Errorf("%s: %+v, %v, want %q", c.what, id, err, c.want)
		}
	}
	a := access.Certified{Control: access.CO{}, Listener: "machines", Tier: identity.LO}
	if id, err := a.Connect(access.ConnectInfo{Listener: "machines", Username: "plant1", ClientID: "plant1"}); err == nil {
		t.Errorf("without TLS: %+v", id)
	}
}
