package projection

import (
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

func TestClientMessage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind protocol.EventKind
		m    protocol.ClientReport
		want string
	}{
		{protocol.ClientConnected, protocol.ClientReport{Client: "PLC_1", User: "plc", From: "10.0.0.7:4711, mqtt"}, "client PLC_1 of account plc, from 10.0.0.7:4711, mqtt"},
		{
			protocol.ClientDisconnected,
			protocol.ClientReport{Client: "PLC_2", User: "plc", From: "10.0.0.7:4711, mqtt", Reason: "keep-alive", Changes: 7},
			"client PLC_2 of account plc, from 10.0.0.7:4711, mqtt: keep-alive (7 changes since the last report)",
		},
		{protocol.ClientsChanged, protocol.ClientReport{Changes: 200, Connected: 150, Disconnected: 20}, "200 clients changed within some seconds: 150 connected, 20 disconnected, the others did both"},
	} {
		if got := clientMessage(tt.kind, &tt.m); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.m, got, tt.want)
		}
	}
}
