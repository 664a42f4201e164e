package broker_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// What ends a connection by the broker is said with the change, and counted by its code, whatever the version of the client.
func TestReasonsOfEnds(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ends := map[string]string{}
	b, reg := start(t, free{}, func(o *broker.Options) {
		o.Changed = func(c access.Change) {
			mu.Lock()
			defer mu.Unlock()
			if !c.Connected {
				ends[c.ClientID] = fmt.Sprint(c.Ended)
			}
		}
	})
	for _, version := range []byte{4, 5} {
		kicked := dialAs(t, b, version, fmt.Sprint("kicked-", version), false, nil)
		if err := b.Disconnect(fmt.Sprint("kicked-", version), false); err != nil {
			t.Fatal(err)
		}
		_ = kicked
		taken := dialAs(t, b, version, fmt.Sprint("taken-", version), false, nil)
		_ = dialAs(t, b, version, fmt.Sprint("taken-", version), false, nil)
		_ = taken
	}
	want := map[string]string{"kicked-4": "disconnected by an operator", "kicked-5": "disconnected by an operator", "taken-4": packets.ErrSessionTakenOver.Reason, "taken-5": packets.ErrSessionTakenOver.Reason}
	testpart.Eventually(t, "each end is said, with its reason", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for client, reason := range want {
			if ends[client] != reason {
				return false
			}
		}
		return true
	})
	for code, n := range map[string]float64{"0x98": 2, "0x8e": 2} {
		if got := metric(t, reg, "disconnects_total", code); got != n {
			t.Errorf("%v ends with %s, want %v", got, code, n)
		}
	}
}

// nobodyKnown refuses every client as one without an account.
type nobodyKnown struct{ free }

func (nobodyKnown) Connect(i access.ConnectInfo) (access.Identity, error) {
	return access.Identity{}, &access.BadCredentials{Err: protocol.Errorf(protocol.Denied, "no account %s", i.Username)}
}

// A client that has proved no account does not read why; the log has it.
func TestReasonOfBadCredentials(t *testing.T) {
	t.Parallel()
	var log lines
	b, _ := start(t, nobodyKnown{}, func(o *broker.Options) { log.logged(o) })
	ack := dialRaw(t, b.Addr("main")).connect("c", nil)
	if s := ack.Properties.ReasonString; ack.ReasonCode != packets.ErrNotAuthorized.Code || strings.Contains(s, "account c") || !strings.Contains(s, "wrong user name or password") {
		t.Errorf("CONNACK with 0x%02x %q", ack.ReasonCode, s)
	}
	if !log.has("connect refused", "no account c") {
		t.Error("the log does not say why")
	}
}
