package semantics

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/protocol"
)

// pids returns the process ids of the containers of a deployment, by service. It knows
// them by their control groups.
func (d *deployed) pids(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		for _, c := range d.spec.Components[0].Containers {
			if strings.Contains(string(b), fmt.Sprintf("/%s-%s-", d.name, c.Name)) {
				out[c.Name] = filepath.Base(filepath.Dir(file))
			}
		}
	}
	return out
}

// changed returns the services whose process is another one than before.
func changed(before, now map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if before[name] != now[name] {
			out = append(out, name)
		}
	}
	return out
}

// update gives the deployment another version and waits for it to be INSTALLED.
func (d *deployed) update(t *testing.T, compose string) *deployed {
	t.Helper()
	next, err := d.deploy(d.name, compose, nil)
	if err != nil {
		t.Fatal(err)
	}
	await(t, next.installed)
	return next
}

// An update of one service among five leaves the processes of the other four alone.
func TestUpdateOfOneAmongFive(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.97.0.0/16")
	file := func(version int) string {
		return service("db") + entry("cache") + entry("app", "depends_on: [db, cache]", fmt.Sprintf("environment: {VERSION: '%d'}", version)) +
			entry("worker", "depends_on: [app]") + entry("web", "command: [serve, '80', web]", "depends_on: [app]")
	}
	d, err := n.deploy("five", file(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	await(t, d.installed)
	before := d.pids(t)
	if len(before) != 5 {
		t.Fatalf("processes %v, want five", before)
	}
	d = d.update(t, file(2))
	if diff := cmp.Diff([]string{"app"}, changed(before, d.pids(t))); diff != "" {
		t.Errorf("services with another process (-want +got):\n%s", diff)
	}
	// The new one is found under its name, wherever that was asked for.
	st, err := d.status("app")
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range []check{saysIn("worker", st.IP, "lookup", "app"), saysIn("worker", "0 "+st.IP, "dig", "app", "1")} {
		if err := check(d); err != nil {
			t.Error(err)
		}
	}
}

// A service whose dependency says restart, and one in the network of another, are replaced
// with that one.
func TestDependenciesThatRestart(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.98.0.0/16")
	file := func(version int, restart bool) string {
		return service("db", fmt.Sprintf("environment: {VERSION: '%d'}", version)) + entry("guest", "network_mode: service:db") +
			entry("app", fmt.Sprintf("depends_on: {db: {condition: service_started, restart: %v}}", restart)) + entry("other", "depends_on: [db]")
	}
	for _, c := range []struct {
		name    string
		restart bool
		want    []string
	}{
		{"with", true, []string{"app", "db", "guest"}},
		{"without", false, []string{"db", "guest"}},
	} {
		d, err := n.deploy("restart", file(1, c.restart), nil)
		if err != nil {
			t.Fatal(err)
		}
		await(t, d.installed)
		before := d.pids(t)
		d = d.update(t, file(2, c.restart))
		if diff := cmp.Diff(c.want, changed(before, d.pids(t))); diff != "" {
			t.Errorf("%s restart, services with another process (-want +got):\n%s", c.name, diff)
		}
		if err := saysIn("guest", "0 10.", "dig", "app", "1")(d); err != nil {
			t.Errorf("%s restart: %v", c.name, err)
		}
	}
}

// What a program writes where its image declares a volume survives updates, failed ones
// and the return from them, and a power cut.
func TestDataOfAnImagesVolume(t *testing.T) {
	t.Parallel()
	const updates = 20
	n := newNode(t, "10.99.0.0/16")
	file := func(version int) string {
		lines := []string{"image: volumes", "read_only: true", fmt.Sprintf("environment: {VERSION: '%d'}", version)}
		if version%7 == 0 { // and does not come up
			lines[0] = "image: broken"
			lines = append(lines, starting)
		}
		return a(lines...)
	}
	d, err := n.deploy("data", file(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	await(t, d.installed)
	if err := writable("/data/written")(d); err != nil {
		t.Fatal(err)
	}
	for version := 2; version <= updates+1; version++ {
		next, err := d.deploy("data", file(version), nil)
		if err != nil {
			t.Fatal(err)
		}
		if version%7 == 0 { // the LO would return to the version before
			await(t, func() error { return next.failed(protocol.StartFailed, "broken") })
			next = next.update(t, file(version-1))
		}
		await(t, next.installed)
		if err := all(says("written", "cat", "/data/written"), says("seed", "cat", "/data/seed"))(next); err != nil {
			t.Fatalf("version %d: %v", version, err)
		}
		d = next
	}
	n.stop(t)
	n.daemon.Crash(t)
	n.daemon.Restart(t)
	n.start(t)
	await(t, func() error { return says("written", "cat", "/data/written")(d) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all, err := n.engine.List(ctx)
	if err != nil || len(all) != 1 {
		t.Errorf("%d containers after the power cut (%v), want one", len(all), err)
	}
}

// Between the attempts of an update that fails, the version before it answers at its port with
// its volume, whatever the update fails of; so it does where the port that the update asks for
// is taken.
func TestFormerVersionAnswersBetweenAttempts(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.94.0.0/16")
	ports := freeport.Ports(t, 2)
	file := func(version, port int, lines ...string) string {
		return a(append([]string{
			fmt.Sprintf("environment: {VERSION: '%d'}", version), fmt.Sprintf("ports: ['127.0.0.1:%d:80']", port), "volumes: ['data:/data']", "stop_grace_period: 1s",
		}, lines...)...) + "volumes: {data: {}}\n"
	}
	serves := "command: [serve, '80', first]"
	other, err := n.deploy("other", a(fmt.Sprintf("ports: ['127.0.0.1:%d:80']", ports[1]), serves), nil)
	if err != nil {
		t.Fatal(err)
	}
	await(t, other.installed)
	first, err := n.deploy("app", file(1, ports[0], serves), nil)
	if err != nil {
		t.Fatal(err)
	}
	await(t, first.installed)
	if err := writable("/data/written")(first); err != nil {
		t.Fatal(err)
	}
	sick := "healthcheck: {test: [CMD, /toolbox, cat, /none], interval: 200ms, retries: 1, start_period: 0s}"
	for version, c := range []struct {
		name string
		code protocol.Code
		text string
		file func(version int) string
	}{
		{"check", protocol.ProbeFailed, "", func(v int) string { return file(v, ports[0], "command: [serve, '80', second]", sick) }},
		{"exit", protocol.StartFailed, "second", func(v int) string { return file(v, ports[0], "command: [exit, '1', second]", starting) }},
		{"taken port", protocol.StartFailed, "in use", func(v int) string { return file(v, ports[1], serves) }},
	} {
		for attempt := range 2 {
			next, err := n.deploy("app", c.file(version+2), nil)
			if err != nil {
				t.Fatal(err)
			}
			await(t, func() error { return next.failed(c.code, c.text) })
			if m := next.report(); m.Running == "" || m.Running != protocol.DigestOf(protocol.Marshal(first.spec)) {
				t.Errorf("%s, attempt %d: reported to run %q, want the first version", c.name, attempt, m.Running)
			}
			await(t, func() error { return fetched("127.0.0.1", ports[0], "first")(first) })
			await(t, func() error { return says("written", "cat", "/data/written")(first) })
		}
	}
}

// A version that was INSTALLED and ends before it is proven gives way to the version before it,
// which answers at its port with its volume, attempt after attempt.
func TestFormerVersionAnswersAfterALateFailure(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.88.0.0/16")
	port := freeport.Ports(t, 1)[0]
	file := func(text, restart string) string {
		return a(fmt.Sprintf("command: [serve, '80', %s]", text), "restart: '"+restart+"'", fmt.Sprintf("ports: ['127.0.0.1:%d:80']", port),
			"volumes: ['data:/data']", "stop_grace_period: 1s") + "volumes: {data: {}}\n"
	}
	first, err := n.deploy("app", file("first", "always"), nil)
	if err != nil {
		t.Fatal(err)
	}
	await(t, first.installed)
	if err := writable("/data/written")(first); err != nil {
		t.Fatal(err)
	}
	for attempt := range 2 {
		next, err := n.deploy("app", file("second", "no"), nil)
		if err != nil {
			t.Fatal(err)
		}
		await(t, next.installed)
		await(t, func() error { return fetched("127.0.0.1", port, "second")(next) })
		pid, err := strconv.Atoi(next.pids(t)["a"])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await(t, func() error { return next.failed(protocol.CrashLoop, "exited with 137") })
		if m := next.report(); m.Running != protocol.DigestOf(protocol.Marshal(first.spec)) {
			t.Errorf("attempt %d: reported to run %q, want the first version", attempt, m.Running)
		}
		await(t, func() error { return fetched("127.0.0.1", port, "first")(first) })
		await(t, func() error { return says("written", "cat", "/data/written")(first) })
	}
}
