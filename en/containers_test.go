package en_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

// realVersion makes an assignment of deployment "app": a server with a probe, and a
// second one that waits for it.
// Their processes have the given mark among their arguments.
func realVersion(image, mark string, command ...string) protocol.Assignment {
	restart := protocol.Restart{}
	if command == nil {
		command, restart.Policy = []string{"serve", "8080", mark}, protocol.RestartAlways
	}
	spec := protocol.Marshal(protocol.DeploymentSpec{
		V: 1, ID: "9f3c2d1e-0000-4000-8000-000000000001", Deployment: "app", App: "com.example.app", AppVersion: "1",
		Components: []protocol.Component{{Name: "main", TimeoutMillis: 30_000, Containers: []protocol.Container{
			{
				Name: "web", Image: image, Command: command, Restart: restart,
				Health: &protocol.Health{HTTP: "/", Port: 8080, IntervalMillis: 1000},
			},
			{
				Name: "side", Image: image, Command: []string{"wait", mark}, Restart: protocol.Restart{Policy: protocol.RestartAlways},
				Health:    &protocol.Health{Command: []string{"/toolbox", "get", "http://web:8080/"}, IntervalMillis: 1000},
				DependsOn: []protocol.Dependency{{Container: "web", Condition: protocol.ServiceHealthy}},
			},
		}}},
	})
	return protocol.Assignment{Deployment: "app", Digest: protocol.DigestOf(spec), Spec: spec, Attempt: 1}
}

// processes finds the processes whose arguments hold a word, with their ids.
func processes(t *testing.T, word string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if args := strings.Split(string(b), "\x00"); err == nil && args[0] == "/toolbox" && slices.Contains(args, word) {
			out = append(out, filepath.Base(filepath.Dir(f)))
		}
	}
	slices.Sort(out)
	return out
}

// steady waits until check passes, and then for it to pass for two seconds.
func steady(t *testing.T, check func() error) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	since, deadline := time.Now(), time.Now().Add(40*time.Second)
	for time.Since(since) < 2*time.Second {
		<-tick.C
		err := check()
		if err != nil {
			since = time.Now()
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// damageAttachment flips a bit of the record of the network of the container web, and returns its name
// in reports.
func damageAttachment(t *testing.T, stateDir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(stateDir, "engine", "attachments", "app-web-*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("attachments %q, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 4
	if err := os.WriteFile(files[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	return "en/attachment " + strings.TrimSuffix(filepath.Base(files[0]), ".json")
}

func TestOnRealContainers(t *testing.T) {
	t.Parallel()
	daemon, registry, s := containerdtest.Start(t), containerdtest.NewRegistry(t), newSite(t)
	image := registry.Add(t, "tools", containerdtest.Image{Program: containerdtest.Toolbox(t)})
	o := s.options(t, filepath.Join(daemon.Dir, "en"), nil)
	o.Engine.Address, o.Engine.Pool = daemon.Socket, "10.93.0.0/16"
	e := start(t, o)
	defer func() { stop(t, e) }()

	mark := filepath.Base(daemon.Dir)
	v1 := realVersion(image, mark)
	began := time.Now()
	s.want(t, 1, v1)
	m := wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Installed })
	for _, c := range m.Components {
		if c.State != "healthy" {
			t.Errorf("container %s is %s", c.Container, c.State)
		}
	}
	t.Logf("INSTALLED after %s", time.Since(began))

	// The agent and the daemon die: the containers do not notice.
	pids := processes(t, mark)
	if len(pids) != 2 {
		t.Fatalf("processes %v, want two", pids)
	}
	stop(t, e)
	daemon.Kill(t)
	damaged := damageAttachment(t, filepath.Join(daemon.Dir, "en"))
	daemon.Restart(t)
	e = start(t, o)
	steady(t, func() error {
		if got := processes(t, mark); fmt.Sprint(got) != fmt.Sprint(pids) {
			return fmt.Errorf("processes %v, were %v", got, pids)
		}
		return nil
	})

	// What was damaged meanwhile is reported, also where it is the engine's.
	wait(t, s, topic.Inventory, func(i protocol.Inventory) bool { return slices.Contains(i.Damaged, damaged) })

	// An update that dies at once is reported, and the way back works.
	bad := realVersion(image, mark, "exit", "3", "no licence")
	s.want(t, 2, bad)
	m = wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Failed })
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
		if got := processes(t, mark); len(got) != 2 {
			return fmt.Errorf("processes %v, want two", got)
		}
		return nil
	})

	s.remove(t, 4)
	wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Deleted })
	if got := processes(t, mark); len(got) != 0 {
		t.Errorf("processes %v after the removal", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	failures := 0
	for _, taken := range s.received {
		var m protocol.DeploymentStatus
		if at, err := topic.Parse(taken.Topic); err == nil && at.Kind == topic.Status && protocol.Unmarshal(taken.Payload, &m) == nil && m.State == lifecycle.Failed {
			failures++
		}
	}
	if failures != 1 {
		t.Errorf("%d reports of a failure, want the one of the bad update", failures)
	}
}
