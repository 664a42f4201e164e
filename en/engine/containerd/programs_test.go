package containerd

import (
	"io"
	"testing"

	"github.com/colonyfleet/colony/en/engine"
)

// A program whose agent was killed is ended by the first sweep of the next one; that of a person who is at it goes on.
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
