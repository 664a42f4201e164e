package en_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

// spec makes an assignment of deployment "app": a server with a probe, and a
// second one that waits for it.
func realVersion(image, text string, attempt uint32, command ...string) protocol.Assignment {
	if command == nil {
		command = []string{"serve", "8080", text}
	}
	restart := protocol.Restart{Policy: protocol.RestartAlways}
	if command[0] == "exit" {
		restart = protocol.Restart{}
	}
	spec := protocol.Marshal(protocol.DeploymentSpec{
		V: 1, ID: "9f3c2d1e-0000-4000-8000-000000000001", Deployment: "app", App: "com.example.app", AppVersion: text,
		Components: []protocol.Component{{Name: "main", TimeoutMillis: 30_000, Containers: []protocol.Container{
			{
				Name: "web", Image: image, Command: command, Restart: restart,
				Health: &protocol.Health{HTTP: "/", Port: 8080, IntervalMillis: 1000},
			},
			{
				Name: "side", Image: image, Command: []string{"wait"}, Restart: protocol.Restart{Policy: protocol.RestartAlways},
				Health:    &protocol.Health{Command: []string{"/toolbox", "get", "http://web:8080/"}, IntervalMillis: 1000},
				DependsOn: []protocol.Dependency{{Container: "web", Condition: protocol.ServiceHealthy}},
			},
		}}},
	})
	return protocol.Assignment{Deployment: "app", Digest: protocol.DigestOf(spec), Spec: spec, Attempt: attempt}
}

// started reads when the containers' present processes were started, by name.
func started(t *testing.T, s *site, digest protocol.Digest, min int) map[string]string {
	t.Helper()
	_ = min
	m := wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool {
		return m.State == lifecycle.Installed && m.Digest == digest
	})
	out := map[string]string{}
	for _, c := range m.Components {
		out[c.Container] = c.State
	}
	return out
}

func TestOnRealContainers(t *testing.T) {
	t.Parallel()
	daemon, registry, s := containerdtest.Start(t), containerdtest.NewRegistry(t), newSite(t)
	image := registry.Add(t, "tools", containerdtest.Image{Program: containerdtest.Toolbox(t)})
	o := s.options(t, filepath.Join(daemon.Dir, "en"), nil)
	o.Engine.Containerd, o.Engine.Pool = daemon.Socket, "10.93.0.0/16"
	e := start(t, o)
	defer func() { stop(t, e) }()

	v1 := realVersion(image, "one", 1)
	began := time.Now()
	s.want(t, 1, v1)
	if got := started(t, s, v1.Digest, 2); got["web"] != "healthy" || got["side"] != "healthy" {
		t.Errorf("components %v, want both healthy", got)
	}
	t.Logf("INSTALLED after %s", time.Since(began))

	// The agent and the daemon die: the containers do not notice.
	pids := processes(t, "serve", "wait")
	stop(t, e)
	daemon.Kill(t)
	daemon.Restart(t)
	e = start(t, o)
	steady(t, func() error {
		if got := processes(t, "serve", "wait"); fmt.Sprint(got) != fmt.Sprint(pids) {
			return fmt.Errorf("processes %v, were %v", got, pids)
		}
		return nil
	})

	// An update that dies at once is reported, and the way back works.
	bad := realVersion(image, "two", 1, "exit", "3", "no licence")
	s.want(t, 2, bad)
	m := wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Failed })
	if m.Code != protocol.StartFailed || m.Digest != bad.Digest || m.Message != "container main/web exited with 3 while starting: no licence" {
		t.Errorf("%s %q", m.Code, m.Message)
	}
	v1.Rollback, v1.Attempt = true, 2
	s.want(t, 3, v1)
	m = wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Installed && m.Attempt == 2 })
	if m.Refused != bad.Digest || m.Code != protocol.StartFailed {
		t.Errorf("after the rollback: %+v", m)
	}

	// The power goes.
	stop(t, e)
	daemon.Crash(t)
	daemon.Restart(t)
	e = start(t, o)
	steady(t, func() error {
		if got := processes(t, "serve", "wait"); len(got) != 2 {
			return fmt.Errorf("processes %v, want two", got)
		}
		return nil
	})

	s.want(t, 4)
	wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Deleted })
	if got := processes(t, "serve", "wait"); len(got) != 0 {
		t.Errorf("processes %v after the removal", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	failures := 0
	for _, taken := range s.taken {
		var m protocol.DeploymentStatus
		if at, err := topic.Parse(taken.Topic); err == nil && at.Kind == topic.Status && protocol.Unmarshal(taken.Payload, &m) == nil && m.State == lifecycle.Failed {
			failures++
		}
	}
	if failures != 1 {
		t.Errorf("%d reports of a failure, want the one of the bad update", failures)
	}
}
