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

// TestEnding has containers exit that a restart on request ends, seen by the agent that stopped them, or by the next one: that is no crash and no end
// of work, once. What exits later, or once more, counts.
func TestEnding(t *testing.T) {
	t.Parallel()
	once := protocol.Container{Name: "k", Restart: protocol.Restart{Policy: protocol.RestartNo}}
	limited := once
	limited.Restart = protocol.Restart{Policy: protocol.RestartOnFailure, Max: 1}
	for _, c := range []protocol.Container{once, limited, always("k")} {
		for _, code := range []int32{0, 143} {
			t.Run(fmt.Sprintf("%s ends with %d", c.Restart.Policy, code), func(t *testing.T) {
				t.Parallel()
				s := newStage(t, Supervise, component("a", c)).proven().run("a/k")
				ending := s.watch.Runs([]engine.Container{{ID: engine.ID{Deployment: "app", Component: "a", Name: "k"}}})
				if len(ending) != 1 {
					t.Fatalf("runs %+v", ending)
				}
				next := func() *Watch {
					w := NewWatch(s.watch.spec, Supervise, DefaultLimits())
					w.limits.MinHealthy = 0
					w.Ending(ending)
					return w
				}
				s.watch = next()
				s.look().after(9*time.Second).exit("a/k", code).wants("start a/k")
				s.after(time.Hour).look().wants("start a/k") // also where it takes long to start
				s.watch = next()
				s.look().wants("start a/k") // it ended while no agent ran
				s.run("a/k").after(time.Second).exit("a/k", 1)
				if s.watch.units[0].failures != 1 {
					t.Errorf("%d failures after an exit of the run that follows, want 1", s.watch.units[0].failures)
				}
			})
		}
	}
	s := newStage(t, Supervise, component("a", once)).proven().run("a/k")
	s.watch.Ending(s.watch.Runs([]engine.Container{{ID: engine.ID{Deployment: "app", Component: "a", Name: "k"}}}))
	s.look().after(11*time.Second).exit("a/k", 1).wants("failed crash_loop") // it was not stopped
}
