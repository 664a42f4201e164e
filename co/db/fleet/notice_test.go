package fleetdb_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
)

// TestNotice records what is found anew at each start once, and by its whole text.
func TestNotice(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	for _, e := range []fleet.Event{
		{Kind: fleet.FileIgnored, Message: "a"},
		{Kind: fleet.FileIgnored, Message: "a"},
		{Kind: fleet.FileIgnored, Message: "b"},
		{Kind: fleet.DeploymentWaiting, Deployment: "d", Message: "a"},
		{Kind: fleet.DeploymentWaiting, Deployment: "d", Message: "a"},
	} {
		if err := s.Notice(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	got := kinds(testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{})))
	if d := cmp.Diff([]string{"file_ignored", "file_ignored", "deployment_waiting d"}, got); d != "" {
		t.Error(d)
	}
}
