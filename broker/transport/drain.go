package transport

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// ErrDrained ends the reading of a Conn after Drain: all that had arrived is read.
var ErrDrained = errors.New("the connection is about to be ended, and all that had arrived is read")

// Drain makes the reader of c go on until it has read what has arrived, and then end with
// ErrDrained. It returns at once; false where the transport does not say what has arrived, such as TLS,
// or where c has ended: then nothing changes. The caller closes c where the peer sends on and on.
func (c *Conn) Drain() bool {
	if _, ok := c.raw.(syscall.Conn); !ok {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.broken {
		return false
	}
	c.draining = true
	c.wakeAt(time.Now())
	return true
}

// drained calls try, which reads what has arrived without waiting, if the reader was woken by Drain; err is
// that of the read before.
func (c *Conn) drained(err error, try func(fd uintptr) bool) error {
	c.mu.Lock()
	draining := c.draining && !c.closed
	c.mu.Unlock()
	if !draining || !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	fd, err := c.raw.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	more := false
	if err := fd.Control(func(fd uintptr) { more = try(fd) }); err != nil {
		return err
	}
	if !more { // nothing, or the end, or an error: all the same now
		return ErrDrained
	}
	return nil
}
