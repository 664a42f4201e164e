package commandsapi_test

import (
	"testing"

	commandsapi "github.com/colonyfleet/colony/co/api/commands"
)

// TestWhose names whose line it is, and whose lines are missing.
func TestWhose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		whose commandsapi.Whose
		want  string
	}{{commandsapi.Whose{}, ""}, {commandsapi.Whose{Nodes: true}, "[gw-1] "}, {commandsapi.Whose{Containers: true}, "[web/nginx] "}, {commandsapi.Whose{Nodes: true, Containers: true}, "[gw-1/web/nginx] "}} {
		if got := c.whose.Prefix("gw-1", "web", "nginx"); got != c.want {
			t.Errorf("%+v: %q, want %q", c.whose, got, c.want)
		}
	}
	if got := (commandsapi.Whose{Containers: true}).Prefix("gw-1", "", ""); got != "" {
		t.Errorf("of no container: %q", got)
	}
	if got := (commandsapi.Gap{Node: "gw-1", Component: "web", Container: "nginx"}).Of(); got != "gw-1/web/nginx" {
		t.Errorf("a gap of %q", got)
	}
}
