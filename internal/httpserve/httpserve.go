// Package httpserve runs an HTTP server on a listener until it is stopped, with the
// bounds that each of Colony's servers has.
package httpserve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	// readHeader bounds how long a client may take to send the header of a request, so
	// that slow clients do not hold connections.
	readHeader = 10 * time.Second
	// idle is how long a connection without a request stays open.
	idle = 2 * time.Minute
	// maxHeader bounds the header of a request in bytes.
	maxHeader = 64 << 10
)

// A Server serves on one listener from Start to Stop.
type Server struct {
	http   *http.Server
	served chan struct{} // closed when the goroutine of Start has ended
}

// Start serves h on l, which the Server owns from then on. fail is called, on another
// goroutine, if the server ends by itself. What net/http reports goes to log as
// warnings.
func Start(l net.Listener, h http.Handler, log *slog.Logger, fail func(error)) *Server {
	s := &Server{
		http: &http.Server{
			Handler: h, ReadHeaderTimeout: readHeader, IdleTimeout: idle, MaxHeaderBytes: maxHeader,
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
		served: make(chan struct{}),
	}
	go func() {
		defer close(s.served)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("serve http on %s: %w", l.Addr(), err))
		}
	}()
	return s
}

// Stop closes the listener and waits for the requests that are being served until ctx
// ends; then it closes their connections and returns the error of ctx.
func (s *Server) Stop(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	<-s.served
	return err
}
