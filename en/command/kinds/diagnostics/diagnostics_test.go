package diagnostics

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/en/command/archive"
	"github.com/colonyfleet/colony/en/command/archive/archivetest"
	"github.com/colonyfleet/colony/en/command/segments/segmentstest"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// written is a Reader with one log, which has a line and a gap.
type written struct{}

func (written) Read(_ context.Context, r logs.Request) iter.Seq2[logs.Entry, error] {
	return func(yield func(logs.Entry, error) bool) {
		if r.Agent {
			yield(logs.Entry{}, protocol.Errorf(protocol.NotFound, "the agent has no file"))
			return
		}
		_ = yield(logs.Entry{Gap: &logs.Gap{Bytes: 12}}, nil) &&
			yield(logs.Entry{Stream: logs.Stderr, Time: time.Unix(1_700_000_000, 0), Text: "a line"}, nil)
	}
}

func (written) List(context.Context) ([]logs.Log, error) {
	return []logs.Log{{Deployment: "hello", Component: "web", Container: "app", Runs: 2}, {Deployment: "old", Component: "web", Container: "app", Removed: true, Runs: 1}}, nil
}

// An archive has each part, and says what it has not: a part that fails, or hangs, costs that part alone.
func TestDiagnostics(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, f := range []string{"agent/records", "engine/volumes/hello/data/of-the-application"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o700), os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) { // a part that hangs does so in virtual time
		kind := New(Options{
			Site: "plant", Node: "gw-1", Version: "1.2.3", Now: time.Now, StateDir: dir,
			Config: struct{ MQTT string }{"tcp://gw-1:a-secret@127.0.0.1:9"},
			Metrics: func(_ context.Context, w io.Writer) error {
				_, err := io.WriteString(w, "colony_en_link_up 1\n")
				return err
			},
			Inventory: func(context.Context) (protocol.Inventory, error) {
				return protocol.Inventory{Hostname: "of-the-machine"}, errors.New("the engine does not answer")
			},
			Records: func() []plan.Record {
				return []plan.Record{{Deployment: "hello", State: lifecycle.Failed, Spec: []byte("PASSWORD=a secret"), Code: "CrashLoop", Message: "exited with 1"}}
			},
			List: func(ctx context.Context) ([]engine.Status, error) { <-ctx.Done(); return nil, ctx.Err() },
			Logs: written{},
		})
		b, _, err := segmentstest.Run(t, kind, func(key []byte) wire.Args { return &wire.DiagnosticsRequest{Key: key} })
		if err != nil {
			t.Fatal(err)
		}
		got := archivetest.Read(t, b)
		for name, want := range map[string]string{
			"about.json": `"version": "1.2.3"`, "config.yaml": "tcp://gw-1:xxxxx@127.0.0.1:9", "inventory.json": "of-the-machine", "metrics.txt": "colony_en_link_up 1",
			"deployments.json": `"message": "exited with 1"`, "state.txt": "agent/records", "system/meminfo": "MemTotal", "system/goroutines.txt": "goroutine", "system/interfaces.txt": "lo ",
			"logs/hello/web/app.log": "[12 bytes are missing here]", "logs/hello/web/app.previous.log": "2023-11-14T22:13:20Z stderr a line", "logs/old/web/app.previous.log": "a line",
		} {
			if text, ok := got["plant-gw-1/"+name]; !ok || !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in it: %.200q", name, want, text)
			}
		}
		for _, text := range got {
			if strings.Contains(text, "a secret") || strings.Contains(text, "a-secret") || strings.Contains(text, "of-the-application") {
				t.Errorf("what belongs to an application is in it: %.200q", text)
			}
		}
		faults := got["plant-gw-1/"+archive.Faults]
		for _, want := range []string{"containers.json: it took longer than 15s", "inventory.json: the engine does not answer", "logs/agent.log: the agent writes to the journal of its system"} {
			if !strings.Contains(faults, want) {
				t.Errorf("%q is not among the faults:\n%s", want, faults)
			}
		}
	})
}

func TestLargePartsAreCut(t *testing.T) {
	t.Parallel()
	b, err := part{"large", func(_ context.Context, w io.Writer) error {
		_, err := w.Write(make([]byte, mostPart+5))
		return err
	}}.content(t.Context())
	if len(b) != mostPart || err == nil || !strings.Contains(err.Error(), "5 bytes more") {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
