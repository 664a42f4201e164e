package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// A Server serves on one listener from Start to Stop.
type Server struct {
	http   *http.Server
	served chan struct{} // closed when the goroutine of Start has ended
}

// Start serves on l, which the Server owns from then on. fail is called, on another
// goroutine, if the server ends by itself.
func Start(l net.Listener, server *http.Server, fail func(error)) *Server {
	s := &Server{http: server, served: make(chan struct{})}
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
