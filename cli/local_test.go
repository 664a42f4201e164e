package cli

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	lolocal "github.com/colonyfleet/colony/lo/api/local"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/nodes/nodestatus"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// TestLocalNode works with the nodes of a site at its socket.
func TestLocalNode(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := lolocal.New(lolocal.Options{
		Listener: l, Logger: slog.New(slog.DiscardHandler),
		Nodes: func() any {
			return []nodestatus.NodeStatus{{
				Node: "gw-1", Online: true, Restrictions: []restriction.Restriction{{Kind: restriction.Hold, Reason: "a batch runs", Actor: "uid 0"}},
				Waits: []restriction.Wait{{Deployment: "web", Why: "the update waits"}},
			}, {Node: "gw-2"}}
		},
		Restrict: func(_ context.Context, node protocol.NodeID, c nodes.Change) (string, error) {
			if node == "gw-9" {
				return "", protocol.Errorf(protocol.NotFound, "the site has no node gw-9")
			}
			return c.Said(nodes.Outcome{Facts: make([]nodes.Fact, 1)}), nil
		},
	})
	done := make(chan error, 1)
	go func() { done <- s.Run() }()
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		<-done
	})
	at := " --socket " + socket
	wantRun(t, "", "lo node list"+at, table("NODE STATE SINCE RESTRICTED WAITS", "gw-1 online - held by uid 0: a batch runs web: the update waits", "gw-2 offline - - -"), "", exitOK)
	wantRun(t, "", "lo node hold gw-1 --reason batch --for 2h"+at, "gw-1: nothing on the node changes for 2h0m0s\n", "", exitOK)
	wantRun(t, "", "lo node uncordon gw-1"+at, "gw-1: the node is open for new work\n", "", exitOK)
	wantRun(t, "", "lo node cordon gw-9 --reason broken"+at, "", "the site has no node gw-9\n", exitNotFound)
	wantRun(t, "", "lo node cordon gw-1"+at, "", "required flag(s) \"reason\" not set (see colony lo node cordon --help)\n", exitUsage)
	wantRun(t, "", "lo node cordon gw-1 --reason x --for 1ms"+at, "", "for 1ms: want 1s to 8784h0m0s, or nothing for until it is ended\n", exitUsage)
	wantRun(t, "", "lo node list --socket /none", "", "the local orchestrator does not answer at the socket /none (Get \"http://lo/api/v1/nodes\": dial unix /none: connect: no such file or directory): see that it runs, that its configuration names the socket, and that you may open it\n", exitUnavailable)
}
