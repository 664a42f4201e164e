package containerd

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/en/engine/enginetest"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/shims"
	"github.com/colonyfleet/colony/protocol"
)

var toolbox struct {
	sync.Once
	program []byte
}

func program(t *testing.T) []byte {
	t.Helper()
	toolbox.Do(func() { toolbox.program = containerdtest.Toolbox(t) })
	if toolbox.program == nil {
		t.Fatal("the test program could not be built: see the first failure")
	}
	return toolbox.program
}

// testLogBytes bounds each output of a container.
const testLogBytes = 50_000

type rig struct {
	*Engine
	daemon   *containerdtest.Daemon
	registry *containerdtest.Registry
	image    string
}

// setup gives an engine on a daemon of its own, and an image in a registry. All
// that the engine leaves on the machine is removed at the end, and checked.
func setup(t *testing.T) *rig {
	t.Helper()
	return setupWith(t, func(*Options) {})
}

func setupWith(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	r := &rig{daemon: containerdtest.Start(t), registry: containerdtest.NewRegistry(t)}
	r.image = r.registry.Add(t, "tools", containerdtest.Image{
		Program: program(t), Env: []string{"COLOUR=red", "SIZE=small"},
		Files: map[string]string{"data/": "", "data/seed": "seed\n"},
	})
	r.Engine = r.openWith(t, change)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		ids, err := r.known(r.in(ctx))
		if err != nil {
			t.Errorf("list: %v", err)
		}
		var o engine.SweepOptions
		for _, id := range ids {
			o.Removed = append(o.Removed, id.Deployment)
		}
		if err := r.Sweep(ctx, o); err != nil {
			t.Errorf("sweep: %v", err)
		}
		if err := r.Halt(ctx); err != nil {
			t.Errorf("halt: %v", err)
		}
		if left, err := shims.Find(r.opts.Address, r.opts.Namespace); err != nil || len(left) > 0 {
			t.Errorf("shims left after the sweep: %+v %v", left, err)
		}
		for _, pattern := range []string{"attachments/*", "netns/*", "containers/*", "fifo/*", "cni/cache/results/*"} {
			left, err := filepath.Glob(filepath.Join(r.opts.StateDir, pattern))
			if err != nil || len(left) > 0 {
				t.Errorf("left after the sweep: %q %v", left, err)
			}
		}
	})
	return r
}

// open returns another engine on the same state.
func (r *rig) open(t *testing.T, dial ...grpc.DialOption) *Engine {
	t.Helper()
	return r.openWith(t, func(o *Options) { o.dial = dial })
}

// again returns another engine on the same state, as after the end of the agent: the first one writes no
// logs any more.
func (r *rig) again(t *testing.T) *Engine {
	t.Helper()
	if err := r.logs.Close(); err != nil {
		t.Error(err)
	}
	return r.open(t)
}

func (r *rig) openWith(t *testing.T, change func(*Options)) *Engine {
	t.Helper()
	o := DefaultOptions()
	o.Address, o.StateDir, o.Logs.Stream = r.daemon.Socket, filepath.Join(r.daemon.Dir, "e"), testLogBytes
	o.Stall = 5 * time.Second
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	change(&o)
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// container returns a container of the image, named as its command's verb.
func (r *rig) container(command ...string) engine.Container {
	return engine.Container{
		ID:     engine.ID{Deployment: "shop", Component: "main", Name: command[0]},
		Digest: "sha256:1111111111111111111111111111111111111111111111111111111111111111",
		Spec:   protocol.Container{Name: command[0], Image: r.image, Command: command},
	}
}

func (r *rig) run(t *testing.T, c engine.Container) {
	t.Helper()
	if err := r.Pull(t.Context(), c.Spec.Image, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// output runs the toolbox in a container and returns what it wrote.
func (r *rig) output(t *testing.T, c engine.Container, args ...string) string {
	t.Helper()
	res, err := r.Exec(t.Context(), c.ID, append([]string{"/toolbox"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	if res.ExitCode != 0 {
		t.Fatalf("%q ended with %d: %s", args, res.ExitCode, res.Output)
	}
	return string(res.Output)
}

// awaitReady waits for the first line of a container's log.
func (r *rig) awaitReady(t *testing.T, id engine.ID) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	path := r.dir(marks.Key(id), "output", "stdout") // another engine may have started it
	for {
		b, err := os.ReadFile(path)
		if err == nil && strings.HasSuffix(string(b), "ready\n") {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s is not ready, it wrote %q (%v)", id, b, err)
		}
	}
}

func TestExercise(t *testing.T) {
	t.Parallel()
	enginetest.Exercise(t, func(t *testing.T) enginetest.Fixture { return fixture(t, setup(t)) })
}

func fixture(t *testing.T, r *rig) enginetest.Fixture {
	other := r.registry.Add(t, "tools", containerdtest.Image{Program: program(t), Env: []string{"COLOUR=blue"}})
	return enginetest.Fixture{
		Engine: r, Image: r.image, Other: other,
		Missing: r.registry.Host + "/tools@sha256:0000000000000000000000000000000000000000000000000000000000000000",
		True:    []string{"/toolbox", "id"}, False: []string{"/toolbox", "nonsense"}, Hang: []string{"/toolbox", "hang"}, Copy: []string{"/toolbox", "copy"},
		Ready:  func(t *testing.T, id engine.ID) { r.awaitReady(t, id) },
		Again:  func(t *testing.T) enginetest.Engine { return r.again(t) },
		Lose:   func(t *testing.T) { r.daemon.Kill(t) },
		Return: func(t *testing.T) { r.daemon.Restart(t) },
		Reboot: func(t *testing.T) enginetest.Engine {
			r.daemon.Crash(t)
			r.daemon.Restart(t)
			return r.again(t)
		},
	}
}

func TestOptionsNameEveryFault(t *testing.T) {
	t.Parallel()
	if err := DefaultOptions().Validate(); err != nil {
		t.Errorf("default options: %v", err)
	}
	err := Options{Pool: "10.0.0.0/28", Mirror: "ftp://x"}.Validate()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 11 {
		t.Errorf("faults %v, want 11", err)
	}
}
