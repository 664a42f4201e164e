package command

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

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
		event(protocol.CommandReceived, command.Received{V: 1}),
		event(protocol.CommandReceived, command.Received{V: 1, Code: command.BadSignature}),
		event(protocol.CommandReceived, command.Received{V: 1, Code: "of_a_later_release"}),
		event(protocol.CommandResult, command.Result{V: 1, State: command.Running}),
		event(protocol.CommandResult, command.Result{V: 1, State: command.Done}),
		event(protocol.CommandResult, command.Result{V: 1, State: command.Done}),
		{Kind: protocol.CommandResult, Body: []byte("no CBOR")},
		{Kind: protocol.StatusEvent},
	})
	got := map[string]float64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, f := range families {
		for _, m := range f.Metric {
			label := ""
			for _, l := range m.Label {
				label = l.GetValue()
			}
			series[f.GetName()]++
			if v := m.Counter.GetValue(); v > 0 {
				got[f.GetName()+" "+label] = v
			}
		}
	}
	if d := cmp.Diff(map[string]float64{
		"colony_co_command_results_total done": 2, "colony_co_commands_refused_total bad_signature": 1, "colony_co_commands_refused_total other": 1, "colony_co_commands_received_total ": 1,
	}, got); d != "" {
		t.Error(d)
	}
	// A series that begins with 1 has not increased: each code is there from the start.
	if n := series["colony_co_commands_refused_total"]; n != len(command.Codes())+1 {
		t.Errorf("%d series of refusals, want one of each code and one of the others", n)
	}
	if !l.dirty["plant"] {
		t.Error("the site is not looked at")
	}
}
