// Package segments carries the two directions of a session over a live command. It is the node's end: of a program that a person uses, and of
// files that are collected at the node.
package segments

import (
	"context"
	"io"
	"sync"

	"github.com/colonyfleet/colony/internal/duplex"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// A Live carries segments, see command.Live of the agent.
type Live interface {
	// Send adds an item, encoded. It waits for credit. An error ends the execution.
	Send(item []byte) error
	// Flush sends what was added, without waiting for more.
	Flush() error
	// Input returns the next segment that was sent to the command. It waits for one, until ctx ends.
	Input(ctx context.Context) (command.Segment, error)
}

// An End is the node's end. One goroutine calls Send, another one Receive.
type End struct {
	Session command.ID
	Key     []byte // public: what comes down is signed by its private key
	Live    Live
	Peer    *duplex.Peer
}

// New returns an end that has sent nothing.
func New(session command.ID, key []byte, live Live) *End {
	return &End{session, key, live, duplex.New()}
}

// Send sends a segment up, at once.
func (e *End) Send(m *command.Segment) error {
	if err := e.Live.Send(protocol.Marshal(m)); err != nil {
		return err
	}
	return e.Live.Flush()
}

// Receive takes what comes down until ctx ends, or it cannot be read. What the CO did not sign counts as lost.
func (e *End) Receive(ctx context.Context) error {
	for {
		m, err := e.Live.Input(ctx)
		if err == nil && m.Verify(e.Session, e.Key) {
			err = e.Peer.Accept(&m)
		}
		if err != nil {
			return err
		}
	}
}

// Give sends what produce writes as standard output, and then its end, until all of it has arrived, produce fails, or ctx ends. It returns
// once produce has.
func (e *End) Give(ctx context.Context, produce func(ctx context.Context, w io.Writer) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var group sync.WaitGroup
	var produced error
	group.Go(func() {
		produced = produce(ctx, &output{ctx, e.Peer})
		if produced == nil {
			produced = e.Peer.Write(ctx, &command.Record{Kind: command.Exit})
		}
		if produced != nil {
			end(produced)
		}
		e.Peer.Close()
	})
	group.Go(func() { end(e.Receive(ctx)) })
	group.Go(func() {
		end(e.Peer.Serve(ctx, func([]command.Record) error { return nil })) // nothing that may come means anything
	})
	err := e.Peer.Send(ctx, e.Send)
	end(err)
	group.Wait()
	if err == nil {
		err = produced // Send may have seen that no more comes before it saw why
	}
	return err
}

// An output writes standard output.
type output struct {
	ctx  context.Context
	peer *duplex.Peer
}

// Write waits for room.
func (o *output) Write(b []byte) (int, error) {
	if err := o.peer.Write(o.ctx, &command.Record{Kind: command.Stdout, Data: b}); err != nil {
		return 0, err
	}
	return len(b), nil
}
