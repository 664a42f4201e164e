// Package clienttest connects MQTT clients for tests of access to a broker.
package clienttest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/testpart"
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

// Join connects a client and waits until it is connected and subscribed. It is stopped when the
// test ends. Without a ClientID it has its user name.
func Join(t testing.TB, o client.Options) *client.Client {
	t.Helper()
	up := notify.New()
	if o.ClientID == "" {
		o.ClientID = o.Username
	}
	then := o.OnUp
	o.OnUp = func(ctx context.Context, s string) {
		up.Notify()
		if then != nil {
			then(ctx, s)
		}
	}
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, c)
	select {
	case <-up.C():
	case <-time.After(patience):
		t.Fatalf("client %s: not connected within %s", o.ClientID, patience)
	}
	return c
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
