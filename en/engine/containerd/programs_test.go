package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/internal/testpart"
)

// A program whose agent was killed is ended by the first sweep of the next one; one with a person at it goes on.
func TestProgramsOfAKilledAgent(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	r.run(t, c)
	open := func(e *Engine, name string) engine.Process {
		p, err := e.Open(t.Context(), c.ID, engine.Program{Name: name, Arguments: []string{"/toolbox", "hang"}, Output: io.Discard, Errors: io.Discard})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	left := open(r.Engine, "left")
	next := r.open(t)
	own := open(next, "own")
	if err := next.Sweep(t.Context(), engine.SweepOptions{KeepAllImages: true}); err != nil {
		t.Fatal(err)
	}
	if code, err := left.Wait(); err != nil || code != 137 {
		t.Errorf("the program of the agent before ended with %d, %v", code, err)
	}
	if err := own.Signal(t.Context(), "KILL"); err != nil {
		t.Fatal(err)
	}
	if code, err := own.Wait(); err != nil || code != 137 {
		t.Errorf("the program of this agent ended with %d, %v", code, err)
	}
	if err := next.Sweep(t.Context(), engine.SweepOptions{KeepAllImages: true}); err != nil {
		t.Fatal(err)
	}
}

// Children of a program without a terminal, which do not heed that it is hung up, end with it where its user has left. Where it ends by
// itself they go on, as with a shell.
func TestChildrenOfAProgram(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	r.run(t, c)
	count := func() int {
		made, err := r.client.LoadContainer(r.in(t.Context()), marks.Key(c.ID))
		if err != nil {
			t.Fatal(err)
		}
		running, err := made.Task(r.in(t.Context()), nil)
		if err != nil {
			t.Fatal(err)
		}
		list, err := running.Pids(r.in(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	left := errors.New("the client has left")
	ctx, leave := context.WithCancelCause(t.Context())
	out, in := io.Pipe()
	p, err := r.Open(ctx, c.ID, engine.Program{Name: "left", Arguments: []string{"/toolbox", "parent"}, Output: in, Errors: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 3 {
		t.Errorf("%d processes, want that of the container, the program, and its child", n)
	}
	leave(left)
	if _, err := p.Wait(); !errors.Is(err, left) {
		t.Errorf("it ended with %v", err)
	}
	if n := count(); n != 1 {
		t.Errorf("%d processes once the client has left, want 1", n)
	}
	p, err = r.Open(t.Context(), c.ID, engine.Program{Name: "ended", Arguments: []string{"/toolbox", "parent", "leave"}, Output: io.Discard, Errors: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(); code != 0 || err != nil {
		t.Errorf("it ended with %d, %v", code, err)
	}
	if n := count(); n != 2 {
		t.Errorf("%d processes after a program that has left a child, want 2", n)
	}
}

// A program that a person uses when containerd is killed is ended once that is back.
func TestProgramWhileContainerdIsKilled(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	r.run(t, c)
	p, err := r.Open(t.Context(), c.ID, engine.Program{Name: "left", Arguments: []string{"/toolbox", "hang"}, Output: io.Discard, Errors: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	ctx := r.in(t.Context())
	processes := func(want int) func() error {
		return func() error {
			made, err := r.client.LoadContainer(ctx, marks.Key(c.ID))
			if err != nil {
				return err
			}
			running, err := made.Task(ctx, nil)
			if err != nil {
				return err
			}
			list, err := running.Pids(ctx)
			if err == nil && len(list) != want {
				err = fmt.Errorf("%d processes, want %d", len(list), want)
			}
			return err
		}
	}
	if err := processes(2)(); err != nil { // that of the container, and the program
		t.Fatal(err)
	}
	r.daemon.Kill(t)
	if _, err := p.Wait(); err == nil {
		t.Error("how the program ended is not known, and no error says so")
	}
	r.daemon.Restart(t)
	testpart.Within(t, time.Minute, "the program is ended", processes(1))
}
