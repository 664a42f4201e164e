// Package api is the HTTP interface of an LO: the image cache for the nodes; health,
// metrics and status for people and monitors.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/colonyfleet/colony/broker/admin"
	"github.com/colonyfleet/colony/internal/httpserver"
)

// shutdownTimeout is how long Stop waits for requests. A node that pulls an image
// through a slow link would hold up the stop of the LO.
const shutdownTimeout = 2 * time.Second

// Options of a Server. All but Images, Broker and Problem must be given.
type Options struct {
	// Listener is closed by Stop.
	Listener net.Listener
	// Images serves /v2/, the OCI registry. Nil: there is none.
	Images http.Handler
	// Broker serves admin.Path: the clients of the site's broker. Nil: there is none.
	Broker http.Handler
	// Metrics serves /metrics.
	Metrics http.Handler
	// Problem says what is wrong with the machine and what to do, such as a full disk; "":
	// nothing is. Nil: nothing ever is.
	Problem func() string
	// Status returns what /status shows, as JSON.
	Status func() any
	Logger *slog.Logger
}

// A Server serves the HTTP interface. Run and Stop are called once each, Stop after Run.
type Server struct {
	listener net.Listener
	http     *http.Server
	log      *slog.Logger
}

// New returns a Server that does not serve yet.
func New(o Options) *Server {
	s := &Server{listener: o.Listener, log: o.Logger}
	mux := http.NewServeMux()
	if o.Images != nil {
		mux.Handle("/v2/", o.Images)
	}
	if o.Broker != nil {
		mux.Handle(admin.Path, o.Broker)
	}
	mux.Handle("GET /metrics", o.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, map[string]string{"status": "ok"}) })
	// An LO is ready without the CO: its site depends on it while the link is down. It is also
	// ready while it can store nothing, and serves what it has: to replace it would not help.
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if o.Problem == nil || o.Problem() == "" {
			s.answer(w, map[string]string{"status": "ready"})
			return
		}
		s.answer(w, map[string]string{"status": "degraded", "problem": o.Problem()})
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, o.Status()) })
	s.http = httpserver.New(mux, httpserver.Limits{}, o.Logger)
	return s
}

// Run serves until Stop.
func (s *Server) Run() error {
	if err := s.http.Serve(httpserver.Bound(s.listener)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http on %s: %w", s.listener.Addr(), err)
	}
	return nil
}

// Stop ends Run. Requests that are not served within two seconds are cut off.
func (s *Server) Stop(ctx context.Context) error {
	return httpserver.Shutdown(ctx, s.http, shutdownTimeout)
}

func (s *Server) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		s.log.Debug("answer not written", "err", err)
	}
}
