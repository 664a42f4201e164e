package listen

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/colonyfleet/colony/broker/websocket"
)

// Serve is Open with what the network of a valid Spec has above the socket: TLS, with its own configuration or
// that of its files, and WebSocket.
func Serve(ctx context.Context, s *Spec, o Options) (net.Listener, error) {
	secure := s.TLS
	if s.Certificate != "" {
		var err error
		if secure, err = Certificate(s.Certificate, s.Key, o.Unread); err != nil {
			return nil, err
		}
	}
	socket, err := Open(ctx, s, o)
	if err != nil {
		return nil, err
	}
	var l net.Listener = socket
	over := secure != nil && s.Network != Unix
	if s.Network == WS || over {
		l = &counting{Listener: socket, enter: o.Enter}
	}
	if over {
		l = tls.NewListener(l, noting(secure))
	}
	if s.Network == WS {
		l = websocket.Listen(l, websocket.Options{Timeout: o.Upgrade, MaxBytes: o.MaxBytes, Origins: s.Origins, Logger: o.Logger, TLSFailed: o.TLSFailed, OriginRefused: o.OriginRefused, TimedOut: o.TimedOut})
	}
	return l, nil
}
