package broker_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/limits"
)

// narrow listens for connections for which the system takes hardly anything that the peer does not read: it takes
// some MB otherwise, so that little of what a test sends waits in the broker.
func narrow(ctx context.Context, network, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	return narrowListener{l}, err
}

type narrowListener struct{ net.Listener }

// Accept implements net.Listener.
func (l narrowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		err = tcp.SetWriteBuffer(4096)
	}
	return c, err
}

// TestUnreadAnswersAreBounded has many clients ask without end and read nothing: what waits for them stays within the
// limit for all, the guilty pay, and another client is served.
func TestUnreadAnswersAreBounded(t *testing.T) {
	t.Parallel()
	const clients, limit = 12, 2 << 20
	for name, question := range map[string]string{"PUBREL of an unknown id": "\x62\x02\x12\x34", "PINGREQ": "\xc0\x00"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The time that a client has for the next bytes ends no connection here: on a busy machine it could be over
			// first.
			b, reg := start(t, free{}, func(o *broker.Options) {
				o.Limits, o.Listen = limits.Limits{TotalWriteBuffer: limit, WriteTimeout: time.Hour}, narrow
			})
			canary := dialFrom(t, "127.0.0.9", b.Addr("main"))
			canary.mustConnect("canary", nil)
			flood := bytes.Repeat([]byte(question), 16<<10/len(question))
			var all sync.WaitGroup
			conns := make([]net.Conn, clients)
			for i := range clients {
				r := dialFrom(t, "127.0.0.2", b.Addr("main"))
				r.mustConnect(fmt.Sprint("c", i), nil)
				if err := r.conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
					t.Fatal(err)
				}
				conns[i] = r.conn
				all.Go(func() {
					_ = r.conn.SetWriteDeadline(time.Now().Add(10 * patience)) // a busy machine takes minutes for millions of questions
					for range 6 << 20 / len(flood) {
						if _, err := r.conn.Write(flood); err != nil {
							return
						}
					}
				})
			}
			done := make(chan struct{})
			go func() { all.Wait(); close(done) }()
			var most float64
			for over := false; !over; {
				select {
				case <-done:
					over = true
				default:
					most = max(most, metric(t, reg, "write_buffer_bytes"))
					canary.ping()
					over = metric(t, reg, "dropped_total", "memory") >= clients/3
				}
			}
			for _, c := range conns { // those that are left would ask for minutes on a busy machine
				_ = c.Close()
			}
			<-done
			if most > 8*limit { // while one is disconnected the others go on
				t.Errorf("%.0f bytes waited, the limit is %d", most, limit)
			}
			if metric(t, reg, "dropped_total", "memory") == 0 {
				t.Error("nobody was disconnected for the memory of all: the test shows nothing")
			}
			until(t, "what waits is within the limit", func() bool { return metric(t, reg, "write_buffer_bytes") <= limit })
		})
	}
}
