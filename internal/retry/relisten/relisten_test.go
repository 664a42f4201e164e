package relisten

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"
)

// TestPredecessor has an address become free while a server waits for it, and one that does not.
func TestPredecessor(t *testing.T) {
	t.Parallel()
	before, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(patience/4, func() { _ = before.Close() })
	address := before.Addr().String()
	l, err := System(t.Context(), "tcp", address)
	if err != nil {
		// A machine on which a quarter of the time was not enough.
		if _, taken := net.Dial("tcp", address); taken == nil {
			t.Fatalf("the address was free meanwhile: %v", err)
		}
		l, err = System(t.Context(), "tcp", address)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := System(t.Context(), "tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("at an address that stays in use: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := System(ctx, "tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("after the end of its context: %v", err)
	}
	_ = l.Close()
}
