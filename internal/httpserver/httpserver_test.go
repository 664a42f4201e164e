package httpserver

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what should come at once.
const patience = 30 * time.Second

// serve starts a server and returns its address.
func serve(t *testing.T, l Limits, handler http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(handler, l, nil)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(listener)
	}()
	t.Cleanup(func() { _ = s.Close(); <-served })
	return listener.Addr().String()
}

// dial opens a connection and sends text.
func dial(t *testing.T, address, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// ends waits until a handler is done.
func ends(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatalf("%s: the handler waits for its client without end", what)
		return nil
	}
}

func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(file, make([]byte, 64<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, answer := range map[string]func(w http.ResponseWriter) error{
		"at once":   func(w http.ResponseWriter) error { _, err := w.Write(make([]byte, 64<<20)); return err },
		"in pieces": func(w http.ResponseWriter) error { return endless(w) },
		"from a file": func(w http.ResponseWriter) error {
			f, err := os.Open(file)
			if err != nil {
				return nil //nolint:nilerr // the test fails for want of an error
			}
			defer f.Close()
			_, err = io.CopyN(w, f, 64<<20)
			return err
		},
		"flushed": func(w http.ResponseWriter) error {
			for {
				_, _ = w.Write(make([]byte, 1000))
				if err := http.NewResponseController(w).Flush(); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done := make(chan error, 1)
			address := serve(t, Limits{Stall: 50 * time.Millisecond}, func(w http.ResponseWriter, _ *http.Request) { done <- answer(w) })
			dial(t, address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			if err := ends(t, "answer", done); err == nil {
				t.Error("the answer was written though nobody read it")
			}
		})
	}
}

func endless(w http.ResponseWriter) error {
	for {
		if _, err := w.Write(make([]byte, 1000)); err != nil {
			return err
		}
	}
}

func TestClientThatDoesNotSend(t *testing.T) {
	t.Parallel()
	done := make(chan error, 1)
	address := serve(t, Limits{Stall: 50 * time.Millisecond, Header: 50 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		done <- err
	})
	dial(t, address, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n123")
	if err := ends(t, "body", done); err == nil {
		t.Error("a body was read that was not sent")
	}
	for what, text := range map[string]string{
		"header": "GET / HTTP/1.1\r\nHos", "nothing": "",
	} {
		c := dial(t, address, text)
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Errorf("%s: the connection stays: %v", what, err)
		}
	}
}

// TestSlowClientThatGoesOn is slower in all than one step may be, and is served whole.
func TestSlowClientThatGoesOn(t *testing.T) {
	t.Parallel()
	const stall, pieces, size = 2 * time.Second, 30, 512 << 10
	var got bytes.Buffer
	done := make(chan error, 1)
	address := serve(t, Limits{Stall: stall}, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(&got, r.Body)
		for i := 0; i < pieces && err == nil; i++ {
			_, err = w.Write(make([]byte, size))
		}
		done <- err
	})
	c := dial(t, address, fmt.Sprintf("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", pieces))
	tick := time.NewTicker(stall / 20)
	defer tick.Stop()
	for range pieces {
		<-tick.C
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n := int64(0)
	for range pieces - 1 {
		<-tick.C
		m, err := io.CopyN(io.Discard, resp.Body, size)
		if n += m; err != nil {
			t.Fatal(err)
		}
	}
	m, err := io.Copy(io.Discard, resp.Body)
	if n += m; err != nil || n != pieces*size {
		t.Errorf("read %d bytes, %v; want %d", n, err, pieces*size)
	}
	if err := ends(t, "slow", done); err != nil || got.String() != strings.Repeat("x", pieces) {
		t.Errorf("handler: %v, body %q", err, got.String())
	}
}

// TestLongAnswerAfterABody computes for longer than the limit of a step: the deadline of the
// body does not end the request.
func TestLongAnswerAfterABody(t *testing.T) {
	t.Parallel()
	const stall = 50 * time.Millisecond
	address := serve(t, Limits{Stall: stall}, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(stall)) // as a framework does
		_, _ = io.ReadAll(r.Body)
		select {
		case <-r.Context().Done():
			w.WriteHeader(http.StatusInternalServerError)
		case <-time.After(10 * stall):
		}
	})
	c := dial(t, address, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Error("the request ended while its handler worked")
	}
}
