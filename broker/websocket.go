package broker

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/colonyfleet/colony/protocol"
)

// A webListener is a net.Listener of the WebSocket connections that an HTTP
// server upgrades, on any path.
type webListener struct {
	net.Listener
	server   *http.Server
	upgrader websocket.Upgrader
	timeout  time.Duration
	maxBytes int64
	conns    chan net.Conn
	closed   chan struct{}
	once     sync.Once
	wg       sync.WaitGroup
}

func listenWebSocket(l net.Listener, limits Limits) *webListener {
	w := &webListener{
		Listener: l,
		upgrader: websocket.Upgrader{ // the default check keeps pages of other origins out
			HandshakeTimeout: limits.ConnectTimeout,
			ReadBufferSize:   2 << 10, WriteBufferSize: 2 << 10,
			WriteBufferPool: &sync.Pool{},
			Subprotocols:    []string{"mqtt"}, // [MQTT-6.0.0-4]
		},
		timeout:  limits.ConnectTimeout,
		maxBytes: int64(limits.PacketBytes),
		conns:    make(chan net.Conn),
		closed:   make(chan struct{}),
	}
	w.server = &http.Server{
		Handler: w, ReadHeaderTimeout: limits.ConnectTimeout, IdleTimeout: limits.ConnectTimeout, MaxHeaderBytes: 16 << 10,
	}
	w.wg.Go(func() {
		_ = w.server.Serve(l) // ends with Close, or with an error of Accept, which only Close makes
		w.shut()
	})
	return w
}

// ServeHTTP upgrades a request and hands the connection to Accept.
func (w *webListener) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	ws, err := w.upgrader.Upgrade(rw, r, nil)
	if err != nil {
		return // the upgrader has answered
	}
	ws.SetReadLimit(w.maxBytes + 5)
	select {
	case w.conns <- &webConn{Conn: ws}:
	case <-w.closed:
		_ = ws.Close() // never used
	}
}

// Accept returns the next upgraded connection.
func (w *webListener) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *webListener) shut() { w.once.Do(func() { close(w.closed) }) }

// Close ends Accept, and connections that are not upgraded yet.
func (w *webListener) Close() error {
	w.shut()
	err := w.server.Close()
	w.wg.Wait()
	return err
}

// A webConn makes a byte stream of a WebSocket's binary messages. One goroutine
// may read while another writes.
type webConn struct {
	*websocket.Conn
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
			if kind != websocket.BinaryMessage { // [MQTT-6.0.0-1]
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
	if err := w.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CloseWrite tells the peer that no more comes.
func (w *webConn) CloseWrite() error {
	bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	return w.WriteControl(websocket.CloseMessage, bye, time.Now().Add(linger))
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
