package command_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/lo/api/local"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// restriction returns what restricts a node as far as the site has reported.
func (c *co) restriction(node protocol.NodeID) restriction.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restricted[node]
}

// at returns how the deployment is on a node, and in which version.
func (c *co) at(node protocol.NodeID) (lifecycle.State, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := string(node) + "/app"
	return c.states[at], c.versions[at]
}

// runs waits until a node has installed a version of the deployment.
func (c *co) runs(node protocol.NodeID, version string) {
	c.t.Helper()
	testpart.Eventually(c.t, fmt.Sprintf("version %s is installed at %s", version, node), func() bool {
		state, is := c.at(node)
		return state == lifecycle.Installed && is == version
	})
}

// TestHold holds a node by a command: an update waits there, and only there, over a restart of the LO, until the hold is released.
func TestHold(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	s.join("n1")
	s.join("n2")
	c.desire(1, protocol.Container{Name: "web", Image: "r/web"})
	c.runs("n1", "1")
	c.runs("n2", "1")
	id := c.send(c.command(command.Hold, command.Restriction{Reason: "a batch runs", ForMillis: 7_200_000}, "n1", "n9"))
	if r := c.ends(id, "n1", command.Done, ""); r.Output != "nothing on the node changes for 2h0m0s" || r.ByLO {
		t.Errorf("result %+v", r)
	}
	c.ends(id, "n9", command.Refused, command.NoNode)
	c.desire(2, protocol.Container{Name: "web", Image: "r/web:2"})
	c.runs("n2", "2")
	waits := func() bool {
		r := c.restriction("n1")
		return r.Wait("app") == "the update waits: the node is held by test: a batch runs"
	}
	testpart.Eventually(t, "the CO learns that the update of n1 waits", waits)
	s.stop()
	s.start()
	c.ends(c.send(c.command(command.Inventory, nil, "n1")), "n1", command.Done, "") // the LO and the node are there
	if _, version := c.at("n1"); !waits() || len(c.restriction("n1").Restrictions) != 1 || version != "1" {
		t.Errorf("after a restart of the LO n1 runs version %s and is restricted by %+v", version, c.restriction("n1"))
	}
	if r := c.restriction("n1").Restrictions[0]; r.Actor != "test" || r.Command != string(id) || r.UntilMillis == 0 {
		t.Errorf("the hold is %+v", r)
	}
	c.ends(c.send(c.command(command.Release, nil, "n1")), "n1", command.Done, "")
	c.runs("n1", "2")
	testpart.Eventually(t, "the CO learns that nothing restricts n1", func() bool {
		r := c.restriction("n1")
		return len(r.Restrictions) == 0 && len(r.Waits) == 0
	})
	// The command once more, as the CO publishes what it has lost: it holds the node no more.
	c.ends(c.send(c.command(command.Inventory, nil, "n1")), "n1", command.Done, "")
	if len(c.restriction("n1").Restrictions) != 0 {
		t.Error("the command was carried out twice")
	}
}

// TestSocket cordons a node at the machine of its LO, without a link to the CO, which learns the actor once the link is there.
func TestSocket(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	socket := filepath.Join(t.TempDir(), "lo.sock")
	s := newSite(t, c, func(o *lo.Options) { o.Socket = socket })
	s.join("n1")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	post := func(path, body string) string {
		t.Helper()
		r, err := client.Post("http://lo"+local.NodesPath+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	c.stop()
	if got := post("/n1/cordon", `{"reason":"new disk"}`); !strings.Contains(got, "nothing new is placed on the node until a person ends it") {
		t.Errorf("answer %s", got)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket has mode %v, %v", info.Mode(), err)
	}
	c.stop = c.start()
	testpart.Eventually(t, "the CO learns of the cordon", func() bool { return len(c.restriction("n1").Restrictions) == 1 })
	c.mu.Lock()
	did := c.did
	c.mu.Unlock()
	want := restriction.Change{Did: "cordon", Reason: "new disk", Actor: fmt.Sprintf("uid %d", os.Getuid()), Local: true}
	if len(did) != 1 || did[0] != want {
		t.Errorf("for its audit the CO learns %+v, want %+v", did, want)
	}
	c.desire(1, protocol.Container{Name: "web", Image: "r/web"})
	c.ends(c.send(c.command(command.Inventory, nil, "n1")), "n1", command.Done, "")
	if state, _ := c.at("n1"); state != "" {
		t.Errorf("the deployment is %s on a node that is cordoned", state)
	}
	post("/n1/uncordon", "")
	c.runs("n1", "1")
}
