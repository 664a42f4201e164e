package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

const (
	readBuffer  = 2048 // bytes that one read takes; of a packet that is larger the rest is read past it
	ownedBuffer = 512  // the same where the transport does not say when it has something, as TLS
)

// readBuffers are for connections on which something has arrived. Most connections are idle, and have none.
var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// incoming is what has arrived and is not read yet. The goroutine that reads the Conn has it for itself.
type incoming struct {
	buf      []byte
	from, to int

	// Where the transport says when it has something; else both are nil.
	raw syscall.RawConn
	try func(fd uintptr) (done bool) // fills buf, without waiting
	err error                        // why try has read nothing
}

// prepare prepares reading.
func (c *Conn) prepare() {
	s, ok := c.raw.(syscall.Conn)
	if !ok || !readsNow {
		return
	}
	if raw, err := s.SyscallConn(); err == nil {
		c.in.raw, c.in.try = raw, c.tryFill
	}
}

// ReadByte implements io.ByteReader. Idle connections wait in it, so its stack frames are few and small: with
// more than 1,120 bytes on average the runtime gives each goroutine a stack of 4 KiB in place of 2.
func (c *Conn) ReadByte() (byte, error) {
	if c.in.from == c.in.to {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	b := c.in.buf[c.in.from]
	c.took(1)
	return b, nil
}

// Read implements io.Reader.
func (c *Conn) Read(p []byte) (int, error) {
	if c.in.from == c.in.to {
		if len(p) >= readBuffer {
			n, err := c.read(p)
			return n, c.ending(err)
		}
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.in.buf[c.in.from:c.in.to])
	c.took(n)
	return n, nil
}

// Buffered is how many bytes have arrived that Read returns at once. The goroutine that reads c calls it.
func (c *Conn) Buffered() int { return c.in.to - c.in.from }

// took notes that n bytes were read. After the last one the buffer goes back.
func (c *Conn) took(n int) {
	c.in.from += n
	if c.in.from < c.in.to {
		return
	}
	c.in.from, c.in.to = 0, 0
	if c.in.raw != nil {
		readBuffers.Put((*[readBuffer]byte)(c.in.buf))
		c.in.buf = nil
	}
}

// fill waits until something arrives.
func (c *Conn) fill() error {
	if c.in.raw != nil {
		return c.ending(c.readReady())
	}
	if c.in.buf == nil {
		c.in.buf = make([]byte, ownedBuffer)
	}
	n, err := c.read(c.in.buf)
	c.in.to = n
	return c.ending(err)
}

// ending acts on the error of a read, and returns what the reader gets.
func (c *Conn) ending(err error) error {
	switch {
	case c.Closed():
		return net.ErrClosed
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // it may have ended its own direction alone
		c.mu.Lock()
		c.left = true
		c.Hold(-c.out.DropMessages()) // answers stay: they are owed
		c.moved()
		c.mu.Unlock()
	case !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, ErrDrained):
		c.mu.Lock()
		c.breakLocked() // nothing can be said to a peer that has left
		c.mu.Unlock()
	}
	return err
}

// readReady waits until something has arrived, and takes a buffer for it only then.
func (c *Conn) readReady() error {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if c.Closed() {
		return net.ErrClosed
	}
	for {
		err := c.in.raw.Read(c.in.try)
		switch {
		case err == nil:
			return c.in.err
		case !c.tooEarly(err):
			return c.drained(err, c.fillNow)
		}
	}
}

// fillNow reports whether something has arrived, and reads it.
func (c *Conn) fillNow(fd uintptr) bool { return c.tryFill(fd) && c.in.err == nil }

// tryFill reads what has arrived into a buffer. It is the function of incoming.try.
func (c *Conn) tryFill(fd uintptr) (done bool) {
	b := readBuffers.Get().(*[readBuffer]byte)
	n, err := readNow(fd, b[:])
	if n > 0 {
		c.in.buf, c.in.to, c.in.err = b[:], n, nil
		return true
	}
	readBuffers.Put(b)
	if errors.Is(err, syscall.EAGAIN) {
		return false
	}
	if err == nil {
		err = io.EOF
	}
	c.in.err = err
	return true
}

// read reads into p.
func (c *Conn) read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if c.Closed() {
		return 0, net.ErrClosed
	}
	for {
		n, err := c.raw.Read(p)
		switch {
		case n > 0 || err == nil:
			return n, nil
		case !c.tooEarly(err):
			return c.readLast(p, err)
		}
	}
}

// readLast reads into p what has arrived before Drain; err is that of the read before.
func (c *Conn) readLast(p []byte, err error) (n int, _ error) {
	err = c.drained(err, func(fd uintptr) bool {
		n, _ = readNow(fd, p)
		return n > 0
	})
	return max(n, 0), err
}
