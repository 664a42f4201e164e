package enginetest

import (
	"testing"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// vacantPorts asks for ports that a deployment publishes, for itself and for another one.
func vacantPorts(t *testing.T, f Fixture) {
	c := web(f, "wait")
	c.Spec.Ports = []protocol.Port{{Container: 80}}
	begin(t, f.Engine, c)
	all, err := f.Engine.List(t.Context())
	must(t, err)
	taken := all[0].Ports[0]
	same := []protocol.Port{{Container: 8080, Host: taken.Host}}
	for what, tt := range map[string]struct {
		d     protocol.DeploymentName
		ports []protocol.Port
		free  bool
	}{
		"its own":                   {c.ID.Deployment, same, true},
		"that of another one":       {"other", same, false},
		"the same of UDP":           {"other", []protocol.Port{{Container: 80, Host: taken.Host, Protocol: "udp"}}, true},
		"one that the node selects": {"other", []protocol.Port{{Container: 80}}, true},
		"none":                      {"other", nil, true},
	} {
		err := f.Engine.Vacant(t.Context(), tt.d, tt.ports)
		if tt.free && err != nil {
			t.Errorf("%s: %v, want it free", what, err)
		}
		if !tt.free && engine.CodeOf(err) != protocol.StartFailed {
			t.Errorf("%s: %v, want the code %s", what, err, protocol.StartFailed)
		}
	}
	must(t, f.Engine.Remove(t.Context(), c.ID))
	must(t, f.Engine.Vacant(t.Context(), "other", same))
}
