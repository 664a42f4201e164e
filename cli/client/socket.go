package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
)

// Dial opens a WebSocket of a subprotocol at a path below /api/v1. Errors are those of Call.
func (c *Client) Dial(ctx context.Context, path, subprotocol string) (*websocket.Conn, error) {
	req, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	header := http.Header{} // not that of req: the handshake has its own
	if err := c.authorize(ctx, header); err != nil {
		return nil, err
	}
	d := websocket.Dialer{Proxy: http.ProxyFromEnvironment, HandshakeTimeout: c.Timeout, Subprotocols: []string{subprotocol}, TLSClientConfig: c.tls()}
	conn, resp, err := d.DialContext(ctx, "ws"+strings.TrimPrefix(req.URL.String(), "http"), header)
	if err == nil {
		if got := conn.Subprotocol(); got != subprotocol {
			return nil, errors.Join(fmt.Errorf("the API at %s speaks %q and not %s: it is of another release", c.Base, got, subprotocol), conn.Close())
		}
		return conn, nil
	}
	if resp == nil {
		return nil, c.away(ctx, err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body) // of the answer the library keeps its first KiB
	return nil, asProblem(resp, body)
}

// tls is how the client trusts the API; nil: as the system does.
func (c *Client) tls() *tls.Config {
	if t, ok := c.HTTP.Transport.(*http.Transport); ok && t.TLSClientConfig != nil {
		return t.TLSClientConfig.Clone()
	}
	return nil
}

// Download calls read with the body at a path, of any type and for any time. Errors are those of Call, and of read; an answer that breaks off
// is an error, too.
func (c *Client) Download(ctx context.Context, path string, read func(io.Reader) error) error {
	req, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	req.Header.Del("Accept")
	resp, release, err := c.do(req)
	if err != nil {
		return err
	}
	defer release()
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // what there is of it says why
		return asProblem(resp, body)
	}
	err = read(resp.Body)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
