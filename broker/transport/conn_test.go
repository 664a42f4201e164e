package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/broker/packet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// A hub is what the connections of a test share.
type hub struct {
	Options
	wg      sync.WaitGroup
	pending atomic.Int64
	dropped atomic.Int64
	expired atomic.Int64
}

func newHub(t *testing.T, writeBuffer int) *hub {
	h := &hub{}
	h.Options = Options{
		WriteBuffer: writeBuffer, WriteTimeout: patience, Pending: &h.pending, Go: h.wg.Go,
		Events: Events{
			Dropped: func(string) { h.dropped.Add(1) }, Expired: func(n int) { h.expired.Add(int64(n)) }, Unacknowledged: func(int) {},
		},
	}
	t.Cleanup(func() {
		h.wg.Wait()
		if n := h.pending.Load(); n != 0 {
			t.Errorf("%d bytes are still counted", n)
		}
	})
	return h
}

// A watched connection reports when it is closed.
type watched struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

func (w *watched) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.Conn.Close()
}

// pair returns a Conn, and the other end of its transport.
func (h *hub) pair(t *testing.T) (*Conn, *watched, net.Conn) {
	near, far := net.Pipe()
	w := &watched{Conn: near, closed: make(chan struct{})}
	c := New(w, &h.Options)
	c.SetWindow(10)
	t.Cleanup(func() { _, _ = c.Close(), far.Close() })
	return c, w, far
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s does not happen", what)
	}
}

func message(qos byte, size int, expires time.Time) *packet.Frame {
	return packet.NewFrame(packet.Outgoing{Topic: "t", Payload: make([]byte, size), QoS: qos, Expires: expires})
}

// A connection that its peer ended gives its descriptor back as soon as it is closed.
func TestEndByPeerClosesTheTransport(t *testing.T) {
	t.Parallel()
	h := newHub(t, 1<<20)
	c, w, far := h.pair(t)
	_ = far.Close()
	if _, err := c.ReadByte(); err == nil {
		t.Error("read after the end")
	}
	if err := c.Publish(message(0, 1, time.Time{})); err == nil {
		t.Error("a message is accepted for a peer that has left")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.closed:
	default:
		t.Error("Close leaves the transport open")
	}
}

// A connection over TCP has a buffer from the arrival of bytes to the last of them being read, whatever sizes
// they come in and are read in.
func TestReadBuffer(t *testing.T) {
	t.Parallel()
	h := newHub(t, 1<<20)
	c, far := h.tcpPair(t)
	want := make([]byte, 3*readBuffer)
	for i := range want {
		want[i] = byte(i >> 3)
	}
	for _, read := range []int{1, 2, readBuffer - 1, readBuffer, readBuffer + 1, 2 * readBuffer} {
		if _, err := far.Write(want); err != nil {
			t.Fatal(err)
		}
		first, err := c.ReadByte()
		if err != nil {
			t.Fatal(err)
		}
		got := []byte{first}
		for len(got) < len(want) {
			p := make([]byte, min(read, len(want)-len(got)))
			n, err := io.ReadFull(c, p)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, p[:n]...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("read by %d: other bytes than were sent", read)
		}
		if c.in.buf != nil {
			t.Errorf("read by %d: all is read, and the connection still has a buffer", read)
		}
	}
	_ = far.Close()
	if _, err := c.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, want %v", err, io.EOF)
	}
}

// What waits goes out before the transport is closed, but for messages: those that were not
// written when the close was decided are dropped, and no longer counted.
func TestCloseSendsLastWords(t *testing.T) {
	t.Parallel()
	h := newHub(t, 1<<20)
	c, w, far := h.pair(t)
	c.SetWindow(1)
	if err := c.Publish(message(1, 1, time.Time{})); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 8)
	if _, err := io.ReadFull(far, first); err != nil {
		t.Fatal(err)
	}
	for qos := range byte(2) {
		before := c.out.Size()
		c.mu.Lock() // not by Publish, so that nothing is written before the close
		c.out.AddMessage(message(qos, 1, time.Time{}))
		c.out.AddPacket([]byte{0xe0, qos})
		c.Hold(c.out.Size() - before)
		c.mu.Unlock()
	}
	_ = c.Close()
	got, err := io.ReadAll(far)
	if want := "\xe0\x00\xe0\x01"; err != nil || string(got) != want {
		t.Errorf("got %x, %v, want %x", got, err, want)
	}
	await(t, w.closed, "the close")
	if n := c.Pending(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

// A source is asked when it is woken, and until it has nothing; what it gives is written as
// it is, and never after the close.
func TestSource(t *testing.T) {
	t.Parallel()
	h := newHub(t, 1<<20)
	c, w, far := h.pair(t)
	s := &script{parts: make(chan string, 10)}
	c.Wake() // without a source
	c.SetSource(s)
	s.parts <- "one "
	s.parts <- "two "
	c.Wake()
	if err := c.Publish(message(0, 1, time.Time{})); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("one two ")+6)
	if _, err := io.ReadFull(far, got); err != nil || !bytes.Contains(got, []byte("one two ")) && !bytes.HasSuffix(got, []byte("two ")) {
		t.Errorf("%q, %v", got, err)
	}
	s.parts <- "three"
	c.Wake()
	if _, err := io.ReadFull(far, got[:5]); err != nil || string(got[:5]) != "three" {
		t.Errorf("%q, %v", got[:5], err)
	}
	_ = c.Close()
	s.parts <- "four"
	c.Wake()
	if rest, err := io.ReadAll(far); err != nil || len(rest) > 0 {
		t.Errorf("after the close: %q, %v", rest, err)
	}
	await(t, w.closed, "the close")
	if n := c.Pending(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

// A script is a Source of texts.
type script struct{ parts chan string }

func (s *script) Pull(buf []byte, _ time.Time) (head, payload []byte) {
	select {
	case p := <-s.parts:
		return append(buf, p[:1]...), []byte(p[1:])
	default:
		return buf, nil
	}
}

func TestWriteBufferIsBounded(t *testing.T) {
	t.Parallel()
	h := newHub(t, 1000)
	c, w, _ := h.pair(t)
	var err error
	for range 20 { // it is not read
		if err = c.Publish(message(0, 100, time.Time{})); err != nil {
			break
		}
	}
	if err != ErrSlow || c.Pending() > 1000 || c.Slowness() != "slow_client" {
		t.Errorf("%v with %d bytes, reason %s, want ErrSlow at 1000", err, c.Pending(), c.Slowness())
	}
	if c.State() != Lags {
		t.Errorf("state %d, want Lags", c.State())
	}
	for range 100 { // it asks, and does not read the answers
		if _, err = c.Write(make([]byte, 50)); err != nil {
			break
		}
	}
	await(t, w.closed, "the end of a client that does not read")
	if c.State() != KeepsUp {
		t.Error("somebody would wait for a client that has disconnected")
	}
}

// AwaitAny returns when the first of several clients keeps up; clients that take nothing
// are given up after a second, together, until they keep up again.
func TestAwaitAny(t *testing.T) {
	t.Parallel()
	h := newHub(t, 1000)
	var all []*Conn
	var far []net.Conn
	for range 3 {
		c, _, f := h.pair(t)
		for range 6 {
			if err := c.Publish(message(0, 100, time.Time{})); err != nil {
				t.Fatal(err)
			}
		}
		all, far = append(all, c), append(far, f)
	}
	go func() { _, _ = io.CopyN(io.Discard, far[1], 630) }()
	if !AwaitAny(all, patience, patience) || all[1].State() != KeepsUp || all[0].State() != Lags {
		t.Errorf("states %d, %d, %d, want the second to keep up", all[0].State(), all[1].State(), all[2].State())
	}
	sick := []*Conn{all[0], all[2]}
	if AwaitAny(sick, patience, patience) || sick[0].State() != GivenUp || sick[1].State() != GivenUp {
		t.Errorf("states %d, %d, want both given up", sick[0].State(), sick[1].State())
	}
	for _, c := range sick {
		if len(c.watchers) > 0 {
			t.Error("a wait has left something behind")
		}
	}
	go func() { _, _ = io.Copy(io.Discard, far[0]) }()
	sick[0].Room()
	if sick[0].State() != KeepsUp || AwaitAny(sick[1:], time.Nanosecond, patience) {
		t.Errorf("state %d, want a client that takes again to keep up", sick[0].State())
	}
}

// sockets returns both ends of a connection of TCP.
func sockets(t *testing.T) (near *net.TCPConn, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if far, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return accepted.(*net.TCPConn), far
}

// tcpPair returns a Conn over TCP, and its other end.
func (h *hub) tcpPair(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	near, far := sockets(t)
	c := New(near, &h.Options)
	t.Cleanup(func() { _ = c.Close() })
	return c, far
}

// An answer to a client that reads costs no goroutine.
func TestAnswersAreWrittenAtOnce(t *testing.T) {
	t.Parallel()
	h := newHub(t, 1<<20)
	var begun atomic.Int64
	run := h.Go
	h.Go = func(f func()) { begun.Add(1); run(f) }
	c, far := h.tcpPair(t)
	for i := range byte(100) {
		if n, err := c.Answer([]byte{0xd0, i}); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		got := make([]byte, 2)
		if _, err := io.ReadFull(far, got); err != nil || got[1] != i {
			t.Fatalf("answer %d: %v, %v", i, got, err)
		}
	}
	if n := begun.Load(); n != 0 {
		t.Errorf("%d goroutines for 100 answers, want none", n)
	}
}

// What the network does not take at once waits, in order with what comes behind it.
func TestAnswersStayInOrder(t *testing.T) {
	t.Parallel()
	const packets, size = 2000, 16 << 10 // more than the system buffers
	h := newHub(t, 2*packets*size)
	c, far := h.tcpPair(t)
	for i := range packets {
		p := make([]byte, size)
		binary.BigEndian.PutUint32(p, uint32(i))
		if n, err := c.Answer(p); n != size || err != nil {
			t.Fatal(n, err)
		}
	}
	if c.Pending() == 0 {
		t.Error("nothing waits: the test shows nothing")
	}
	for i := range packets {
		p := make([]byte, size)
		if _, err := io.ReadFull(far, p); err != nil {
			t.Fatal(err)
		}
		if got := binary.BigEndian.Uint32(p); got != uint32(i) || !bytes.Equal(p[4:], make([]byte, size-4)) {
			t.Fatalf("packet %d is %d, or it is damaged", i, got)
		}
	}
}
