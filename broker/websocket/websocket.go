// Package websocket is MQTT's transport over WebSocket, as a net.Listener.
// [MQTT-6.0.0-1]
package websocket

import (
	"cmp"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ws "github.com/gorilla/websocket"

	"github.com/colonyfleet/colony/internal/httpserver"
	"github.com/colonyfleet/colony/protocol"
)

// A Listener is a net.Listener of the WebSocket connections that an HTTP
// server upgrades, on any path.
type Listener struct {
	net.Listener
	server   *http.Server
	upgrader ws.Upgrader
	maxBytes int64
	conns    chan net.Conn
	closed   chan struct{}
	once     sync.Once
	wg       sync.WaitGroup
}

// Options configure a Listener.
type Options struct {
	Timeout  time.Duration // that a connection has for its upgrade
	MaxBytes int64         // of a message; a longer one ends the connection
	// Origins are the pages of other hosts that may connect, such as https://hmi.example,
	// or * for all. Those of the listener's own host, and what is not a browser, always may.
	Origins []string
	// Logger gets at debug why connections end before their upgrade, which any client that reaches
	// the port can cause. Nil: that is not logged.
	Logger *slog.Logger
	// TLSFailed, if set, is called with the address, host:port, of each connection that failed in TLS, and why. It is called
	// concurrently.
	TLSFailed func(remote, why string)
	// OriginRefused, if set, is called with the address, host:port, of each page that may not connect, and its origin. It is called
	// concurrently.
	OriginRefused func(remote, origin string)
	// TimedOut, if set, is called for each connection that has ended without its upgrade after Timeout or more. It is called
	// concurrently.
	TimedOut func()
}

// An errorLog has what the HTTP server says of its clients.
type errorLog struct{ o Options }

// Write takes one line.
func (l errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	if remote, why, ok := httpserver.HandshakeFailed(text); ok && l.o.TLSFailed != nil {
		l.o.TLSFailed(remote, why)
	}
	l.o.Logger.Debug(text)
	return len(line), nil
}

// Listen serves the requests that come in on l. Close ends both listeners.
func Listen(l net.Listener, o Options) *Listener {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	w := &Listener{
		Listener: l,
		upgrader: ws.Upgrader{
			HandshakeTimeout: o.Timeout,
			ReadBufferSize:   2 << 10, WriteBufferSize: 2 << 10,
			WriteBufferPool: &sync.Pool{},
			Subprotocols:    []string{"mqtt"}, // [MQTT-6.0.0-4]
			CheckOrigin:     o.checkOrigin,
		},
		maxBytes: o.MaxBytes,
		conns:    make(chan net.Conn),
		closed:   make(chan struct{}),
	}
	w.server = &http.Server{
		Handler: w, ReadHeaderTimeout: o.Timeout, IdleTimeout: o.Timeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(errorLog{o}, "", 0), ConnState: o.watch(),
	}
	w.server.SetKeepAlivesEnabled(false) // a client that asks for another path is not counted, and is disconnected
	w.wg.Go(func() {
		_ = w.server.Serve(l) // ends with Close, or with an error of Accept, which only Close makes
		w.shut()
	})
	return w
}

// watch returns what tells the end of connections that took too long.
func (o Options) watch() func(net.Conn, http.ConnState) {
	if o.TimedOut == nil {
		return nil
	}
	var begun sync.Map // when connections began that are not upgraded, by connection
	return func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			begun.Store(c, time.Now())
		case http.StateHijacked:
			begun.Delete(c)
		case http.StateClosed:
			if at, ok := begun.LoadAndDelete(c); ok && time.Since(at.(time.Time)) >= o.Timeout {
				o.TimedOut()
			}
		case http.StateActive, http.StateIdle:
		}
	}
}

// checkOrigin reports whether the page that a request comes from may connect, and calls OriginRefused if it
// may not.
func (o Options) checkOrigin(r *http.Request) bool {
	allowed := originAllowed(r, o.Origins)
	if !allowed && o.OriginRefused != nil {
		o.OriginRefused(r.RemoteAddr, r.Header.Get("Origin"))
	}
	return allowed
}

// originAllowed reports whether the page that a request comes from may connect.
func originAllowed(r *http.Request, others []string) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true // not a browser
	}
	for _, o := range others {
		if o == "*" || strings.EqualFold(o, origin) {
			return true
		}
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// ServeHTTP upgrades a request and hands the connection to Accept.
func (w *Listener) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	conn, err := w.upgrader.Upgrade(rw, r, nil)
	if err != nil {
		return // the upgrader has answered
	}
	conn.SetReadLimit(w.maxBytes + 5)
	select {
	case w.conns <- &webConn{Conn: conn}:
	case <-w.closed:
		_ = conn.Close() // never used
	}
}

// Accept returns the next upgraded connection.
func (w *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *Listener) shut() { w.once.Do(func() { close(w.closed) }) }

// Close ends Accept, and connections that are not upgraded yet.
func (w *Listener) Close() error {
	w.shut()
	err := w.server.Close()
	w.wg.Wait()
	return err
}

// linger is how long the last words may take.
const linger = time.Second

// A webConn makes a byte stream of a WebSocket's binary messages. One goroutine
// may read while another writes.
type webConn struct {
	*ws.Conn
	r        io.Reader // the rest of the message being read, or nil
	deadline atomic.Pointer[time.Time]
}

// Read reads on, over the borders of messages. [MQTT-6.0.0-2]
func (w *webConn) Read(p []byte) (int, error) {
	for {
		if w.r == nil {
			kind, r, err := w.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != ws.BinaryMessage { // [MQTT-6.0.0-1]
				return 0, protocol.Errorf(protocol.Invalid, "WebSocket text message: MQTT wants binary ones")
			}
			w.r = r
		}
		n, err := w.r.Read(p)
		if errors.Is(err, io.EOF) {
			w.r, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Write sends p as one binary message.
func (w *webConn) Write(p []byte) (int, error) {
	if d := w.deadline.Load(); d != nil {
		_ = w.Conn.SetWriteDeadline(*d) // never fails
	}
	if err := w.WriteMessage(ws.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CloseWrite says to the peer that no more comes.
func (w *webConn) CloseWrite() error {
	bye := ws.FormatCloseMessage(ws.CloseNormalClosure, "")
	return w.WriteControl(ws.CloseMessage, bye, time.Now().Add(linger))
}

// SetWriteDeadline bounds the write that runs, and those to come. Unlike the
// method of the WebSocket it may be called during a write.
func (w *webConn) SetWriteDeadline(t time.Time) error {
	w.deadline.Store(&t)
	return w.NetConn().SetWriteDeadline(t)
}

// SetDeadline sets both deadlines.
func (w *webConn) SetDeadline(t time.Time) error {
	return errors.Join(w.SetReadDeadline(t), w.SetWriteDeadline(t))
}
