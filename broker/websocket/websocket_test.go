package websocket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	ws "github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// pair returns the two ends of one connection.
func pair(t *testing.T, maxBytes int64) (server net.Conn, client *ws.Conn) {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(raw, Options{Timeout: patience, MaxBytes: maxBytes})
	t.Cleanup(func() { _ = l.Close() }) // it may be closed already
	d := ws.Dialer{Subprotocols: []string{"mqtt"}}
	dialed := make(chan error, 1)
	go func() {
		c, resp, err := d.DialContext(t.Context(), "ws://"+raw.Addr().String()+"/any/path", nil)
		if err == nil {
			err = resp.Body.Close()
			client = c
		}
		dialed <- err
	}()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	if err := <-dialed; err != nil {
		t.Fatal(err)
	}
	server = <-accepted
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() }) // either may be closed already
	if p := client.Subprotocol(); p != "mqtt" {                  // [MQTT-6.0.0-4]
		t.Errorf("subprotocol %q, want mqtt", p)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	return server, client
}

// Packets need not begin or end with a WebSocket message, and an accepted connection
// outlives the listener. [MQTT-6.0.0-2]
func TestBytes(t *testing.T) {
	t.Parallel()
	server, client := pair(t, 1<<20)
	for _, part := range []string{"on", "", "e,two,", "three"} {
		if err := client.WriteMessage(ws.BinaryMessage, []byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, len("one,two,three"))
	if _, err := io.ReadFull(server, got); err != nil || string(got) != "one,two,three" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := server.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	kind, p, err := client.ReadMessage()
	if kind != ws.BinaryMessage || string(p) != "answer" || err != nil {
		t.Errorf("got a message of type %d, %q, %v", kind, p, err)
	}
	if err := server.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, _, err := client.ReadMessage(); !ws.IsCloseError(err, ws.CloseNormalClosure) {
		t.Errorf("after the last words: %v", err)
	}
}

// [MQTT-6.0.0-1]
func TestTextIsRefused(t *testing.T) {
	t.Parallel()
	server, client := pair(t, 1<<20)
	if err := client.WriteMessage(ws.TextMessage, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Read(make([]byte, 1)); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("got %v, want an error of kind invalid", err)
	}
}

func TestLargeMessageIsRefused(t *testing.T) {
	t.Parallel()
	server, client := pair(t, 100)
	if err := client.WriteMessage(ws.BinaryMessage, bytes.Repeat([]byte("x"), 106)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, server); !errors.Is(err, ws.ErrReadLimit) {
		t.Errorf("got %v, want %v", err, ws.ErrReadLimit)
	}
}

// The deadline of a write may be moved while it runs.
func TestDeadlineEndsAWrite(t *testing.T) {
	t.Parallel()
	server, _ := pair(t, 100)
	failed := make(chan error, 1)
	go func() {
		for {
			if _, err := server.Write(make([]byte, 1<<20)); err != nil {
				failed <- err
				return
			}
		}
	}()
	select {
	case err := <-failed:
		t.Fatalf("nobody reads, and the write ended with %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if err := server.SetDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-failed:
	case <-time.After(patience):
		t.Error("the write goes on")
	}
}

// What is no WebSocket is answered once, and its connection ends: by one request after the other it would else be held
// without being counted among the clients.
func TestOtherRequestsEnd(t *testing.T) {
	t.Parallel()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(raw, Options{Timeout: patience, MaxBytes: 1 << 20})
	t.Cleanup(func() { _ = l.Close() })
	c, err := net.Dial("tcp", raw.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write([]byte("GET /mqtt HTTP/1.1\r\nHost: broker\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(patience / 2)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 400 ")) {
		t.Errorf("answer %q, %v: want status 400 and the end", answer, err)
	}
}
