package httpserver

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/tlstest"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// TestHandshakesAreBounded has a scanner end 100 connections within TLS: the log has the first ones, and how many there were
// more when the server ends; each is counted. A client is served meanwhile.
func TestHandshakesAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	chain, key := filepath.Join(dir, "chain"), filepath.Join(dir, "key")
	pool := tlstest.Write(t, chain, key, time.Now().Add(time.Hour))
	certificate, err := tls.LoadX509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var log lines
	var failed atomic.Int64
	server := New(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), Limits{TLSFailed: func() { failed.Add(1) }}, slog.New(slog.NewTextHandler(&log, nil)))
	s := Start(tls.NewListener(socket, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}), server, func(err error) { t.Error(err) })
	const scans = 100
	for i := range scans {
		c, err := net.Dial("tcp", socket.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_, err = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		}
		if err == nil {
			err = c.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // it was dialled so
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, c) // until the server has ended it
		_ = c.Close()                 // it has ended
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
	if r, err := client.Get("https://" + socket.Addr().String()); err != nil {
		t.Error(err)
	} else if err := r.Body.Close(); err != nil {
		t.Error(err)
	}
	testpart.Eventually(t, "each is counted", func() bool { return failed.Load() == scans })
	if n := log.count("TLS handshake error from 127.0.0.1"); n != 10 {
		t.Errorf("the log has %d handshakes, want 10", n)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	testpart.Eventually(t, "the rest is counted in the log", func() bool { return log.count(fmt.Sprint("of=127.0.0.1 not_shown=", scans-10)) == 1 })
}

// TestHandshakesOfANetwork has handshakes of 100 addresses of one IPv6 network fail: they count together, as one machine can have them all.
func TestHandshakesOfANetwork(t *testing.T) {
	t.Parallel()
	var log lines
	e := newErrorLog(slog.New(slog.NewTextHandler(&log, nil)), nil)
	for i := range 100 {
		e.logger().Printf("%s[2001:db8:1:2::%x]:443: EOF", handshake, i+1)
	}
	e.logger().Printf("%s[2001:db8:1:3::1]:443: EOF", handshake)
	e.summarise()
	for text, want := range map[string]int{"from [2001:db8:1:2:": 10 + 1, "from [2001:db8:1:3:": 1, "of=2001:db8:1:2::/64 not_shown=90": 1} { // the summary has the last
		if n := log.count(text); n != want {
			t.Errorf("%s: %d times in the log, want %d", text, n, want)
		}
	}
}
