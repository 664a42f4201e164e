package restart

import (
	"context"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestFailed restarts a deployment that works, and one that has FAILED: of that the output says when it is INSTALLED again.
func TestFailed(t *testing.T) {
	t.Parallel()
	spec := protocol.Marshal(&protocol.DeploymentSpec{Deployment: "shop", Components: []protocol.Component{{Name: "main", Containers: []protocol.Container{{Name: "web", Image: "r/i@sha256:0"}}}}})
	for state, want := range map[lifecycle.State]string{lifecycle.Installed: "main/web: restarted\n", lifecycle.Failed: "INSTALLED again once"} {
		kind := New(Options{
			Records: func() []plan.Record {
				return []plan.Record{{Deployment: "shop", State: state, Digest: "d", Spec: spec, Fallback: plan.Fallback{Proven: "d"}, Code: protocol.CrashLoop}}
			},
			Restart: func(context.Context, protocol.DeploymentName, func(component, container string) bool, bool) ([]engine.ID, error) {
				return []engine.ID{{Deployment: "shop", Component: "main", Name: "web"}}, nil
			},
		})
		out, err := kind.Run(t.Context(), command.Request{Command: &wire.Command{Kind: wire.Restart, Args: protocol.Marshal(wire.Subject{Deployment: "shop"})}})
		if err != nil || !strings.Contains(out, want) || state == lifecycle.Installed && out != want {
			t.Errorf("%s: %q, %v", state, out, err)
		}
	}
}
