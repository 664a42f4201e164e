package logstream_test

import (
	"testing"

	"github.com/colonyfleet/colony/co/api/commands/logstream"
)

// TestWhose names whose line it is, and whose lines are missing.
func TestWhose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		whose logstream.Whose
		want  string
	}{{logstream.Whose{}, ""}, {logstream.Whose{Nodes: true}, "[gw-1] "}, {logstream.Whose{Containers: true}, "[web/nginx] "}, {logstream.Whose{Nodes: true, Containers: true}, "[gw-1/web/nginx] "}} {
		if got := c.whose.Prefix("gw-1", "web", "nginx"); got != c.want {
			t.Errorf("%+v: %q, want %q", c.whose, got, c.want)
		}
	}
	if got := (logstream.Whose{Containers: true}).Prefix("gw-1", "", ""); got != "" {
		t.Errorf("of no container: %q", got)
	}
	if got := (logstream.Gap{Node: "gw-1", Component: "web", Container: "nginx"}).Of(); got != "gw-1/web/nginx" {
		t.Errorf("a gap of %q", got)
	}
}
