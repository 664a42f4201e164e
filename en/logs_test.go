package en_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/protocol"
)

// One reader has the log of the agent and those of the containers.
func TestLogsOfTheNode(t *testing.T) {
	t.Parallel()
	o := newSite(t).options(t, t.TempDir(), memory.New(memory.Options{}))
	o.LogFile = filepath.Join(t.TempDir(), "en.log")
	if err := os.WriteFile(o.LogFile, []byte("agent started\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := start(t, o)
	defer stop(t, e)
	for entry, err := range e.Logs().Read(t.Context(), logs.Request{Agent: true}) {
		if err != nil || entry.Text != "agent started" {
			t.Errorf("log of the agent: %+v %v", entry, err)
		}
	}
	for _, err := range e.Logs().Read(t.Context(), logs.Request{Deployment: "app"}) {
		if protocol.KindOf(err) != protocol.NotFound {
			t.Errorf("log of a deployment that is not there: %v", err)
		}
	}
	o = en.DefaultOptions()
	o.LogFile = "en.log"
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), `logFile "en.log": want an absolute path`) {
		t.Errorf("faults %v, want one of logFile", err)
	}
}
