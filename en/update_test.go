package en_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine/engines"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

// fiveServices makes a version of five services, the processes of which have
// mark-name among their arguments. Change changes one of them.
func fiveServices(image, mark string, change func(*protocol.Container)) protocol.Assignment {
	var all []protocol.Container
	for n := range 5 {
		name := "s" + strconv.Itoa(n)
		c := protocol.Container{
			Name: name, Image: image, Command: []string{"wait", mark + "-" + name},
			Restart: protocol.Restart{Policy: protocol.RestartAlways},
		}
		if n > 0 { // each waits for the one before
			c.DependsOn = []protocol.Dependency{{Container: "s" + strconv.Itoa(n-1)}}
		}
		if name == "s1" {
			change(&c)
		}
		all = append(all, c)
	}
	spec := protocol.Marshal(protocol.DeploymentSpec{
		V: 1, ID: "9f3c2d1e-0000-4000-8000-000000000001", Deployment: "app", App: "com.example.app", AppVersion: "1",
		Components: []protocol.Component{{Name: "main", TimeoutMillis: 30_000, Containers: all}},
	})
	return protocol.Assignment{Deployment: "app", Digest: protocol.DigestOf(spec), Spec: spec, Attempt: 1}
}

// takeDown takes off the machine what the containers of an agent that was stopped go on with.
func takeDown(t *testing.T, o engines.Options, agent string) {
	t.Helper()
	o.StateDir = filepath.Join(agent, "engine")
	e, err := engines.Open(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := errors.Join(e.Halt(ctx), e.Close()); err != nil {
		t.Errorf("take down: %v", err)
	}
}

// An update of one service of five, and a failing one with its rollback, leave the
// processes of the other four alone.
func TestUpdateOfOneServiceAmongFive(t *testing.T) {
	t.Parallel()
	daemon, registry, s := containerdtest.Start(t), containerdtest.NewRegistry(t), newSite(t)
	image := registry.Add(t, "tools", containerdtest.Image{Program: containerdtest.Toolbox(t)})
	o := s.options(t, filepath.Join(daemon.Dir, "en"), nil)
	o.Engine.Address, o.Engine.Pool = daemon.Socket, "10.94.0.0/16"
	e := start(t, o)
	defer func() {
		stop(t, e)
		takeDown(t, o.Engine, o.StateDir)
	}()
	mark := filepath.Base(daemon.Dir)
	pids := func() (out []string) {
		for n := range 5 {
			out = append(out, strings.Join(processes(t, fmt.Sprintf("%s-s%d", mark, n)), "+"))
		}
		return out
	}
	settled := func(a protocol.Assignment, state lifecycle.State) {
		t.Helper()
		wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool {
			return m.State == state && m.Digest == a.Digest && m.Attempt == a.Attempt
		})
	}

	v1 := fiveServices(image, mark, func(*protocol.Container) {})
	s.want(t, 1, v1)
	settled(v1, lifecycle.Installed)
	before := pids()
	if slices.Contains(before, "") {
		t.Fatalf("processes %q, want five", before)
	}
	others := func(what string, want []string) {
		t.Helper()
		got := slices.Delete(pids(), 1, 2)
		if want := slices.Delete(slices.Clone(want), 1, 2); !slices.Equal(got, want) {
			t.Errorf("%s: the other services have the processes %q, had %q", what, got, want)
		}
	}

	v2 := fiveServices(image, mark, func(c *protocol.Container) { c.Env = []string{"COLOUR=blue"} })
	s.want(t, 2, v2)
	settled(v2, lifecycle.Installed)
	others("update", before)
	if now := pids(); now[1] == "" || now[1] == before[1] {
		t.Errorf("the changed service has the process %q, had %q", now[1], before[1])
	}

	bad := fiveServices(image, mark, func(c *protocol.Container) {
		c.Command, c.Restart = []string{"exit", "3", "no licence"}, protocol.Restart{}
	})
	s.want(t, 3, bad)
	settled(bad, lifecycle.Failed)
	others("failed update", before)
	v2.Rollback, v2.Attempt = true, 2
	s.want(t, 4, v2)
	settled(v2, lifecycle.Installed)
	others("rollback", before)
	if now := pids(); now[1] == "" {
		t.Errorf("processes %q after the rollback, want five", now)
	}
}
