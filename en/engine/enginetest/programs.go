package enginetest

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// programs runs programs that a person uses.
func programs(t *testing.T, f Fixture) {
	c := web(f, "wait")
	_, err := f.Engine.Open(t.Context(), c.ID, engine.Program{Name: "early", Arguments: f.True, Output: io.Discard, Errors: io.Discard})
	wantKind(t, err, protocol.NotFound)
	begin(t, f.Engine, c)

	for want, command := range [][]string{f.True, f.False} {
		code, err := open(t, f, t.Context(), c.ID, engine.Program{Name: "code", Arguments: command}).Wait()
		must(t, err)
		if code != int32(want) {
			t.Errorf("%v ended with %d, want %d", command, code, want)
		}
	}
	// The output is read whole, and the end of the input ends the program. A program whose output is not read
	// for a while waits.
	text := strings.Repeat("a line of 32 bytes, with its end\n", 8000)
	out := &slowly{}
	code, err := open(t, f, t.Context(), c.ID, engine.Program{Name: "copy", Arguments: f.Copy, Input: strings.NewReader(text), Output: out}).Wait()
	must(t, err)
	if got := out.String(); code != 0 || got != text {
		t.Errorf("a copy of %d bytes has %d, and ended with %d", len(text), len(got), code)
	}
	// A signal ends it, and the end of its context.
	p := open(t, f, t.Context(), c.ID, engine.Program{Name: "signal", Arguments: f.Hang})
	wantKind(t, p.Signal(t.Context(), "NOSUCH"), protocol.Invalid)
	must(t, p.Signal(t.Context(), "KILL"))
	if code, err := p.Wait(); err != nil || code != 137 {
		t.Errorf("killed: ended with %d, %v", code, err)
	}
	must(t, p.Resize(t.Context(), 100, 30))
	must(t, p.Signal(t.Context(), "TERM"))
	ctx, cancel := context.WithCancel(t.Context())
	p = open(t, f, ctx, c.ID, engine.Program{Name: "context", Arguments: f.Hang, Terminal: true, Columns: 80, Rows: 24})
	must(t, p.Resize(t.Context(), 100, 30))
	cancel()
	if _, err := p.Wait(); err == nil {
		t.Error("a program has ended in order whose context did")
	}
	// The end of the container ends it.
	reader, writer := io.Pipe()
	p = open(t, f, t.Context(), c.ID, engine.Program{Name: "container", Arguments: f.Copy, Input: reader})
	must(t, f.Engine.Stop(t.Context(), c.ID, time.Millisecond))
	if code, err := p.Wait(); err == nil && code == 0 {
		t.Error("a program has ended in order whose container was killed")
	}
	must(t, writer.Close())
	_, err = f.Engine.Open(t.Context(), c.ID, engine.Program{Name: "late", Arguments: f.True, Output: io.Discard, Errors: io.Discard})
	wantKind(t, err, protocol.NotFound)
}

func open(t *testing.T, f Fixture, ctx context.Context, id engine.ID, p engine.Program) engine.Process {
	t.Helper()
	if p.Output == nil {
		p.Output = io.Discard
	}
	p.Errors = io.Discard
	process, err := f.Engine.Open(ctx, id, p)
	must(t, err)
	return process
}

// slowly takes nothing for a second, and then all.
type slowly struct {
	bytes.Buffer
	waited bool
}

// Write waits the first time.
func (s *slowly) Write(b []byte) (int, error) {
	if !s.waited {
		<-time.After(time.Second)
		s.waited = true
	}
	return s.Buffer.Write(b)
}
