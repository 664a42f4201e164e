package portforward

import (
	"errors"
	"io"
	"net"
	"time"

	"github.com/colonyfleet/colony/internal/retry"
)

// acceptPause is how long a port that cannot take connections up, for want of descriptors,
// waits before it tries again.
const acceptPause = 100 * time.Millisecond

// serveTCP listens, and hands each connection on.
func (o *port) serveTCP(address string) error {
	l, err := net.Listen("tcp6", address)
	if err != nil {
		return err
	}
	if !o.hold(l) {
		return net.ErrClosed
	}
	slots := make(chan struct{}, maxConnections)
	o.running.Go(func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				_ = retry.Sleep(o.ctx, acceptPause) // it ends with the port: then the next Accept fails
				continue
			}
			select {
			case slots <- struct{}{}:
				o.running.Go(func() {
					defer func() { <-slots }()
					if !o.forwarder.enter() {
						_ = conn.Close() // see below
						return
					}
					defer o.forwarder.leave()
					o.connect(conn.(*net.TCPConn))
				})
			default:
				_ = conn.Close() // a client that would wait in vain sees it at once
			}
		}
	})
	return nil
}

// connect hands one connection on until both sides have ended it.
func (o *port) connect(from *net.TCPConn) {
	if !o.hold(from) {
		return
	}
	defer o.drop(from)
	if o.forwarder.refused(from.RemoteAddr().(*net.TCPAddr).AddrPort()) {
		return
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(o.ctx, "tcp4", o.to)
	if err != nil {
		_ = from.SetLinger(0) // the client is refused, as by a port without a listener
		return
	}
	to := conn.(*net.TCPConn)
	if !o.hold(to) {
		return
	}
	defer o.drop(to)
	done := make(chan struct{})
	o.running.Go(func() {
		defer close(done)
		pump(to, from)
	})
	pump(from, to)
	<-done
}

// pump copies one direction, and passes its end on.
func pump(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		// One side is away: so is the connection.
		_ = errors.Join(to.Close(), from.Close())
		return
	}
	_ = to.CloseWrite() // the other direction sees the end of a connection that is broken
}
