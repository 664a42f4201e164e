package listen

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A scripted listener fails as often as a test says, and then accepts.
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
		ctx, cancel := context.WithCancel(t.Context())
		s := &scripted{failures: 20, closed: make(chan struct{})}
		failures := 0
		p := patient(ctx, s, Options{Failed: func(error, time.Duration) { failures++ }})
		begun := time.Now()
		c, err := p.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		if failures != 20 {
			t.Errorf("%d failures reported, want 20", failures)
		}
		if d := time.Since(begun); d < 5*time.Second || d > 10*time.Second {
			t.Errorf("20 failures took %s: want waits that grow to half a second", d)
		}
		s.failures = 1 << 30
		cancel()
		if _, err := p.Accept(); err == nil {
			t.Error("accepted after the end")
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
	clearSocket(t.Context(), path) // served: must stay
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("a served socket was removed: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	clearSocket(t.Context(), path)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a stale socket stays: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	clearSocket(t.Context(), path)
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("a file that is no socket was removed: %v", err)
	}
}
