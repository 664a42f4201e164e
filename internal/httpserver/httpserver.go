// Package httpserver makes the HTTP servers of all roles. Each wait for a client has a deadline: a
// client that neither sends nor reads costs a connection for a bounded time, and a slow one that
// goes on is never cut off.
package httpserver

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// Limits bound the waits for a client. Zero fields mean the defaults.
type Limits struct {
	// Header bounds the arrival of a request's header. Default 10 s.
	Header time.Duration
	// Idle bounds the time between two requests of a connection. Default 2 min.
	Idle time.Duration
	// Stall bounds one step of a transfer: a part of at most 64 KiB is read from or
	// written to the client within it. Default 1 min: 1 KiB a second.
	Stall time.Duration
	// TLSFailed, unless nil, is called for each connection that ends within the handshake of TLS. It must not wait.
	TLSFailed func()
}

// maxPart is how much of a transfer is one step, in bytes.
const maxPart = 64 << 10

func (l Limits) withDefaults() Limits {
	for limit, value := range map[*time.Duration]time.Duration{&l.Header: 10 * time.Second, &l.Idle: 2 * time.Minute, &l.Stall: time.Minute} {
		if *limit <= 0 {
			*limit = value
		}
	}
	return l
}

// New returns a server of handler. Each step of reading a request's body and of writing
// an answer has a deadline; a handler that sets a deadline by http.ResponseController
// replaces it for its request. logger may be nil.
func New(handler http.Handler, l Limits, logger *slog.Logger) *http.Server {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	l = l.withDefaults()
	errors := newErrorLog(logger, l.TLSFailed)
	server := &http.Server{
		Handler:           bounded(handler, l.Stall),
		ReadHeaderTimeout: l.Header,
		IdleTimeout:       l.Idle,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          errors.logger(),
	}
	server.RegisterOnShutdown(errors.summarise)
	return server
}

func bounded(next http.Handler, stall time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &client{ResponseWriter: w, control: http.NewResponseController(w), stall: stall}
		// The deadline of the connection's request before this one is over.
		if err := c.extendWrite(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return // the connection is closed
		}
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &body{ReadCloser: r.Body, client: c}
			_ = c.extendRead() // also for a handler that leaves the body to the server
		}
		next.ServeHTTP(c, r)
		_ = c.extendWrite() // for what is still to be flushed
	})
}

// A client is the way to and from one client for one request.
type client struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	// ownRead and ownWrite are set once the handler has its own deadlines.
	ownRead, ownWrite atomic.Bool
}

// Unwrap returns what http.ResponseController needs for Flush.
func (c *client) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// SetReadDeadline is called through http.ResponseController by a handler that has its
// own deadline for the body.
func (c *client) SetReadDeadline(t time.Time) error {
	c.ownRead.Store(true)
	return c.control.SetReadDeadline(t)
}

// SetWriteDeadline is called through http.ResponseController by a handler that has its
// own deadline for the answer.
func (c *client) SetWriteDeadline(t time.Time) error {
	c.ownWrite.Store(true)
	return c.control.SetWriteDeadline(t)
}

func (c *client) extendRead() error {
	if c.ownRead.Load() {
		return nil
	}
	return c.control.SetReadDeadline(time.Now().Add(c.stall))
}

func (c *client) extendWrite() error {
	if c.ownWrite.Load() {
		return nil
	}
	return c.control.SetWriteDeadline(time.Now().Add(c.stall))
}

// Write writes p in steps, each with its deadline.
func (c *client) Write(p []byte) (int, error) {
	written := 0
	for {
		part := p[written:min(len(p), written+maxPart)]
		if err := c.extendWrite(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return written, err
		}
		n, err := c.ResponseWriter.Write(part)
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
	}
}

// ReadFrom copies r in steps, each with its deadline. The kernel copies a file.
func (c *client) ReadFrom(r io.Reader) (int64, error) {
	// The server copies without user space only from a file, or from a part of one.
	limited, ok := r.(*io.LimitedReader)
	if !ok {
		limited = &io.LimitedReader{R: r, N: 1<<63 - 1}
	}
	if _, file := limited.R.(*os.File); !file {
		return io.Copy(onlyWriter{c}, r)
	}
	var copied int64
	for limited.N > 0 {
		if err := c.extendWrite(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return copied, err
		}
		part := min(limited.N, maxPart)
		n, err := io.Copy(c.ResponseWriter, &io.LimitedReader{R: limited.R, N: part})
		copied += n
		limited.N -= n
		if err != nil || n < part {
			return copied, err
		}
	}
	return copied, nil
}

// onlyWriter hides ReadFrom.
type onlyWriter struct{ io.Writer }

// A body is a request's body of which each step has a deadline.
type body struct {
	io.ReadCloser
	client *client
}

// Read reads one step. Behind the end of the body no deadline is left: the server
// watches the connection from then on, and would treat it as closed.
func (b *body) Read(p []byte) (int, error) {
	if err := b.client.extendRead(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), maxPart)])
	if errors.Is(err, io.EOF) {
		_ = b.client.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
