package memnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

// pair returns both ends of a connection from a to b.
func pair(n *Network) (near, far net.Conn, err error) {
	l, err := n.Host("b").Listen(context.Background(), "tcp", "b:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if near, err = n.Host("a").DialContext(context.Background(), "tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	far, err = l.Accept()
	return near, far, err
}

func mustPair(t *testing.T, n *Network) (near, far net.Conn) {
	t.Helper()
	near, far, err := pair(n)
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

// TestConn holds the ends to the contract of net.Conn.
func TestConn(t *testing.T) {
	t.Parallel()
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		c1, c2, err = pair(New(1))
		return c1, c2, func() {
			_ = c1.Close() // the tests close some of them
			_ = c2.Close()
		}, err
	})
}

func TestDelayAndRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		n.Path("a", "b").Set(Profile{Delay: 100 * time.Millisecond, Rate: mss + headerBytes})
		begun := time.Now()
		near, far := mustPair(t, n)
		if took := time.Since(begun); took != 200*time.Millisecond {
			t.Errorf("the connection took %s: want a round trip of 200ms", took)
		}
		begun = time.Now()
		if _, err := near.Write(make([]byte, 2*mss)); err != nil {
			t.Fatal(err)
		}
		for i := 1; i <= 2; i++ {
			if _, err := io.ReadFull(far, make([]byte, mss)); err != nil {
				t.Fatal(err)
			}
			if took, want := time.Since(begun), time.Duration(i)*time.Second+100*time.Millisecond; took != want {
				t.Errorf("segment %d arrived after %s: want %s", i, took, want)
			}
		}
	})
}

// arrivals sends single bytes over a lossy path and returns when each arrived.
func arrivals(t *testing.T, seed uint64) (at []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		n := New(seed)
		n.Path("b", "a").Set(Profile{Delay: 10 * time.Millisecond, Jitter: 10 * time.Millisecond, Loss: 0.3})
		near, far := mustPair(t, n)
		begun := time.Now()
		for range 50 {
			if _, err := near.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			if _, err := far.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			at = append(at, time.Since(begun))
		}
	})
	return at
}

func TestSeed(t *testing.T) {
	t.Parallel()
	one, same, other := arrivals(t, 1), arrivals(t, 1), arrivals(t, 2)
	if !slices.Equal(one, same) {
		t.Errorf("one seed, two courses:\n%v\n%v", one, same)
	}
	if slices.Equal(one, other) {
		t.Errorf("two seeds, one course: %v", one)
	}
	if lossless := 50 * 20 * time.Millisecond; one[49] < lossless+5*rtoMin {
		t.Errorf("50 bytes at a loss of 0.3 took %s: want the losses to take time", one[49])
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		path := n.Path("a", "b")
		path.Set(Profile{Delay: 10 * time.Millisecond})
		near, far := mustPair(t, n)
		write := func(b byte) {
			if _, err := near.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		read := func() (byte, error) {
			b := make([]byte, 1)
			_, err := far.Read(b)
			return b[0], err
		}
		write(1) // under way when the path is cut
		path.Cut()
		write(2)
		if err := far.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if _, err := read(); !isTimeout(err) {
			t.Errorf("read over a cut path: %v, want a timeout", err)
		}
		if err := far.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, path.Restore)
		begun := time.Now()
		for want := byte(1); want <= 2; want++ {
			if got, err := read(); got != want || err != nil {
				t.Errorf("read %d, %v after the cut: want %d", got, err, want)
			}
		}
		if took := time.Since(begun); took != time.Minute+10*time.Millisecond {
			t.Errorf("bytes arrived %s after the cut was to end: want a minute and the delay", took)
		}
	})
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

func TestDialWaitsForTheCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		l, err := n.Host("b").Listen(context.Background(), "tcp", ":1883")
		if err != nil {
			t.Fatal(err)
		}
		n.Path("a", "b").Cut()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := n.Host("a").DialContext(ctx, "tcp", "b:1883"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial over a cut path: %v, want the deadline's error", err)
		}
		time.AfterFunc(time.Hour, n.Path("a", "b").Restore)
		begun := time.Now()
		if _, err := n.Host("a").DialContext(t.Context(), "tcp", "b:1883"); err != nil || time.Since(begun) != time.Hour {
			t.Errorf("dial: %v after %s, want a connection after the hour", err, time.Since(begun))
		}
		if _, err := n.Host("b").Listen(context.Background(), "tcp", "b:1883"); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("second listener: %v, want EADDRINUSE", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Host("a").DialContext(t.Context(), "tcp", "b:1883"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial without a listener: %v, want ECONNREFUSED", err)
		}
	})
}

func TestWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := mustPair(t, New(1))
		if err := near.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := near.Write(make([]byte, 2*Window)); n != Window || !isTimeout(err) {
			t.Errorf("write without a reader: %d bytes, %v; want %d and a timeout", n, err, Window)
		}
		if n, err := io.ReadFull(far, make([]byte, Window)); err != nil {
			t.Errorf("read %d of %d bytes: %v", n, Window, err)
		}
	})
}

func TestEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end   func(p *Path, near net.Conn) error
		read  error
		write error
	}{
		"close":       {func(_ *Path, near net.Conn) error { return near.Close() }, io.EOF, syscall.EPIPE},
		"close write": {func(_ *Path, near net.Conn) error { return near.(*conn).CloseWrite() }, io.EOF, nil},
		"reset":       {func(p *Path, _ net.Conn) error { p.Reset(); return nil }, syscall.ECONNRESET, syscall.ECONNRESET},
		"close while cut": {func(p *Path, near net.Conn) error {
			p.Cut()
			time.AfterFunc(time.Minute, p.Restore)
			return near.Close()
		}, io.EOF, syscall.EPIPE},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := New(1)
				n.Path("a", "b").Set(Profile{Delay: time.Millisecond})
				near, far := mustPair(t, n)
				if err := c.end(n.Path("a", "b"), near); err != nil {
					t.Fatal(err)
				}
				if _, err := far.Read(make([]byte, 1)); !errors.Is(err, c.read) {
					t.Errorf("read at the other end: %v, want %v", err, c.read)
				}
				if _, err := far.Write([]byte{1}); !errors.Is(err, c.write) {
					t.Errorf("write at the other end: %v, want %v", err, c.write)
				}
			})
		})
	}
}

func ExampleNetwork() {
	n := New(1)
	l, _ := n.Host("server").Listen(context.Background(), "tcp", ":80")
	go func() {
		c, _ := l.Accept()
		_, _ = fmt.Fprint(c, "hello")
		_ = c.Close()
	}()
	c, _ := n.Host("client").DialContext(context.Background(), "tcp", "server:80")
	b, _ := io.ReadAll(c)
	fmt.Println(string(b))
	// Output: hello
}
