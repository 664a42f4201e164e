package fault_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/compiler/fault"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// An error has the line of the parameter that is at fault; where several fill one text, it is
// unknown which it is, and all are named.
func TestLocate(t *testing.T) {
	t.Parallel()
	const raw = `spec:
  deploymentProfile:
    components:
      - name: web
  parameters:
    bind: {value: 127.0.0.1}
    port:
      value: "70000"
    other: {value: x}
`
	d := &v1rc3.Deployment{}
	d.Spec.Profile.Components = []v1rc3.Component{{Name: "web"}}
	d.Spec.Parameters = map[string]v1rc3.Parameter{}
	for name, variable := range map[string]string{"bind": "BIND", "port": "PORT", "other": "OTHER"} {
		d.Spec.Parameters[name] = v1rc3.Parameter{Targets: []v1rc3.Target{{Pointer: variable, Components: []string{"web"}}}}
	}
	for variables, want := range map[string]string{
		"PORT":           "line 8: spec.parameters.port.value: wrong",
		"BIND PORT":      "line 6: spec.parameters.bind.value: with the values of bind and port: wrong",
		"OTHER PORT GAP": "line 9: spec.parameters.other.value: with the values of other and port: wrong",
		"":               "line 4: spec.deploymentProfile.components[0]: wrong",
	} {
		err := fault.Locate(&fault.Fault{Component: "web", Variables: strings.Fields(variables), Err: protocol.Errorf(protocol.Invalid, "wrong")}, d, []byte(raw))
		if err.Error() != want || protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%q: %v (%s), want %s", variables, err, protocol.KindOf(err), want)
		}
	}
	away := &fault.Fault{Component: "web", Err: protocol.Errorf(protocol.Unavailable, "away")}
	if err := fault.Locate(away, d, []byte(raw)); !errors.Is(err, away) || err.Error() != "away" {
		t.Errorf("what may pass by itself: %v", err)
	}
}
