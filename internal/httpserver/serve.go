package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// handlersLook is how often a server that stops looks whether the last handlers have returned.
const handlersLook = 10 * time.Millisecond

// Shutdown ends a server that Serve runs. Requests that are not served within a time, or before the deadline of ctx, are cut off.
func Shutdown(ctx context.Context, server *http.Server, within time.Duration) error {
	short, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := server.Shutdown(short)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	return err
}

// A Server serves on one listener from Start to Stop.
type Server struct {
	http   *http.Server
	served chan struct{} // closed when the goroutine of Start has ended

	handlers atomic.Int64 // that are running

	mu     sync.Mutex        // protects what follows
	unused map[net.Conn]bool // connections without a request yet
}

// Start serves on l, which the Server owns from then on. fail is called, on another
// goroutine, if the server ends by itself. Start sets the ConnState of the server.
func Start(l net.Listener, server *http.Server, fail func(error)) *Server {
	s := &Server{http: server, served: make(chan struct{}), unused: map[net.Conn]bool{}}
	server.ConnState = s.track
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handlers.Add(1)
		defer s.handlers.Add(-1)
		next.ServeHTTP(w, r)
	})
	go func() {
		defer close(s.served)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("serve http on %s: %w", l.Addr(), err))
		}
	}()
	return s
}

func (s *Server) track(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == http.StateNew {
		s.unused[c] = true
	} else {
		delete(s.unused, c)
	}
}

// closeUnused closes the connections that have had no request, which a client may make in
// advance. For 5 s a Shutdown takes each of them for one whose request is on its way.
func (s *Server) closeUnused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.unused {
		_ = c.Close() // nothing was sent over it
	}
}

// awaitHandlers waits for the handlers of connections that speak another protocol by now, which Shutdown does not know.
func (s *Server) awaitHandlers(ctx context.Context) error {
	tick := time.NewTicker(handlersLook)
	defer tick.Stop()
	for s.handlers.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Stop closes the listener and waits for the requests that are being served until ctx
// ends; then it closes their connections and returns the error of ctx.
func (s *Server) Stop(ctx context.Context) error {
	s.closeUnused()
	err := s.http.Shutdown(ctx)
	if err == nil {
		err = s.awaitHandlers(ctx)
	}
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	<-s.served
	return err
}
