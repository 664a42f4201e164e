package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/websocket"

	"github.com/colonyfleet/colony/protocol"
)

// parseURL reads a broker URL and fills in the default port of its scheme.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("broker URL: %w", err)
	}
	ports := map[string]string{"tcp": "1883", "mqtt": "1883", "tls": "8883", "mqtts": "8883", "ws": "80", "wss": "443"}
	port, known := ports[u.Scheme]
	switch {
	case u.Scheme == "unix":
		if u.Host != "" || u.Path == "" {
			return nil, fmt.Errorf("broker URL %s: want unix:///path/of/the/socket", u.Redacted())
		}
		return u, nil
	case !known:
		return nil, fmt.Errorf("broker URL %q: want a scheme of tcp, tls, ws, wss or unix", u.Redacted())
	case u.Hostname() == "":
		return nil, fmt.Errorf("broker URL %s: no host", u.Redacted())
	case u.Port() == "":
		u.Host = net.JoinHostPort(u.Hostname(), port)
	}
	return u, nil
}

// dial opens the transport that raw names, within o.ConnectTimeout.
func dial(ctx context.Context, raw string, o *Options) (net.Conn, error) {
	u, err := parseURL(raw)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.ConnectTimeout)
	defer cancel()
	var conn net.Conn
	switch u.Scheme {
	case "unix":
		conn, err = o.Dial(ctx, "unix", u.Path)
	case "ws", "wss":
		return dialWebSocket(ctx, u, o)
	case "tls", "mqtts":
		conn, err = dialTLS(ctx, u, o)
	default:
		conn, err = o.Dial(ctx, "tcp", u.Host)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "reach broker: %w", err)
	}
	return conn, nil
}

// dialTLS opens a connection and secures it, for the name in u unless o.TLS has one.
func dialTLS(ctx context.Context, u *url.URL, o *Options) (net.Conn, error) {
	raw, err := o.Dial(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLS != nil {
		config = o.TLS.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = u.Hostname()
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // never used
		return nil, err
	}
	return conn, nil
}

func dialWebSocket(ctx context.Context, u *url.URL, o *Options) (net.Conn, error) {
	d := websocket.Dialer{
		NetDialContext:  o.Dial,
		Proxy:           http.ProxyFromEnvironment,
		TLSClientConfig: o.TLS,
		Subprotocols:    []string{"mqtt"}, // [MQTT-6.0.0-3]
	}
	ws, resp, err := d.DialContext(ctx, u.String(), nil)
	if err != nil {
		if resp != nil {
			return nil, protocol.Errorf(protocol.Unavailable, "reach broker: answer %s to the WebSocket upgrade: %w", resp.Status, err)
		}
		return nil, protocol.Errorf(protocol.Unavailable, "reach broker: %w", err)
	}
	ws.SetReadLimit(maxPacket)
	return &webSocket{Conn: ws}, nil
}

// webSocket makes a byte stream of a WebSocket's binary messages. One goroutine
// may read while another writes.
type webSocket struct {
	*websocket.Conn
	r io.Reader // the rest of the message being read, or nil
}

// Read reads on, over the borders of messages. [MQTT-6.0.0-2]
func (w *webSocket) Read(p []byte) (int, error) {
	for {
		if w.r == nil {
			kind, r, err := w.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != websocket.BinaryMessage { // [MQTT-6.0.0-1]
				return 0, protocol.Errorf(protocol.Invalid, "broker sent a WebSocket text message")
			}
			w.r = r
		}
		n, err := w.r.Read(p)
		if err == io.EOF {
			w.r, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Write sends p as one binary message.
func (w *webSocket) Write(p []byte) (int, error) {
	if err := w.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// SetDeadline sets both deadlines.
func (w *webSocket) SetDeadline(t time.Time) error {
	if err := w.SetReadDeadline(t); err != nil {
		return err
	}
	return w.SetWriteDeadline(t)
}
