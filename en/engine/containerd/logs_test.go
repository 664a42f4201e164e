package containerd

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/internal/testproc"
)

var rotations = flag.Int("rotations", 25, "how often TestLogRotations has the agent drop old lines")

// agentEnv has the socket of containerd and the state directory where this program is an agent that a test kills.
const agentEnv = "COLONY_TEST_AGENT"

func TestMain(m *testing.M) {
	if where := os.Getenv(agentEnv); where != "" {
		runAgent(where)
		return
	}
	goleak.VerifyTestMain(m)
}

// runAgent has an engine at work until it is killed.
func runAgent(where string) {
	o := DefaultOptions()
	o.Address, o.StateDir, _ = strings.Cut(where, " ")
	o.Logs.Stream = testLogBytes
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	if _, err := New(o); err != nil {
		o.Logger.Error("agent not started", "err", err)
		os.Exit(1)
	}
	select {}
}

// A hole is that in the front of a file.
type hole struct {
	path string
	end  int64
	grew int // how often it was seen longer than before
}

func (h *hole) look(t *testing.T) {
	t.Helper()
	f, err := os.Open(h.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const seekData = 3
	if end, err := f.Seek(0, seekData); err == nil && end > h.end {
		h.end, h.grew = end, h.grew+1
	}
}

// Each line that a container writes at full speed is read or counted as missing, while the agent drops old lines and is killed,
// and containerd is, too. The long form has 1,000 rotations.
func TestLogRotations(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("count")
	r.run(t, c)
	if err := r.logs.Close(); err != nil { // from here on the other agent looks after them
		t.Fatal(err)
	}
	agent := testproc.New(t, "agent", filepath.Join(t.TempDir(), "agent.log"))
	agent.SetEnv(agentEnv + "=" + r.daemon.Socket + " " + r.opts.StateDir)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent.Start(self)
	h := hole{path: r.dir(marks.Key(c.ID), "output", "stdout")}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	kills := max(5, *rotations/50)
	killed := 0
	for h.grew < *rotations {
		<-tick.C
		h.look(t)
		if err := agent.Running(); err != nil {
			t.Fatal(err)
		}
		if h.grew >= *rotations*(killed+1)/(kills+1) && killed < kills {
			killed++
			agent.Kill()
			if killed == kills/2 {
				r.daemon.Kill(t)
				r.daemon.Restart(t)
			}
			agent.Start(self)
		}
	}
	if err := r.Stop(t.Context(), c.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	agent.Kill()
	e := r.open(t)
	for _, stream := range []logs.Stream{logs.Stdout, logs.Stderr} {
		checkLines(t, e, c.ID, stream)
	}
	t.Logf("%d rotations seen, %d kills", h.grew, killed)
}

// checkLines reads all of a stream: the number of each line is in its text, and what is missing is in a gap.
func checkLines(t *testing.T, e *Engine, id engine.ID, stream logs.Stream) {
	t.Helper()
	next, lines, lost, last := int64(1), 0, int64(0), ""
	for entry, err := range e.Logs().Read(context.Background(), logs.Request{
		Deployment: id.Deployment, Component: id.Component, Container: id.Name, Streams: []logs.Stream{stream},
	}) {
		if err != nil {
			t.Fatal(err)
		}
		if entry.Line != next || entry.Partial || entry.Cut > 0 {
			t.Fatalf("%s: entry %+v, want line %d", stream, entry, next)
		}
		next++
		if entry.Gap != nil {
			if entry.Gap.LinesUnknown {
				t.Errorf("%s: lines of a gap are not known", stream)
			}
			next += entry.Gap.Lines - 1
			lost += entry.Gap.Lines
			continue
		}
		number, rest, _ := strings.Cut(entry.Text, " ")
		if n, err := strconv.ParseInt(number, 10, 64); err != nil || n != entry.Line {
			t.Fatalf("%s: line %d says it is %s", stream, entry.Line, number)
		}
		lines, last = lines+1, rest
	}
	if last != "last" || lost == 0 {
		t.Errorf("%s: %d lines, %d in gaps, the last one ends with %q: want gaps, and the last line that was written", stream, lines, lost, last)
	}
	t.Logf("%s: %d lines read, %d in gaps", stream, lines, lost)
}
