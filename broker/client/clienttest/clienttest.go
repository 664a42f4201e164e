// Package clienttest connects MQTT clients for tests of who gets in at a broker.
package clienttest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
)

// patience bounds the wait for an answer: far more than any needs, on a busy machine too.
const patience = time.Minute

// Attempt connects a client, and returns nil once it is connected and subscribed, or why its
// first attempt failed. The client is stopped then. Logger, OnUp and Handle of o are Attempt's.
func Attempt(t testing.TB, o client.Options) error {
	t.Helper()
	ended := make(chan error, 100)
	o.Logger, o.OnUp = slog.New(failures{ended}), func(context.Context, string) { ended <- nil }
	o.Handle = func(context.Context, client.Message) error { return nil }
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatalf("client %s: no answer within %s", o.ClientID, patience)
		return nil
	}
}

// failures is a log that hands on the errors in it: a client reports there why it cannot connect.
type failures struct{ to chan error }

func (failures) Enabled(context.Context, slog.Level) bool { return true }
func (f failures) WithAttrs([]slog.Attr) slog.Handler     { return f }
func (f failures) WithGroup(string) slog.Handler          { return f }
func (f failures) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && a.Key == "err" {
			f.to <- err
		}
		return true
	})
	return nil
}
