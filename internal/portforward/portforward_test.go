package portforward

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// patience bounds what must happen.
const patience = time.Minute

func forwarder(t *testing.T, refuse func(string) bool) *Forwarder {
	t.Helper()
	f := New(Options{Refuse: refuse, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(f.Close)
	return f
}

// free returns a port that is free at the moment.
func free(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// reverse answers each connection, at the end of what it says, with that backwards.
func reverse(t *testing.T) (port uint16) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c)
			for i := range len(b) / 2 {
				b[i], b[len(b)-1-i] = b[len(b)-1-i], b[i]
			}
			_, _ = c.Write(b)
			_ = c.Close()
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func ask(network, address string) (string, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("abc")); err != nil {
		return "", err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		if err := tcp.CloseWrite(); err != nil {
			return "", err
		}
		b, err := io.ReadAll(c)
		return string(b), err
	}
	b := make([]byte, 64)
	n, err := c.Read(b)
	return string(b[:n]), err
}

func TestTCP(t *testing.T) {
	t.Parallel()
	f := forwarder(t, nil)
	to, every, one, four := reverse(t), free(t), free(t), free(t)
	ports := []protocol.Port{{Container: to, Host: every}, {Container: to, Host: one, HostIP: "::1"}, {Container: to, Host: four, HostIP: "127.0.0.1"}}
	for range 2 { // the same again changes nothing
		if err := f.Set("a", "127.0.0.1", ports); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []uint16{every, one} {
		if got, err := ask("tcp6", fmt.Sprintf("[::1]:%d", p)); err != nil || got != "cba" {
			t.Errorf("port %d answers %q (%v)", p, got, err)
		}
	}
	for _, address := range []string{fmt.Sprintf("[::1]:%d", four), fmt.Sprintf("127.0.0.1:%d", every)} {
		if _, err := ask("tcp", address); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v, want it refused: it is not served", address, err)
		}
	}
	f.Remove("a")
	if _, err := ask("tcp", fmt.Sprintf("[::1]:%d", every)); err == nil {
		t.Error("a port that was removed answers")
	}
}

// TestBound has connections of one port take the room of all: another port takes none until
// there is some.
func TestBound(t *testing.T) {
	t.Parallel()
	f := forwarder(t, nil)
	to, held, other := reverse(t), free(t), free(t)
	if err := f.Set("a", "127.0.0.1", []protocol.Port{{Container: to, Host: held}, {Container: to, Host: other}}); err != nil {
		t.Fatal(err)
	}
	for range maxInAll {
		if !f.enter() {
			t.Fatal("there is no room at first")
		}
	}
	if got, err := ask("tcp6", fmt.Sprintf("[::1]:%d", other)); got != "" {
		t.Errorf("a port answers %q (%v) where there is no room", got, err)
	}
	f.leave()
	if got, err := ask("tcp6", fmt.Sprintf("[::1]:%d", other)); err != nil || got != "cba" {
		t.Errorf("a port answers %q (%v) where there is room", got, err)
	}
}

func TestUDP(t *testing.T) {
	t.Parallel()
	f := forwarder(t, nil)
	l, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		b := make([]byte, 16)
		for {
			n, from, err := l.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = l.WriteTo(append([]byte(from.String()+" "), b[:n]...), from)
		}
	}()
	p := protocol.Port{Container: uint16(l.LocalAddr().(*net.UDPAddr).Port), Host: free(t), Protocol: "udp"}
	if err := f.Set("a", "127.0.0.1", []protocol.Port{p}); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 3 {
		got, err := ask("udp6", fmt.Sprintf("[::1]:%d", p.Host))
		if err != nil || !strings.HasSuffix(got, " abc") {
			t.Fatalf("the answer is %q (%v)", got, err)
		}
		seen[got] = true
	}
	if len(seen) != 3 {
		t.Errorf("the container sees %d clients, want each as one of its own: %v", len(seen), seen)
	}
}

// Connections end with what they are for.
func TestRemoveEndsConnections(t *testing.T) {
	t.Parallel()
	f := forwarder(t, nil)
	to, host := reverse(t), free(t)
	if err := f.Set("a", "127.0.0.1", []protocol.Port{{Container: to, Host: host}}); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp6", fmt.Sprintf("[::1]:%d", host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("unfinished")); err != nil {
		t.Fatal(err)
	}
	f.Remove("a")
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection goes on: %v", err)
	}
}

// A port that a program has is reported, and opened when it is free.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	f := forwarder(t, nil)
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := protocol.Port{Container: reverse(t), Host: uint16(l.Addr().(*net.TCPAddr).Port), HostIP: "::1"}
	if Check(p) == nil || Check(protocol.Port{Host: p.Host}) == nil {
		t.Error("the port counts as free")
	}
	if err := f.Set("a", "127.0.0.1", []protocol.Port{p}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(p.Host)) {
		t.Errorf("error %v, want one that names port %d", err, p.Host)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	f.Retry()
	if got, err := ask("tcp6", fmt.Sprintf("[::1]:%d", p.Host)); err != nil || got != "cba" {
		t.Errorf("the port answers %q (%v)", got, err)
	}
}

// What comes by a link-local address of a link that is refused is not handed on.
func TestRefuse(t *testing.T) {
	t.Parallel()
	f := forwarder(t, func(link string) bool { return link == "bridge" })
	for from, want := range map[string]bool{"[fe80::1%bridge]:1": true, "[fe80::1%eth0]:1": false, "[2001:db8::1]:1": false, "[::1]:1": false} {
		if got := f.refused(netip.MustParseAddrPort(from)); got != want {
			t.Errorf("%s is refused: %v, want %v", from, got, want)
		}
	}
}
