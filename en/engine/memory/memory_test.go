package memory_test

import (
	"context"
	"io"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/enginetest"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fixture(*testing.T) enginetest.Fixture {
	e := memory.New(memory.Options{
		Image: func(ref string) (uint64, time.Duration, error) {
			if ref == "missing" {
				return 0, 0, engine.Errorf(protocol.ImageNotFound, "no such image")
			}
			return 1000, 0, nil
		},
		Program: func(c engine.Container, _ uint32) memory.Program {
			switch args := c.Spec.Command; args[0] {
			case "hang":
				return memory.Program{StopTakes: time.Hour}
			case "exit":
				code, err := strconv.Atoi(args[1])
				return memory.Program{Exits: true, Code: int32(code), Output: args[2], Err: err}
			case "blame":
				code, err := strconv.Atoi(args[1])
				return memory.Program{Exits: true, Code: int32(code), Errors: args[2], Output: args[3], Err: err}
			default:
				return memory.Program{}
			}
		},
		Exec: func(ctx context.Context, _ engine.Container, command []string) (engine.ExecResult, error) {
			switch command[0] {
			case "true":
				return engine.ExecResult{}, nil
			case "false":
				return engine.ExecResult{ExitCode: 1}, nil
			default:
				<-ctx.Done()
				return engine.ExecResult{}, ctx.Err()
			}
		},
		Open: func(ctx context.Context, _ engine.Container, p engine.Program) int32 {
			switch p.Arguments[0] {
			case "true":
				return 0
			case "false":
				return 1
			case "copy":
				if _, err := io.Copy(p.Output, p.Input); err != nil {
					return 2
				}
				return 0
			default:
				<-ctx.Done()
				return 3
			}
		},
	})
	same := func(*testing.T) enginetest.Engine { return e }
	return enginetest.Fixture{
		Engine: e, Image: "image", Other: "other", Missing: "missing",
		True: []string{"true"}, False: []string{"false"}, Hang: []string{"hang"}, Copy: []string{"copy"},
		Ready: func(*testing.T, engine.ID) {},
		Again: same, Lose: func(*testing.T) { e.Lose() }, Return: func(*testing.T) { e.Return() },
		Reboot: func(t *testing.T) enginetest.Engine { e.Reboot(); return same(t) },
	}
}

func TestExercise(t *testing.T) {
	t.Parallel()
	enginetest.Exercise(t, fixture)
}

// A script plays on the bubble's clock: a crash after an hour, a scripted
// failure, and a pull that takes its time.
func TestScript(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := memory.New(memory.Options{
			Image: func(string) (uint64, time.Duration, error) { return 100, time.Minute, nil },
			Program: func(_ engine.Container, restarts uint32) memory.Program {
				return memory.Program{Exits: restarts == 0, After: time.Hour, Code: 9}
			},
		})
		began := time.Now()
		c := engine.Container{ID: engine.ID{Deployment: "d", Component: "c", Name: "n"}, Spec: protocol.Container{Image: "i"}}
		if err := e.Pull(t.Context(), "i", nil); err != nil || time.Since(began) != time.Minute {
			t.Fatalf("pull: %v after %s, want nil after a minute", err, time.Since(began))
		}
		e.Fail(memory.Start, memory.ErrFault)
		if err := e.Start(t.Context(), c); err != memory.ErrFault {
			t.Fatalf("start: %v, want the scripted fault", err)
		}
		events, err := e.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Start(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if ev := <-events; ev.ExitCode != 9 || time.Since(began) != time.Hour+time.Minute {
			t.Errorf("event %+v after %s, want code 9 an hour after the start", ev, time.Since(began))
		}
		if err := e.Start(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if err := e.Exit(c.ID, 1); err != nil {
			t.Fatal(err)
		}
		if ev := <-events; ev.ExitCode != 1 {
			t.Errorf("event %+v, want code 1", ev)
		}
		if n := e.Calls(memory.Start); n != 3 {
			t.Errorf("%d starts counted, want 3", n)
		}
	})
}
