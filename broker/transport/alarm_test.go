package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// A counted connection counts how often its deadlines are set.
type counted struct {
	*net.TCPConn
	reads, writes atomic.Int64
}

func (c *counted) SetReadDeadline(t time.Time) error {
	c.reads.Add(1)
	return c.TCPConn.SetReadDeadline(t)
}

func (c *counted) SetWriteDeadline(t time.Time) error {
	c.writes.Add(1)
	return c.TCPConn.SetWriteDeadline(t)
}

// countedPair returns a Conn over TCP, what counts its deadlines, and the other end.
func (h *hub) countedPair(t *testing.T) (*Conn, *counted, net.Conn) {
	near, far := sockets(t)
	n := &counted{TCPConn: near}
	c := New(n, &h.Options)
	c.SetWindow(10)
	t.Cleanup(func() { _ = c.Close() })
	return c, n, far
}

// Packets in a row set no timer each, neither those that come nor those that are written at once.
func TestPacketsSetNoTimers(t *testing.T) {
	h := newHub(t, 1<<20)
	c, n, far := h.countedPair(t)
	const packets = 1000
	for range packets {
		c.Expect(time.Hour)
		if _, err := far.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ReadByte(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte{2}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.reads.Load(); got > packets/100 {
		t.Errorf("%d packets set %d timers for the next one", packets, got)
	}
	if got := n.writes.Load(); got > 0 {
		t.Errorf("%d packets that were written at once set %d timers", packets, got)
	}
}

// The time until which the next packet is to be there counts from the last one, however the timer was set.
func TestExpectCountsFromTheLast(t *testing.T) {
	const within = 200 * time.Millisecond
	for name, calls := range map[string]func(c *Conn){
		"later":            func(c *Conn) { c.Expect(within); c.Expect(within + within/10) },
		"sooner":           func(c *Conn) { c.Expect(time.Hour); c.Expect(within) },
		"never, then":      func(c *Conn) { c.Expect(0); c.Expect(within) },
		"for ever, by and": func(c *Conn) { c.Expect(within); c.Expect(0); c.Expect(within) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, 1<<20)
			c, _, _ := h.countedPair(t)
			begun := time.Now()
			calls(c)
			for _, read := range []func() error{
				func() error { _, err := c.ReadByte(); return err },
				func() error { _, err := c.Read(make([]byte, 2*readBuffer)); return err },
			} {
				if err := read(); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("read: %v: want the end of the time", err)
				}
			}
			if took := time.Since(begun); took < within {
				t.Errorf("the reader waited %s: want %s", took, within)
			}
		})
	}
}
