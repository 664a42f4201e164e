package ondisk

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/protocol"
)

func agentLine(n int) string {
	return fmt.Sprintf(`{"time":%q,"msg":"line %d"}`, time.Unix(int64(n), 0).UTC().Format(time.RFC3339), n)
}

// The agent's own log is read and followed over its rotation, with the times that its lines have.
func TestAgentLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "en.log")
	node := Node{AgentLog: path}
	write := func(name string, lines ...string) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(strings.Join(lines, "\n") + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	write(path+".1", agentLine(1), agentLine(2))
	write(path, agentLine(3), agentLine(4))
	var got []string
	for e, err := range node.Read(t.Context(), logs.Request{Agent: true, Since: time.Unix(2, 0), Grep: "line [123]"}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Text)
	}
	want(t, got, agentLine(2), agentLine(3))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next, stop := iter.Pull2(node.Read(ctx, logs.Request{Agent: true, Tail: 1, Follow: true}))
	defer stop()
	line := func(n int) {
		t.Helper()
		e, err, ok := next()
		if !ok || err != nil || e.Text != agentLine(n) || e.Time.Unix() != int64(n) {
			t.Fatalf("followed %+v %v %v, want line %d", e, err, ok, n)
		}
	}
	line(4)
	write(path, agentLine(5))
	line(5)
	write(path, agentLine(6))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(path, agentLine(7))
	line(6)
	line(7)
	cancel()
	if _, err, ok := next(); !ok || !errors.Is(err, context.Canceled) {
		t.Errorf("after its end the context gave %v %v, want its error", err, ok)
	}
}

// Without a file the answer says where the log is.
func TestNoAgentLog(t *testing.T) {
	t.Parallel()
	for node, hint := range map[Node]string{{}: "journalctl -u colony-en", {AgentLog: "/nowhere/en.log"}: "/nowhere/en.log"} {
		for _, err := range node.Read(t.Context(), logs.Request{Agent: true}) {
			if protocol.KindOf(err) != protocol.NotFound || !strings.Contains(err.Error(), hint) {
				t.Errorf("error %v, want one that says %s", err, hint)
			}
		}
	}
	if err := (logs.Request{Agent: true, Previous: true}).Validate(); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("error %v of the previous log of the agent", err)
	}
}
