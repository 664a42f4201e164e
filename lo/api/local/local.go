// Package local is what an LO serves at its Unix socket, for people on its own machine: it works without a link to the CO. The
// kernel identifies the caller, and the mode of the socket decides which users may connect.
package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/httpserver"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

const (
	// NodesPath has the nodes of the site. A POST to a node and a kind of command below it changes what restricts the node.
	NodesPath = "/api/v1/nodes"
	// Mode is that of the socket: for the user and the group of the LO.
	Mode = "0660"
	// maxBody bounds the body of a request, in bytes.
	maxBody = 64 << 10
	// shutdownTimeout is how long Stop waits for requests.
	shutdownTimeout = 2 * time.Second
)

// Options of a Server. All must be given.
type Options struct {
	// Listener is that of the socket; Stop closes it.
	Listener net.Listener
	// Nodes returns what is shown of the nodes, as JSON.
	Nodes func() any
	// Restrict changes what restricts a node, and returns what to say of it.
	Restrict func(ctx context.Context, node protocol.NodeID, c nodes.Change) (string, error)
	Logger   *slog.Logger
}

// An Answer is that to a change.
type Answer struct {
	// Said says what is so now; Error why nothing has changed, and Kind of which kind the error is. One of Said and Error is empty.
	Said  string        `json:"said,omitempty"`
	Error string        `json:"error,omitempty"`
	Kind  protocol.Kind `json:"kind,omitempty"`
}

// kinds are the commands that the LO takes here.
var kinds = []command.Kind{command.Cordon, command.Uncordon, command.Drain, command.Hold, command.Release}

// A Server serves the socket. Run and Stop are called once each, Stop after Run.
type Server struct {
	o    Options
	http *http.Server
}

type peerKey struct{}

// New returns a Server that does not serve yet.
func New(o Options) *Server {
	s := &Server{o: o}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+NodesPath, func(w http.ResponseWriter, _ *http.Request) { s.answer(w, http.StatusOK, o.Nodes()) })
	mux.HandleFunc("POST "+NodesPath+"/{node}/{kind}", func(w http.ResponseWriter, r *http.Request) {
		said, err := s.change(r)
		if err != nil {
			s.answer(w, http.StatusUnprocessableEntity, Answer{Error: err.Error(), Kind: protocol.KindOf(err)})
			return
		}
		s.answer(w, http.StatusOK, Answer{Said: said})
	})
	s.http = httpserver.New(mux, httpserver.Limits{}, o.Logger)
	s.http.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if actor, err := peer(c); err == nil {
			return context.WithValue(ctx, peerKey{}, actor)
		}
		return ctx // change refuses it
	}
	return s
}

// Run serves until Stop.
func (s *Server) Run() error {
	if err := s.http.Serve(s.o.Listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the socket %s: %w", s.o.Listener.Addr(), err)
	}
	return nil
}

// Stop ends Run. Requests that are not served within two seconds are cut off.
func (s *Server) Stop(ctx context.Context) error {
	return httpserver.Shutdown(ctx, s.http, shutdownTimeout)
}

// change carries out a request.
func (s *Server) change(r *http.Request) (string, error) {
	actor, ok := r.Context().Value(peerKey{}).(string)
	if !ok {
		return "", protocol.Errorf(protocol.Denied, "the kernel does not say who asks: use the Unix socket of the local orchestrator")
	}
	node, err := protocol.ParseNodeID(r.PathValue("node"))
	if err != nil {
		return "", err
	}
	change := nodes.Change{Do: command.Kind(r.PathValue("kind")), Actor: actor}
	if !slices.Contains(kinds, change.Do) {
		return "", protocol.Errorf(protocol.Invalid, "%q: want one of %v", change.Do, kinds)
	}
	if args, err := command.NewArgs(change.Do); err != nil {
		return "", err
	} else if args != nil {
		var terms command.Restriction
		d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody))
		d.DisallowUnknownFields()
		if err := d.Decode(&terms); err != nil {
			return "", protocol.Errorf(protocol.Invalid, "body: %w", err)
		}
		if err := terms.Check(); err != nil {
			return "", err
		}
		change.SetTerms(terms)
	}
	said, err := s.o.Restrict(r.Context(), node, change)
	if err != nil {
		s.o.Logger.WarnContext(r.Context(), "restriction of a node not changed", "node_id", node, "did", string(change.Do), "actor", actor, "err", err)
	}
	return said, err
}

func (s *Server) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.o.Logger.Debug("answer not written", "err", err)
	}
}

// peer returns the user at the other end of a Unix socket, as the kernel knows it: SO_PEERCRED of unix(7).
func peer(c net.Conn) (string, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return "", fmt.Errorf("connection of %T is no Unix socket", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return "", err
	}
	var cred *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return "", err
	}
	if failed != nil {
		return "", failed
	}
	return fmt.Sprintf("uid %d", cred.Uid), nil
}
