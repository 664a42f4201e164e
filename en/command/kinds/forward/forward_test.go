package forward

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/colonyfleet/colony/en/command/segments"
	"github.com/colonyfleet/colony/en/command/segments/segmentstest"
	"github.com/colonyfleet/colony/internal/testpart"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// client is a client of a session, with what came for each connection.
type client struct {
	mu     sync.Mutex
	data   map[uint32][]byte
	eof    map[uint32]bool
	closed map[uint32]string
}

func (c *client) take(r wire.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.Kind { //nolint:exhaustive // the others are not about connections
	case wire.Stdout:
		c.data[r.Channel] = append(c.data[r.Channel], r.Data...)
	case wire.StdinEnd:
		c.eof[r.Channel] = true
	case wire.Closed:
		c.closed[r.Channel] = "closed: " + r.Name
	}
}

func (c *client) has(channel uint32, want []byte) func() bool {
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return bytes.Equal(c.data[channel], want)
	}
}

func (c *client) ended(channel uint32, want string) func() bool {
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.closed[channel] != "" && strings.Contains(c.closed[channel], want)
	}
}

// attend begins a session that forwards to a server, which does serve with each connection.
func attend(t *testing.T, serve func(conn *net.TCPConn)) (say func(r wire.Record), c *client, end func(bool) error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			tcp, _ := conn.(*net.TCPConn) // what such a listener gives
			go serve(tcp)
		}
	}()
	c = &client{data: map[uint32][]byte{}, eof: map[uint32]bool{}, closed: map[uint32]string{}}
	peer, end := segmentstest.Attend(t, func(bool) bool { return false }, func(ctx context.Context, id wire.ID, key []byte, live segments.Live) error {
		f := &forwarder{End: segments.New(id, key, live), connections: map[uint32]*connection{}, dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		}}
		return f.run(ctx, "web/app")
	}, c.take)
	return func(r wire.Record) {
		if err := peer.Write(t.Context(), &r); err != nil {
			t.Error(err)
		}
	}, c, end
}

// Several connections at the same time each get what is theirs, whole; and one ends once both ends have said all.
func TestConnections(t *testing.T) {
	t.Parallel()
	say, c, end := attend(t, func(conn *net.TCPConn) {
		_, _ = io.Copy(conn, conn)
		_ = conn.Close()
	})
	content := map[uint32][]byte{}
	var group sync.WaitGroup
	for channel := range uint32(5) {
		channel++
		data := bytes.Repeat([]byte{byte(channel), 1, 2}, 100_000)
		content[channel] = data
		group.Go(func() {
			say(wire.Record{Kind: wire.Dial, Channel: channel})
			say(wire.Record{Kind: wire.Stdin, Channel: channel, Data: data})
			say(wire.Record{Kind: wire.StdinEnd, Channel: channel})
		})
	}
	group.Wait()
	for channel, want := range content {
		testpart.Eventually(t, "all has come back", c.has(channel, want))
		testpart.Eventually(t, "the connection has ended", c.ended(channel, "closed: "))
	}
	c.mu.Lock()
	if len(c.eof) != 5 {
		t.Errorf("%d connections have said that nothing follows, want 5", len(c.eof))
	}
	c.mu.Unlock()
	if err := end(false); err == nil {
		t.Error("a session that was ended has ended by itself")
	}
}

// What cannot be reached, one connection too many, one that breaks and one that the client ends cost that connection alone.
func TestFailingConnections(t *testing.T) {
	t.Parallel()
	arrived, left := make(chan struct{}, most), make(chan struct{}, most)
	say, c, end := attend(t, func(conn *net.TCPConn) {
		first := make([]byte, 1)
		_, _ = io.ReadFull(conn, first)
		if first[0] == 'b' { // break
			_ = conn.SetLinger(0)
			_ = conn.Close()
			return
		}
		arrived <- struct{}{}
		_, _ = io.Copy(io.Discard, conn)
		left <- struct{}{}
		_ = conn.Close()
	})
	say(wire.Record{Kind: wire.Dial, Channel: 1})
	say(wire.Record{Kind: wire.Stdin, Channel: 1, Data: []byte("b")})
	testpart.Eventually(t, "one that breaks has ended, and why", c.ended(1, "reset"))
	for channel := range uint32(most) {
		say(wire.Record{Kind: wire.Dial, Channel: 2 + channel})
		say(wire.Record{Kind: wire.Stdin, Channel: 2 + channel, Data: []byte("a")})
	}
	for range most {
		<-arrived
	}
	say(wire.Record{Kind: wire.Dial, Channel: 1000})
	testpart.Eventually(t, "one too many", c.ended(1000, "64 connections at most"))
	say(wire.Record{Kind: wire.Closed, Channel: 2})
	<-left
	testpart.Eventually(t, "one that the client ends has ended", c.ended(2, "closed: "))
	say(wire.Record{Kind: wire.Stdin, Channel: 77, Data: []byte("of no connection")})
	_ = end(false)
	for range most - 1 {
		<-left // the end of the session ends all
	}
}

func TestNothingListens(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	c := &client{data: map[uint32][]byte{}, eof: map[uint32]bool{}, closed: map[uint32]string{}}
	peer, end := segmentstest.Attend(t, func(bool) bool { return false }, func(ctx context.Context, id wire.ID, key []byte, live segments.Live) error {
		f := &forwarder{End: segments.New(id, key, live), connections: map[uint32]*connection{}, dial: func(context.Context) (net.Conn, error) { return nil, refused }}
		return f.run(ctx, "web/app")
	}, c.take)
	if err := peer.Write(t.Context(), &wire.Record{Kind: wire.Dial, Channel: 1}); err != nil {
		t.Fatal(err)
	}
	testpart.Eventually(t, "it says so", c.ended(1, "connection refused"))
	_ = end(false)
}
