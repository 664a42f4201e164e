package clients

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		w := New(func(_ context.Context, kind protocol.EventKind, m protocol.ClientReport) error {
			got = append(got, fmt.Sprintf("%s %s %s %q %d +%d -%d", kind, m.Client, m.User, m.Reason, m.Changes, m.Connected, m.Disconnected))
			return nil
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		defer func() { cancel(); <-done }()
		note := func(client string, connected bool, reason string) {
			c := access.Change{ConnectInfo: access.ConnectInfo{ClientID: client}, Identity: access.Identity{Name: "u-" + client, Client: client}, Connected: connected}
			if reason != "" {
				c.Ended = errors.New(reason)
			}
			w.Note(c)
		}
		reports := func(what string, want ...string) {
			t.Helper()
			if err := retry.Sleep(t.Context(), 2*settle); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
			got = nil
		}
		note("plc", true, "")
		w.Note(access.Change{ConnectInfo: access.ConnectInfo{ClientID: "gw-1.plant"}, Identity: access.Identity{Name: "gw-1.plant", Site: "plant", Node: "gw-1"}, Connected: true})
		reports("one connects, and a node", `client_connected plc u-plc "" 0 +0 -0`)
		reports("nothing happens")
		for range 20 {
			note("plc", false, "keep-alive")
			note("plc", true, "")
		}
		note("hmi", true, "")
		note("hmi", false, "bye")
		reports("one flaps, another is there for a moment", `client_disconnected hmi u-hmi "bye" 2 +0 -0`, `client_connected plc u-plc "" 40 +0 -0`)
		note("plc", false, "keep-alive")
		for i := range most {
			note(fmt.Sprint("c", i), true, "")
		}
		reports("many", fmt.Sprintf(`clients_changed   "" %d +%d -1`, most+1, most))
	})
}
