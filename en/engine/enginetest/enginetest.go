// Package enginetest holds every engine to one behaviour: Exercise is the test
// that each implementation of the port passes.
package enginetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// An Engine is all of an engine.
type Engine interface {
	engine.Engine
	engine.Host
	engine.Positions
	engine.Programs
	engine.Meter
}

// A Fixture is an engine to exercise. Its images are not pulled yet. The containers of Image
// understand these commands. "wait" runs until SIGTERM and exits with 0. "hang" runs until it is
// killed. "exit CODE LINE" writes the line and exits. "blame CODE LINE OTHER" writes LINE to
// stderr, then OTHER to stdout, and exits. "serve PORT TEXT" runs on.
type Fixture struct {
	Engine  Engine
	Image   string
	Other   string   // another image, of the same contents
	Missing string   // a ref that no registry has
	True    []string // a command for Exec that ends with 0
	False   []string // one that ends with 1
	Hang    []string // one that does not end
	Copy    []string // a program that writes what it reads, and ends with 0 where that ends

	// Ready waits until the program of a container minds signals.
	Ready func(t *testing.T, id engine.ID)
	// Again gives a new engine on the same state, as after the agent's death.
	Again func(t *testing.T) Engine
	// Lose makes the engine unreachable, until Return; containers go on.
	Lose, Return func(t *testing.T)
	// Reboot ends all processes as a power cut does.
	Reboot func(t *testing.T) Engine
}

// patience bounds every wait for something that must happen.
const patience = 20 * time.Second

const (
	version1 = protocol.Digest("sha256:1111111111111111111111111111111111111111111111111111111111111111")
	version2 = protocol.Digest("sha256:2222222222222222222222222222222222222222222222222222222222222222")
)

// Exercise runs the suite. Each part gets a fixture of its own from factory.
func Exercise(t *testing.T, factory func(t *testing.T) Fixture) {
	for _, part := range []struct {
		name string
		run  func(t *testing.T, f Fixture)
	}{
		{"info", info},
		{"pull", pull},
		{"start is idempotent", startTwice},
		{"other version is a conflict", conflict},
		{"image must be pulled", notPulled},
		{"stop", stop},
		{"stop kills after grace", stopKills},
		{"exit and restart", exitAndRestart},
		{"chosen ports", chosenPorts},
		{"vacant ports", vacantPorts},
		{"remove", remove},
		{"list is sorted", listSorted},
		{"exec", exec},
		{"programs", programs},
		{"events", events},
		{"survives the agent", survives},
		{"engine lost", lost},
		{"reboot", reboot},
		{"sweep", sweep},
		{"volumes", volumes},
		{"crash reason", crashReason},
		{"log", readLog},
		{"previous log", previousLog},
		{"follow log", followLog},
		{"log that is not there", noLog},
		{"usage", usage},
		{"concurrent", concurrent},
		{"cancelled", cancelled},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.run(t, factory(t))
		})
	}
}

func web(f Fixture, command ...string) engine.Container {
	return engine.Container{
		ID: engine.ID{Deployment: "shop", Component: "main", Name: "web"}, Digest: version1, Site: protocol.Position{Epoch: 2, Generation: 7},
		Spec: protocol.Container{Name: "web", Image: f.Image, Command: command},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, want protocol.Code) {
	t.Helper()
	if err == nil || engine.CodeOf(err) != want {
		t.Fatalf("error %v has code %s, want %s", err, engine.CodeOf(err), want)
	}
}

func wantKind(t *testing.T, err error, want protocol.Kind) {
	t.Helper()
	if err == nil || protocol.KindOf(err) != want {
		t.Fatalf("error %v, want one of kind %s", err, want)
	}
}

// begin pulls the image of c and starts it.
func begin(t *testing.T, e Engine, c engine.Container) {
	t.Helper()
	must(t, e.Pull(t.Context(), c.Spec.Image, nil))
	must(t, e.Start(t.Context(), c))
}

func list(t *testing.T, e Engine) []engine.Status {
	t.Helper()
	all, err := e.List(t.Context())
	must(t, err)
	return all
}

func one(t *testing.T, e Engine) engine.Status {
	t.Helper()
	all := list(t, e)
	if len(all) != 1 {
		t.Fatalf("listed %v, want one container", all)
	}
	return all[0]
}

// await lists until the only container is as wanted.
func await(t *testing.T, e Engine, what string, ok func(engine.Status) bool) engine.Status {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		st := one(t, e)
		if ok(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("container is %+v after %s, want %s", st, patience, what)
		}
	}
}

func exited(st engine.Status) bool { return st.State == engine.Exited }

func info(t *testing.T, f Fixture) {
	i, err := f.Engine.Info(t.Context())
	must(t, err)
	t.Logf("%+v", i)
	if i.Name == "" || i.Version == "" {
		t.Errorf("info %+v, want a name and a version", i)
	}
	f.Lose(t)
	_, err = f.Engine.Info(t.Context())
	wantCode(t, err, protocol.EngineUnavailable)
	f.Return(t)
	awaitBack(t, f.Engine)
}

// awaitBack lists until the engine answers again.
func awaitBack(t *testing.T, e Engine) {
	t.Helper()
	back := time.NewTimer(patience)
	defer back.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := e.List(t.Context())
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-back.C:
			t.Fatalf("not back: %v", err)
		}
	}
}

func pull(t *testing.T, f Fixture) {
	var seen []engine.Progress
	must(t, f.Engine.Pull(t.Context(), f.Image, func(p engine.Progress) { seen = append(seen, p) }))
	if len(seen) == 0 || seen[len(seen)-1].Total == 0 || seen[len(seen)-1].Pulled != seen[len(seen)-1].Total {
		t.Errorf("progress %v, want it to end with everything pulled", seen)
	}
	for i := 1; i < len(seen); i++ {
		if seen[i].Pulled < seen[i-1].Pulled {
			t.Errorf("progress %v goes back", seen)
		}
	}
	must(t, f.Engine.Pull(t.Context(), f.Image, nil))
	wantCode(t, f.Engine.Pull(t.Context(), f.Missing, nil), protocol.ImageNotFound)
}

func startTwice(t *testing.T, f Fixture) {
	c := web(f, "wait")
	begin(t, f.Engine, c)
	first := one(t, f.Engine)
	if first.State != engine.Running || first.IP == "" || first.StartedAt.IsZero() {
		t.Errorf("status %+v, want running with an address and a start", first)
	}
	want := engine.Status{ID: c.ID, Digest: c.Digest, Site: c.Site, Image: f.Image, State: engine.Running}
	if d := cmp.Diff(want, first, cmpopts.IgnoreFields(engine.Status{}, "IP", "StartedAt")); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
	c.Site.Generation++ // it stays what it was made for
	must(t, f.Engine.Start(t.Context(), c))
	if d := cmp.Diff(first, one(t, f.Engine)); d != "" {
		t.Errorf("a second start changed something:\n%s", d)
	}
}

func conflict(t *testing.T, f Fixture) {
	c := web(f, "wait")
	begin(t, f.Engine, c)
	c.Digest = version2
	wantKind(t, f.Engine.Start(t.Context(), c), protocol.Conflict)
	must(t, f.Engine.Remove(t.Context(), c.ID))
	must(t, f.Engine.Start(t.Context(), c))
	if st := one(t, f.Engine); st.Digest != version2 || st.Restarts != 0 {
		t.Errorf("status %+v, want a fresh container of the second version", st)
	}
}

func notPulled(t *testing.T, f Fixture) {
	wantCode(t, f.Engine.Start(t.Context(), web(f, "wait")), protocol.ImageNotFound)
	if all := list(t, f.Engine); len(all) != 0 {
		t.Errorf("listed %v, want nothing", all)
	}
}

func stop(t *testing.T, f Fixture) {
	c := web(f, "wait")
	must(t, f.Engine.Stop(t.Context(), c.ID, time.Second))
	begin(t, f.Engine, c)
	f.Ready(t, c.ID)
	must(t, f.Engine.Stop(t.Context(), c.ID, patience))
	if st := one(t, f.Engine); st.State != engine.Exited || st.ExitCode != 0 || st.ExitedAt.IsZero() {
		t.Errorf("status %+v, want exited with 0", st)
	}
	must(t, f.Engine.Stop(t.Context(), c.ID, patience))
	must(t, f.Engine.Start(t.Context(), c))
	if st := one(t, f.Engine); st.State != engine.Running || st.Restarts != 1 {
		t.Errorf("status %+v, want running again", st)
	}
}

func stopKills(t *testing.T, f Fixture) {
	c := web(f, "hang")
	begin(t, f.Engine, c)
	f.Ready(t, c.ID)
	must(t, f.Engine.Stop(t.Context(), c.ID, 100*time.Millisecond))
	if st := one(t, f.Engine); st.State != engine.Exited || st.ExitCode != 137 {
		t.Errorf("status %+v, want killed", st)
	}
}

func exitAndRestart(t *testing.T, f Fixture) {
	c := web(f, "exit", "3", "out of coffee")
	begin(t, f.Engine, c)
	st := await(t, f.Engine, "exited", exited)
	if st.ExitCode != 3 || st.Message != "out of coffee" || st.Restarts != 0 {
		t.Errorf("status %+v, want exit code 3, the last line and no restart", st)
	}
	if again := one(t, f.Engine); !again.ExitedAt.Equal(st.ExitedAt) || again.ExitCode != 3 {
		t.Errorf("status %+v, want it to stay %+v", again, st)
	}
	must(t, f.Engine.Start(t.Context(), c))
	await(t, f.Engine, "exited after a restart", func(st engine.Status) bool { return exited(st) && st.Restarts == 1 })
}

func remove(t *testing.T, f Fixture) {
	c := web(f, "hang")
	must(t, f.Engine.Remove(t.Context(), c.ID))
	begin(t, f.Engine, c)
	must(t, f.Engine.Remove(t.Context(), c.ID))
	if all := list(t, f.Engine); len(all) != 0 {
		t.Errorf("listed %v, want nothing", all)
	}
	must(t, f.Engine.Remove(t.Context(), c.ID))
}

func listSorted(t *testing.T, f Fixture) {
	must(t, f.Engine.Pull(t.Context(), f.Image, nil))
	var want []engine.ID
	for _, id := range []engine.ID{
		{Deployment: "shop", Component: "main", Name: "web"},
		{Deployment: "shop", Component: "main", Name: "db"},
		{Deployment: "shop", Component: "cache", Name: "web"},
		{Deployment: "news", Component: "main", Name: "web_1.x"},
	} {
		c := web(f, "wait")
		c.ID = id
		must(t, f.Engine.Start(t.Context(), c))
		want = append([]engine.ID{id}, want...)
	}
	var got []engine.ID
	for _, st := range list(t, f.Engine) {
		got = append(got, st.ID)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}

func exec(t *testing.T, f Fixture) {
	c := web(f, "wait")
	_, err := f.Engine.Exec(t.Context(), c.ID, f.True)
	wantKind(t, err, protocol.NotFound)
	begin(t, f.Engine, c)
	for want, command := range [][]string{f.True, f.False} {
		r, err := f.Engine.Exec(t.Context(), c.ID, command)
		must(t, err)
		if r.ExitCode != int32(want) {
			t.Errorf("%v ended with %d, want %d: %s", command, r.ExitCode, want, r.Output)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := f.Engine.Exec(ctx, c.ID, f.Hang); err == nil || ctx.Err() == nil {
		t.Errorf("a command that hangs ended with %v", err)
	}
	must(t, f.Engine.Stop(t.Context(), c.ID, patience))
	_, err = f.Engine.Exec(t.Context(), c.ID, f.True)
	wantKind(t, err, protocol.NotFound)
}

func next(t *testing.T, ch <-chan engine.Event) (engine.Event, bool) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case ev, ok := <-ch:
		return ev, ok
	case <-timer.C:
		t.Fatal("no event")
		return engine.Event{}, false
	}
}

func events(t *testing.T, f Fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := f.Engine.Events(ctx)
	must(t, err)
	c := web(f, "exit", "5", "gone")
	begin(t, f.Engine, c)
	if ev, ok := next(t, ch); !ok || ev.ID != c.ID || ev.ExitCode != 5 || ev.At.IsZero() {
		t.Errorf("event %+v %v, want the exit of %s with 5", ev, ok, c.ID)
	}
	cancel()
	for {
		if _, ok := next(t, ch); !ok {
			return
		}
	}
}

func survives(t *testing.T, f Fixture) {
	c := web(f, "wait")
	begin(t, f.Engine, c)
	first := one(t, f.Engine)
	again := f.Again(t)
	if d := cmp.Diff(first, one(t, again)); d != "" {
		t.Errorf("another agent finds something else:\n%s", d)
	}
	must(t, again.Start(t.Context(), c))
	must(t, again.Stop(t.Context(), c.ID, patience))
	must(t, again.Remove(t.Context(), c.ID))
}

func lost(t *testing.T, f Fixture) {
	c := web(f, "wait")
	begin(t, f.Engine, c)
	f.Ready(t, c.ID)
	before := one(t, f.Engine)
	ch, err := f.Engine.Events(t.Context())
	must(t, err)
	f.Lose(t)
	if _, ok := next(t, ch); ok {
		t.Error("an event of a lost engine")
	}
	_, err = f.Engine.List(t.Context())
	wantCode(t, err, protocol.EngineUnavailable)
	wantCode(t, f.Engine.Start(t.Context(), c), protocol.EngineUnavailable)
	_, err = f.Engine.Events(t.Context())
	wantCode(t, err, protocol.EngineUnavailable)
	f.Return(t)
	awaitBack(t, f.Engine)
	if d := cmp.Diff(before, one(t, f.Engine)); d != "" {
		t.Errorf("the container did not live through it:\n%s", d)
	}
	must(t, f.Engine.Stop(t.Context(), c.ID, patience))
	if st := one(t, f.Engine); st.ExitCode != 0 {
		t.Errorf("status %+v, want a clean end", st)
	}
}

// A port of the node that the spec does not name is a free one, which List returns.
func chosenPorts(t *testing.T, f Fixture) {
	a, b := web(f, "wait"), web(f, "wait")
	b.ID.Name, b.Spec.Name = "other", "other"
	a.Spec.Ports = []protocol.Port{{Container: 80}, {Container: 81, Protocol: "udp"}}
	b.Spec.Ports = []protocol.Port{{Container: 80, HostIP: "127.0.0.1"}}
	must(t, f.Engine.Pull(t.Context(), f.Image, nil))
	must(t, f.Engine.Start(t.Context(), a))
	must(t, f.Engine.Start(t.Context(), b))
	all, err := f.Engine.List(t.Context())
	must(t, err)
	chosen := map[uint16]bool{}
	for i, c := range []engine.Container{b, a} {
		if d := cmp.Diff(c.Spec.Ports, all[i].Ports, cmpopts.IgnoreFields(protocol.Port{}, "Host")); d != "" {
			t.Errorf("ports of %s (-want +got):\n%s", c.ID, d)
		}
		for _, p := range all[i].Ports {
			chosen[p.Host] = true
		}
	}
	if chosen[0] || len(chosen) != 3 {
		t.Errorf("ports %v, want three free ones", chosen)
	}
}

func reboot(t *testing.T, f Fixture) {
	c := web(f, "wait")
	begin(t, f.Engine, c)
	e := f.Reboot(t)
	if st := one(t, e); st.State == engine.Running {
		t.Errorf("status %+v after a reboot", st)
	}
	must(t, e.Start(t.Context(), c))
	if st := one(t, e); st.State != engine.Running || st.IP == "" {
		t.Errorf("status %+v, want running again", st)
	}
}

func concurrent(t *testing.T, f Fixture) {
	c := web(f, "wait")
	must(t, f.Engine.Pull(t.Context(), f.Image, nil))
	errs := make(chan error)
	names := []string{"a", "b", "a", "c", "b", "a"}
	for _, name := range names {
		go func() {
			c := c
			c.ID.Name = name
			errs <- f.Engine.Start(t.Context(), c)
		}()
	}
	for range names {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	all := list(t, f.Engine)
	if len(all) != 3 || slices.ContainsFunc(all, func(st engine.Status) bool { return st.State != engine.Running || st.Restarts != 0 }) {
		t.Errorf("listed %+v, want a, b and c started once", all)
	}
}

func cancelled(t *testing.T, f Fixture) {
	must(t, f.Engine.Pull(t.Context(), f.Image, nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := web(f, "wait")
	if err := f.Engine.Start(ctx, c); err == nil {
		t.Error("a start went on after its context had ended")
	}
	must(t, f.Engine.Start(t.Context(), c))
	if st := one(t, f.Engine); st.State != engine.Running {
		t.Errorf("status %+v, want running", st)
	}
}
