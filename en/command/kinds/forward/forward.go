// Package forward executes the command that forwards connections to a port of a container: of several, each with a number, over the two directions of a
// session.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/command/segments"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

const (
	// most bounds the connections of a session.
	most = 64
	// dialWait bounds the wait for the container to accept, and takeWait the time in which it takes nothing of what waits for it: the others wait meanwhile.
	dialWait = 10 * time.Second
	takeWait = 30 * time.Second
	// queue is how many pieces may wait for a connection.
	queue = 16
)

// Options are what the command needs of the agent. All are required.
type Options struct {
	Records func() []plan.Record
	List    func(ctx context.Context) ([]engine.Status, error)
	// Dial opens a TCP connection to a container.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// New returns the kind.
func New(o Options) command.Kind {
	return command.Kind{Kind: wire.Forward, Run: func(ctx context.Context, r command.Request) (string, error) {
		var request wire.ForwardRequest
		if err := protocol.Unmarshal(r.Command.Args, &request); err != nil {
			return "", command.Failf(wire.BadArguments, "%v", err)
		}
		c, err := command.One(ctx, o.Records(), o.List, request.Subject)
		if err != nil {
			return "", err
		}
		if c.Status.State != engine.Running {
			return "", command.Failf(wire.NoSuchSubject, "container %s does not run", c.Name())
		}
		host := c.Status.IP
		if host == "" {
			host = "127.0.0.1" // it has the network of the node
		}
		f := &forwarder{
			End: segments.New(r.Command.ID, request.Key, r.Live), connections: map[uint32]*connection{},
			dial: func(ctx context.Context) (net.Conn, error) {
				return o.Dial(ctx, net.JoinHostPort(host, strconv.Itoa(int(request.Port))))
			},
		}
		return "", f.run(ctx, c.Name())
	}}
}

// A forwarder forwards the connections of a session.
type forwarder struct {
	*segments.End
	dial  func(ctx context.Context) (net.Conn, error)
	group sync.WaitGroup // of the connections

	mu          sync.Mutex // protects connections
	connections map[uint32]*connection
}

// run forwards until ctx ends.
func (f *forwarder) run(ctx context.Context, name string) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var group sync.WaitGroup
	group.Go(func() { end(f.Receive(ctx)) })
	group.Go(func() {
		if err := f.Peer.Write(ctx, &wire.Record{Kind: wire.Began, Name: name}); err != nil {
			end(err)
		}
		end(f.Peer.Serve(ctx, func(list []wire.Record) error { return f.do(ctx, list) }))
	})
	err := f.Peer.Send(ctx, f.Send)
	end(err)
	group.Wait()
	f.group.Wait()
	return err
}

// do does what records say.
func (f *forwarder) do(ctx context.Context, list []wire.Record) error {
	for i := range list {
		r := &list[i]
		f.mu.Lock()
		c, open := f.connections[r.Channel], len(f.connections)
		f.mu.Unlock()
		switch {
		case r.Kind == wire.Dial && c != nil: // which no client of ours asks for
		case r.Kind == wire.Dial && open >= most:
			if err := f.Peer.Write(ctx, &wire.Record{Kind: wire.Closed, Channel: r.Channel, Name: fmt.Sprintf("a session has %d connections at most", most)}); err != nil {
				return err
			}
		case r.Kind == wire.Dial:
			f.begin(ctx, r.Channel)
		case c == nil: // it has ended
		case r.Kind == wire.Stdin:
			c.give(r.Data)
		case r.Kind == wire.StdinEnd:
			c.give(nil)
		case r.Kind == wire.Closed:
			c.end(errLeft)
		}
	}
	return ctx.Err()
}

// errLeft ends a connection whose client has ended it.
var errLeft = errors.New("the client has ended it")

// A connection is one to the container.
type connection struct {
	ctx context.Context
	end context.CancelCauseFunc
	in  chan []byte // nil: nothing follows
}

// give hands data on; it waits for room.
func (c *connection) give(data []byte) {
	late := time.NewTimer(takeWait)
	defer late.Stop()
	select {
	case c.in <- data:
	case <-c.ctx.Done():
	case <-late.C:
		c.end(fmt.Errorf("the container took nothing for %s", takeWait))
	}
}

// begin opens a connection.
func (f *forwarder) begin(ctx context.Context, channel uint32) {
	c := &connection{in: make(chan []byte, queue)}
	c.ctx, c.end = context.WithCancelCause(ctx)
	f.mu.Lock()
	f.connections[channel] = c
	f.mu.Unlock()
	f.group.Go(func() {
		err := f.forward(c, channel)
		c.end(err)
		f.mu.Lock()
		delete(f.connections, channel)
		f.mu.Unlock()
		why := ""
		if err != nil && !errors.Is(err, errLeft) {
			why = err.Error()
		}
		_ = f.Peer.Write(ctx, &wire.Record{Kind: wire.Closed, Channel: channel, Name: why}) // the session ends where it cannot be written
	})
}

// forward forwards both directions of a connection until they have ended.
func (f *forwarder) forward(c *connection, channel uint32) error {
	dialling, cancel := context.WithTimeout(c.ctx, dialWait)
	conn, err := f.dial(dialling)
	cancel()
	if err != nil {
		return cause(c.ctx, err)
	}
	closing := context.AfterFunc(c.ctx, func() { _ = conn.Close() })
	defer func() {
		closing()
		_ = conn.Close() // both directions have ended, or one failed
	}()
	var up sync.WaitGroup
	up.Go(func() {
		if err := f.up(c, conn, channel); err != nil {
			c.end(err)
		}
	})
	err = c.down(conn)
	if err != nil {
		c.end(err)
	}
	up.Wait()
	return cause(c.ctx, err)
}

// cause returns the cause of a cancelled context, which says why the connection ended; else err.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return why
	}
	return err
}

// up sends what the container says.
func (f *forwarder) up(c *connection, conn net.Conn, channel uint32) error {
	buffer := make([]byte, wire.MaxRecord)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			if err := f.Peer.Write(c.ctx, &wire.Record{Kind: wire.Stdout, Channel: channel, Data: buffer[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return f.Peer.Write(c.ctx, &wire.Record{Kind: wire.StdinEnd, Channel: channel})
		}
		if err != nil {
			return err
		}
	}
}

// down gives the container what the client says, to its end.
func (c *connection) down(conn net.Conn) error {
	for {
		select {
		case data := <-c.in:
			if data == nil {
				if half, ok := conn.(interface{ CloseWrite() error }); ok {
					return half.CloseWrite()
				}
				return nil
			}
			if err := conn.SetWriteDeadline(time.Now().Add(takeWait)); err != nil {
				return err
			}
			if _, err := conn.Write(data); err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					err = fmt.Errorf("the container took nothing for %s", takeWait)
				}
				return err
			}
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
}
