package impair

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer listens behind the proxy and hands out what connects.
type peer struct {
	t     *testing.T
	proxy *Proxy
	conns chan net.Conn
}

func newPeer(t *testing.T, p Profile) *peer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &peer{t: t, conns: make(chan net.Conn, 16)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.conns <- c
		}
	}()
	if s.proxy, err = Listen(ln.Addr().String(), p, 7); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.proxy.Close(); err != nil {
			t.Error(err)
		}
		ln.Close()
		<-done
		for {
			select {
			case c := <-s.conns:
				c.Close()
			default:
				return
			}
		}
	})
	return s
}

// connect returns both ends of a connection through the proxy.
func (s *peer) connect() (client, server net.Conn) {
	s.t.Helper()
	client, err := net.Dial("tcp", s.proxy.Addr())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { client.Close() })
	select {
	case server = <-s.conns:
	case <-time.After(time.Minute):
		s.t.Fatal("nothing came through the proxy")
	}
	s.t.Cleanup(func() { server.Close() })
	for _, c := range []net.Conn{client, server} {
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			s.t.Fatal(err)
		}
	}
	return client, server
}

// carry sends n random bytes from one end to the other, checks them, and
// returns how long the last one took.
func carry(t *testing.T, from, to net.Conn, n int) time.Duration {
	t.Helper()
	took, err := transfer(from, to, n)
	if err != nil {
		t.Fatal(err)
	}
	return took
}

func transfer(from, to net.Conn, n int) (time.Duration, error) {
	want := make([]byte, n)
	_, _ = rand.Read(want)
	begin := time.Now()
	wrote := make(chan error, 1)
	go func() {
		_, err := from.Write(want)
		wrote <- err
	}()
	got := make([]byte, n)
	if _, err := io.ReadFull(to, got); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	if err := <-wrote; err != nil {
		return 0, err
	}
	if !bytes.Equal(got, want) {
		return 0, errors.New("other bytes arrived than were sent")
	}
	return took, nil
}

// delivered waits until the proxy has counted n delivered bytes: it counts a
// moment after they are there.
func (s *peer) delivered(n uint64) Counters {
	s.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		got := s.proxy.Stats().Up
		if got.Delivered == n {
			return got
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("counted %+v, want %d delivered", got, n)
		}
		<-time.After(time.Millisecond)
	}
}

// within checks a time: it must not be much shorter than the link allows, and may
// be longer by what a busy machine needs.
func within(t *testing.T, what string, got, want time.Duration, part float64, slack time.Duration) {
	t.Helper()
	off := time.Duration(part*float64(want)) + slack
	if got < want-off || got > want+off+want/4+200*time.Millisecond {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// wire is how many bytes n bytes are on the link, all in full segments but the last.
func wire(n int) int { return n + (n+MSS-1)/MSS*HeaderBytes }

func TestRate(t *testing.T) {
	t.Parallel()
	const rate, n = 100_000, 200_000
	s := newPeer(t, Profile{Rate: rate})
	client, server := s.connect()
	want := time.Duration(wire(n)) * time.Second / rate
	within(t, "up", carry(t, client, server, n), want, 0.03, 20*time.Millisecond)
	got := s.delivered(n)
	// A read may find less than a segment, so there may be a few more headers.
	if w := uint64(wire(n)); got.Wire < w || got.Wire > w+w/50 {
		t.Errorf("counted %+v, want %d on the wire", got, w)
	}
	within(t, "down", carry(t, server, client, n), want, 0.03, 20*time.Millisecond)
}

func TestConnectionsShareTheLink(t *testing.T) {
	t.Parallel()
	const rate, n = 100_000, 50_000
	s := newPeer(t, Profile{Rate: rate})
	begin := time.Now()
	done := make(chan error, 2)
	for range 2 {
		client, server := s.connect()
		go func() {
			_, err := transfer(client, server, n)
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	within(t, "both", time.Since(begin), time.Duration(2*wire(n))*time.Second/rate, 0.05, 30*time.Millisecond)
}

func TestDelay(t *testing.T) {
	t.Parallel()
	const delay = 120 * time.Millisecond
	s := newPeer(t, Profile{Delay: delay})
	begin := time.Now()
	client, server := s.connect()
	within(t, "handshake", time.Since(begin), 2*delay, 0, 40*time.Millisecond)
	within(t, "up", carry(t, client, server, 100), delay, 0, 40*time.Millisecond)
	within(t, "down", carry(t, server, client, 100), delay, 0, 40*time.Millisecond)
	// Delay is no rate: many segments arrive as one does.
	within(t, "1 MB", carry(t, client, server, 1<<20), delay, 0, 100*time.Millisecond)
}

func TestJitterKeepsOrder(t *testing.T) {
	t.Parallel()
	const delay, jitter = 20 * time.Millisecond, 100 * time.Millisecond
	s := newPeer(t, Profile{Delay: delay, Jitter: jitter})
	client, server := s.connect()
	low, high := time.Hour, time.Duration(0)
	for range 15 {
		d := carry(t, client, server, 10)
		low, high = min(low, d), max(high, d)
	}
	if low < delay || high > delay+jitter+200*time.Millisecond || high-low < jitter/3 {
		t.Errorf("from %v to %v, want a spread within %v to %v", low, high, delay, delay+jitter)
	}
	carry(t, client, server, 300_000) // checks the bytes
}

func TestLossStallsAndRepeats(t *testing.T) {
	t.Parallel()
	const rate, n, loss = 400_000, 600_000, 0.1
	s := newPeer(t, Profile{Rate: rate, Delay: 10 * time.Millisecond, Loss: loss})
	client, server := s.connect()
	took := carry(t, client, server, n)
	got := s.delivered(n)
	part := float64(got.Lost) / float64(got.Segments+got.Lost)
	if math.Abs(part-loss) > 0.05 {
		t.Errorf("lost %.3f of the segments, want %.2f: %+v", part, loss, got)
	}
	// The link is busy throughout: what is lost uses its part of it, and a stall
	// of one connection is filled by what comes behind.
	within(t, "600 kB", took, time.Duration(got.Wire)*time.Second/rate, 0.1, 100*time.Millisecond)
}

func TestLoneLossTakesAProbe(t *testing.T) {
	t.Parallel()
	d := &direction{rng: newRand(1)}
	p := Profile{Delay: 300 * time.Millisecond, Loss: 0.5}
	seen := map[time.Duration]bool{}
	now := time.Now()
	for range 200 {
		seen[d.send(now, 100, p).Sub(now)] = true
	}
	for _, want := range []time.Duration{300, 300 + 1200, 300 + 1200 + 900, 300 + 1200 + 900 + 1800} {
		if !seen[want*time.Millisecond] {
			t.Errorf("no segment needed %v", want*time.Millisecond)
		}
	}
}

func TestQueuePushesBack(t *testing.T) {
	t.Parallel()
	const rate = 20_000
	s := newPeer(t, Profile{Rate: rate, Queue: 10_000})
	client, server := s.connect()
	if err := client.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := client.Write(make([]byte, 4<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("4 MB went into a link of %d B/s: %v", rate, err)
	}
	if n > 600_000 {
		t.Errorf("%d bytes were accepted", n)
	}
	got := s.proxy.Stats().Up
	if got.Wire < rate*8/10 || got.Wire > rate*12/10 {
		t.Errorf("%d bytes on the link in 1 s of %d B/s", got.Wire, rate)
	}
	server.Close()
}

func TestSetChangesTheRate(t *testing.T) {
	t.Parallel()
	s := newPeer(t, Profile{Rate: 20_000, Queue: 2000})
	client, server := s.connect()
	raised := time.AfterFunc(100*time.Millisecond, func() { s.proxy.Set(Profile{Rate: 1 << 20}) })
	defer raised.Stop()
	if took := carry(t, client, server, 60_000); took > time.Second {
		t.Errorf("60 kB arrived %v after the rate rose", took)
	}
}

func TestStallGoesOn(t *testing.T) {
	t.Parallel()
	s := newPeer(t, Profile{})
	client, server := s.connect()
	carry(t, client, server, 1000)
	s.proxy.Set(Profile{Mode: Stall})
	if _, err := client.Write([]byte("held")); err != nil {
		t.Fatal(err)
	}
	silent(t, server)
	s.proxy.Set(Profile{})
	got := make([]byte, 4)
	if _, err := io.ReadFull(server, got); err != nil || string(got) != "held" {
		t.Errorf("after the stall: %q, %v", got, err)
	}
}

func TestStallTakesNewConnectionsLater(t *testing.T) {
	t.Parallel()
	s := newPeer(t, Profile{Mode: Stall})
	client, err := net.Dial("tcp", s.proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	select {
	case <-s.conns:
		t.Fatal("a connection came through a stalled link")
	case <-time.After(100 * time.Millisecond):
	}
	s.proxy.Set(Profile{})
	select {
	case c := <-s.conns:
		c.Close()
	case <-time.After(time.Minute):
		t.Fatal("no connection after the stall")
	}
}

func TestSwallowIsForGood(t *testing.T) {
	t.Parallel()
	s := newPeer(t, Profile{})
	client, server := s.connect()
	idle, idleServer := s.connect()
	s.proxy.Set(Profile{Mode: Swallow})
	if _, err := client.Write(make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	silent(t, server)
	s.proxy.Set(Profile{})
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	silent(t, server)
	carry(t, idle, idleServer, 100) // it sent nothing meanwhile
	fresh, freshServer := s.connect()
	carry(t, fresh, freshServer, 100)
	// The end of the other side is not forwarded.
	client.Close()
	silent(t, server)
	if got := s.proxy.Stats().Up.Swallowed; got != 100_001 {
		t.Errorf("swallowed %d bytes", got)
	}
}

func TestStrand(t *testing.T) {
	t.Parallel()
	s := newPeer(t, Profile{})
	client, server := s.connect()
	s.proxy.Strand()
	if _, err := server.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	silent(t, client)
	fresh, freshServer := s.connect()
	carry(t, fresh, freshServer, 100)
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	s := newPeer(t, Profile{})
	client, server := s.connect()
	s.proxy.Set(Profile{Mode: Refuse})
	isReset(t, client)
	isReset(t, server)
	late, err := net.Dial("tcp", s.proxy.Addr())
	if err == nil {
		defer late.Close()
		isReset(t, late)
	}
	s.proxy.Set(Profile{})
	client, server = s.connect()
	carry(t, client, server, 100)
}

func TestEndIsReported(t *testing.T) {
	t.Parallel()
	s := newPeer(t, Profile{Delay: 50 * time.Millisecond})
	client, server := s.connect()
	go func() {
		_, _ = client.Write([]byte("last words"))
		client.Close()
	}()
	if got, err := io.ReadAll(server); err != nil || string(got) != "last words" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestNobodyBehind(t *testing.T) {
	t.Parallel()
	x, err := Listen("127.0.0.1:1", Profile{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	c, err := net.Dial("tcp", x.Addr())
	if err == nil { // else the reset came first
		defer c.Close()
		isReset(t, c)
	}
}

func TestBadProfile(t *testing.T) {
	t.Parallel()
	for _, p := range []Profile{{Rate: -1}, {Loss: 1}, {Delay: -1}} {
		if x, err := Listen("127.0.0.1:1", p, 1); err == nil {
			x.Close()
			t.Errorf("%+v is accepted", p)
		}
	}
}

// silent checks that nothing, not even an end, comes from c for a moment.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(150 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(make([]byte, 1))
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v; want silence", n, err)
	}
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
}

func isReset(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v, want a reset", err)
	}
}
