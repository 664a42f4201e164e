package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func TestRestartable(t *testing.T) {
	t.Parallel()
	spec := protocol.Marshal(protocol.DeploymentSpec{V: 1, Deployment: "app", Components: []protocol.Component{{Name: "main", Containers: []protocol.Container{{Name: "web"}}}}})
	digest := protocol.DigestOf(spec)
	for name, tt := range map[string]struct {
		rec  Record
		want string // part of the error; empty: none
	}{
		"installed":           {Record{State: lifecycle.Installed}, ""},
		"installing":          {Record{State: lifecycle.Installing}, "by itself"},
		"rolling back":        {Record{State: lifecycle.RollingBack}, "by itself"},
		"deleting":            {Record{State: lifecycle.Deleting}, "no containers"},
		"failed, recovers":    {Record{State: lifecycle.Failed, Digest: digest, Spec: spec, Fallback: Fallback{Proven: digest}}, ""},
		"failed, former runs": {Record{State: lifecycle.Failed, Active: digest, ActiveSpec: spec}, ""},
		"failed":              {Record{State: lifecycle.Failed, Digest: digest, Code: protocol.CrashLoop}, "colony retry"},
	} {
		err := tt.rec.Restartable()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestRestartChooses(t *testing.T) {
	t.Parallel()
	spec := &protocol.DeploymentSpec{Deployment: "app", Components: []protocol.Component{
		{Name: "main", Containers: []protocol.Container{{Name: "job"}, {Name: "web", Restart: protocol.Restart{Policy: protocol.RestartAlways}}, {Name: "side", NetworkOf: "web", Restart: protocol.Restart{Policy: protocol.RestartAlways}}}},
		{Name: "other", Containers: []protocol.Container{{Name: "web", Restart: protocol.Restart{Policy: protocol.RestartAlways}}}},
	}}
	spec.Components[0].Containers[0].Restart.Policy = protocol.RestartNo
	w := NewWatch(spec, Supervise, DefaultLimits())
	digests := Identities(spec)
	id := func(component, name string) engine.ID {
		return engine.ID{Deployment: "app", Component: component, Name: name}
	}
	w.Observe([]engine.Status{
		{ID: id("main", "job"), Digest: digests[0][0], State: engine.Exited},
		{ID: id("main", "side"), Digest: digests[0][2], State: engine.Running},
		{ID: id("main", "web"), Digest: digests[0][1], State: engine.Running},
		{ID: id("other", "web"), Digest: digests[1][0], State: engine.Running},
	}, time.Now())
	for name, tt := range map[string]struct {
		want  func(component, container string) bool
		exact bool
		names string
	}{
		"all":                    {func(string, string) bool { return true }, false, "[main/web main/side other/web]"},
		"one":                    {func(c, n string) bool { return c == "main" && n == "web" }, true, "[main/web main/side]"},
		"what has done its work": {func(_, n string) bool { return n == "job" }, false, "[]"},
		"by its name":            {func(_, n string) bool { return n == "job" }, true, "[main/job]"},
		"the other component":    {func(c, _ string) bool { return c == "other" }, false, "[other/web]"},
	} {
		names := []string{}
		for _, c := range w.Restart(tt.want, tt.exact) {
			names = append(names, c.ID.Component+"/"+c.ID.Name)
		}
		if got := fmt.Sprint(names); got != tt.names {
			t.Errorf("%s: %s, want %s", name, got, tt.names)
		}
	}
}
