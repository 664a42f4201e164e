// Package segmentstest is the CO's end of what a node collects, for tests, without a link between.
package segmentstest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"sync"
	"testing"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/command/segments"
	"github.com/colonyfleet/colony/internal/duplex"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// A way carries the segments of both ends. What has no room is lost.
type way struct {
	up   *duplex.Peer
	down chan wire.Segment
	lose func(up bool) bool
}

// Send takes a segment of the node.
func (w *way) Send(item []byte) error {
	var m wire.Segment
	if err := protocol.Unmarshal(item, &m); err != nil {
		return err
	}
	if w.lose(true) {
		return nil
	}
	return w.up.Accept(&m)
}

// Flush has nothing to do.
func (w *way) Flush() error { return nil }

// Input returns what the CO sent.
func (w *way) Input(ctx context.Context) (wire.Segment, error) {
	select {
	case m := <-w.down:
		return m, nil
	case <-ctx.Done():
		return wire.Segment{}, context.Cause(ctx)
	}
}

// errOver ends the CO's end.
var errOver = errors.New("the session is over")

// id is the session of each test.
const id wire.ID = "0123456789abcdef0123456789abcdef"

// Attend runs the node's end of a session until end is called, which returns its error. do receives the records of the node; the Peer is the CO's end.
// lose says which segments are lost. The session has a key of its own.
func Attend(t testing.TB, lose func(up bool) bool, run func(ctx context.Context, id wire.ID, key []byte, live segments.Live) error, do func(r wire.Record)) (peer *duplex.Peer, end func(wait bool) error) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &way{up: duplex.New(), down: make(chan wire.Segment, 64), lose: lose}
	var group sync.WaitGroup
	ctx, stop := context.WithCancelCause(t.Context())
	group.Go(func() {
		stop(w.up.Serve(ctx, func(list []wire.Record) error {
			for i := range list {
				do(list[i])
			}
			return nil
		}))
	})
	group.Go(func() {
		_ = w.up.Send(ctx, func(m *wire.Segment) error { // it ends with the test's end
			m.Sign(id, private)
			if !lose(false) {
				select {
				case w.down <- *m:
				default:
				}
			}
			return context.Cause(ctx)
		})
	})
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, id, public, w) }()
	return w.up, func(wait bool) (err error) {
		if wait {
			err = <-ended
		}
		stop(errOver)
		if !wait {
			err = <-ended
		}
		group.Wait()
		return err
	}
}

// Give runs what gives at a node until it ends, and returns what arrived, and its error.
func Give(t testing.TB, lose func(up bool) bool, run func(ctx context.Context, id wire.ID, key []byte, live segments.Live) error) (arrived []byte, err error) {
	t.Helper()
	var out bytes.Buffer
	_, end := Attend(t, lose, run, func(r wire.Record) { _, _ = out.Write(r.Data) }) // it never fails; an Exit has none
	err = end(true)
	return out.Bytes(), err
}

// Run has a kind carry out a command with arguments, and returns what arrived, its output and its error.
func Run(t testing.TB, kind command.Kind, args func(key []byte) wire.Args) (arrived []byte, output string, err error) {
	t.Helper()
	arrived, err = Give(t, func(bool) bool { return false }, func(ctx context.Context, id wire.ID, key []byte, live segments.Live) (err error) {
		output, err = kind.Run(ctx, command.Request{Command: &wire.Command{ID: id, Kind: kind.Kind, Args: protocol.Marshal(args(key))}, Live: live})
		return err
	})
	return arrived, output, err
}
