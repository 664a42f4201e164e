package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A scripted listener fails as often as it is told, and then accepts.
type scripted struct {
	net.Listener
	failures int
	closed   chan struct{}
}

func (s *scripted) Accept() (net.Conn, error) {
	if s.failures > 0 {
		s.failures--
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	select {
	case <-s.closed:
		return nil, net.ErrClosed
	default:
		c, _ := net.Pipe()
		return c, nil
	}
}

func TestAcceptOutlivesLackOfDescriptors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := New(Options{Access: CentralAccess(), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s := &scripted{failures: 20, closed: make(chan struct{})}
		p := newPatient(ctx, s, 0, b.metrics, b.log)
		begun := time.Now()
		c, err := p.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		if d := time.Since(begun); d < 5*time.Second || d > 10*time.Second {
			t.Errorf("20 failures took %s: want waits that grow to half a second", d)
		}
		s.failures = 1 << 30
		cancel()
		if _, err := p.Accept(); err == nil {
			t.Error("accepted after the broker stopped")
		}
		s.failures = 0
		close(s.closed)
		if _, err := p.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want net.ErrClosed", err)
		}
	})
}

func TestStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	clearSocket(path) // served: must stay
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("a served socket was removed: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	clearSocket(path)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a stale socket stays: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	clearSocket(path)
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("a file that is no socket was removed: %v", err)
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	q1 := func(n byte) []byte { return []byte{0x32, 2, 0, n} }
	q0, ping, bye := []byte{0x30, 1, 'x'}, []byte{0xd0, 0}, []byte{0xe0, 0}
	join := func(ps ...[]byte) (out []byte) {
		for _, p := range ps {
			out = append(out, p...)
		}
		return out
	}
	w := window{limit: 2}
	w.add(join(q1(1), q1(2), q1(3), q0, ping, q1(4)))
	if diff := cmp.Diff(join(q1(1), q1(2), q0, ping), w.take()); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	w.release()
	w.add(q1(5))
	if diff := cmp.Diff(q1(3), w.take()); diff != "" {
		t.Errorf("after one acknowledgement (-want +got):\n%s", diff)
	}
	for range 5 {
		w.release()
	}
	if diff := cmp.Diff(join(q1(4), q1(5)), w.take()); diff != "" {
		t.Errorf("after all (-want +got):\n%s", diff)
	}
	if w.unacked != 0 || w.size != 0 {
		t.Errorf("unacked %d, size %d, want none", w.unacked, w.size)
	}
	w.add(join(q1(6), q1(7), q1(8)))
	if n := w.dropHeld(); n != 4 || w.size != 8 {
		t.Errorf("dropped %d, %d left, want 4 and 8", n, w.size)
	}
	if n := w.drop(); n != 8 || w.size != 0 || w.take() != nil {
		t.Errorf("dropped %d, want 8 and nothing left", n)
	}
	v3 := window{v3: true}
	v3.add(join(q1(1), bye, ping))
	if diff := cmp.Diff(join(q1(1), ping), v3.take()); diff != "" {
		t.Errorf("MQTT 3 (-want +got):\n%s", diff)
	}
	big := append([]byte{0x30, 0x80, 0x80, 0x01}, make([]byte, 1<<14)...)
	if n := packetLen(append(big, 0xd0, 0)); n != len(big) {
		t.Errorf("length %d, want %d", n, len(big))
	}
}

// A day would be mochi's default.
func TestRetainedDoesNotExpire(t *testing.T) {
	t.Parallel()
	var l Limits
	l.defaults()
	if c := capabilities(l); c.MaximumMessageExpiryInterval != 0 {
		t.Errorf("messages expire after %d s", c.MaximumMessageExpiryInterval)
	}
}
