package command

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// TestCounts counts what sites report of commands: what they took, refused, and how commands ended, whatever a later release may say.
func TestCounts(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	l := New(Options{Logger: slog.New(slog.DiscardHandler), Registerer: reg})
	event := func(kind protocol.EventKind, m any) protocol.Event {
		return protocol.Event{Kind: kind, Body: protocol.Marshal(m)}
	}
	l.Committed("plant", []protocol.Event{
		event(protocol.CommandTaken, command.Taken{V: 1}),
		event(protocol.CommandTaken, command.Taken{V: 1, Code: command.BadSignature}),
		event(protocol.CommandTaken, command.Taken{V: 1, Code: "of_a_later_release"}),
		event(protocol.CommandResult, command.Result{V: 1, State: command.Running}),
		event(protocol.CommandResult, command.Result{V: 1, State: command.Done}),
		event(protocol.CommandResult, command.Result{V: 1, State: command.Done}),
		{Kind: protocol.CommandResult, Body: []byte("no CBOR")},
		{Kind: protocol.StatusEvent},
	})
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP colony_co_command_results_total How commands ended on nodes, by state.
# TYPE colony_co_command_results_total counter
colony_co_command_results_total{state="done"} 2
# HELP colony_co_commands_refused_total Commands that sites refused as a whole, by code.
# TYPE colony_co_commands_refused_total counter
colony_co_commands_refused_total{code="bad_signature"} 1
colony_co_commands_refused_total{code="other"} 1
# HELP colony_co_commands_taken_total Commands that sites have taken.
# TYPE colony_co_commands_taken_total counter
colony_co_commands_taken_total 1
`)); err != nil {
		t.Error(err)
	}
	if !l.dirty["plant"] {
		t.Error("the site is not looked at")
	}
}
