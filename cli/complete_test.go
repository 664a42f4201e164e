package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api/images"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
)

// TestCompletion asks for what a shell offers: what the CO has, by the name of the argument.
func TestCompletion(t *testing.T) {
	t.Parallel()
	s := serve(t, map[string]any{
		"GET /sites?limit=100":            map[string]any{"items": []fleet.Site{{ID: "plant"}, {ID: "quay"}}},
		"GET /sites?limit=100&q=pl":       map[string]any{"items": []fleet.Site{{ID: "plant"}, {ID: "old-plant"}}},
		"GET /nodes?limit=100&q=plant%2F": map[string]any{"items": []fleet.Node{{Site: "plant", ID: "gw-1"}}},
		"GET /deployments?limit=100":      map[string]any{"items": []fleet.Deployment{{Site: "plant", Name: "hello"}}},
		"GET /apps?limit=100":             map[string]any{"items": []fleet.App{{ID: "hello", Versions: []string{"1.1.0", "1.0.0"}}}},
		"GET /proposals?limit=100":        map[string]any{"items": []proposal.Proposal{{ID: "p1"}}},
		"GET /images?limit=100":           images.Images{Items: []images.Image{{Repository: "a/b", Tag: "1"}, {Repository: "a/b", Digest: "sha256:0"}}},
	})
	for _, tt := range []struct{ line, want string }{
		{"site show |", "plant quay"},
		{"site show |pl", "plant"},
		{"node show |plant/", "plant/gw-1"},
		{"deployment show |", "plant/hello"},
		{"volume list |pl", "plant"},
		{"app show |hello@1.0", "hello@1.0.0"},
		{"app remove |", "hello@1.1.0 hello@1.0.0"},
		{"deploy hello --site |pl", "plant"},
		{"proposal confirm |", "p1"},
		{"image remove |", "a/b:1"},
	} {
		line, typed, _ := strings.Cut(tt.line, "|")
		var out bytes.Buffer
		a := &app{command.Env{Out: &out, Err: &out}}
		root := a.root("1")
		root.SetOut(&out)
		root.SetErr(&bytes.Buffer{})
		root.SetArgs(append(append([]string{"__complete", "--url", s.URL}, strings.Fields(line)...), typed))
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%s: %v", tt.line, err)
			continue
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got := strings.Join(lines[:len(lines)-1], " "); got != tt.want {
			t.Errorf("%s offers %q, want %q (%s)", tt.line, got, tt.want, lines[len(lines)-1])
		}
	}
}
