package enrol

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/netutil"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/httpserver"
	"github.com/colonyfleet/colony/protocol"
)

// A Registrar decides which machines belong to the fleet. Its errors are a *Refusal where the
// machine is at fault; others are logged, and the machine tries again. Its methods are called
// concurrently.
type Registrar interface {
	// Admit uses up a token once and records the machine with its key. The same claim, token
	// and key included, is admitted again without using the token, as its answer may have been
	// lost.
	Admit(ctx context.Context, c identity.Claim) error
	// Renewed decides whether a machine that proved its key may have a new certificate.
	Renewed(ctx context.Context, p identity.Peer) error
	// Issued records a certificate before the machine has it. A machine that is not enrolled with
	// the certificate's key any more is refused, and gets nothing.
	Issued(ctx context.Context, n identity.Name, c *x509.Certificate) error
	// Refused is called for each refusal. n is the name that the machine gave, and may be no valid
	// name.
	Refused(ctx context.Context, n identity.Name, remote string, r *identity.Refusal)
}

// ServerOptions are what a Server needs. All are required, but for Apply and TLSFailed.
type ServerOptions struct {
	Holder    *identity.Holder
	Registrar Registrar
	// Tier is the kind of machine that this server enrols.
	Tier identity.Tier
	// Authority returns what issues the certificates, or an error while there is none.
	Authority func() (*identity.Authority, error)
	// Apply decides on a machine without a token, as Registrar.Admit does on one with a token. Nil: it is
	// refused.
	Apply func(ctx context.Context, c identity.Claim) error
	// TLSFailed is that of httpserver.Limits; it may be nil.
	TLSFailed func()
	Logger    *slog.Logger
}

// The resources that any client of the port can use, as it needs no certificate.
const (
	maxConns = 256              // open at a time; others wait in the system's queue
	bodyWait = 10 * time.Second // for the whole of a question, from its header on
	idleWait = 5 * time.Second  // for another question
)

// Start answers machines at l, by TLS, until the result is stopped, which closes l. It has a
// bounded number of connections, and of each a bounded wait. fail is called, on another
// goroutine, if it ends by itself.
func Start(l net.Listener, o ServerOptions, fail func(error)) *httpserver.Server {
	server := httpserver.New(NewServer(o), httpserver.Limits{Idle: idleWait, TLSFailed: o.TLSFailed}, o.Logger)
	return httpserver.Start(tls.NewListener(netutil.LimitListener(l, maxConns), o.Holder.EnrolTLS()), server, fail)
}

// A Server answers machines. Its listener has the TLS configuration of identity.Holder.EnrolTLS;
// see Start.
type Server struct {
	o   ServerOptions
	mux *http.ServeMux
}

// NewServer returns a Server.
func NewServer(o ServerOptions) *Server {
	s := &Server{o: o, mux: http.NewServeMux()}
	s.mux.HandleFunc("POST "+joinPath, s.serve(s.join))
	s.mux.HandleFunc("POST "+renewPath, s.serve(s.renew))
	s.mux.HandleFunc("POST "+applyPath, s.serve(s.apply))
	return s
}

// ServeHTTP answers one question.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

type decide func(ctx context.Context, from caller, q question, n identity.Name, key string) error

// A caller is the machine at the other end.
type caller struct {
	remote string
	tls    tls.ConnectionState
}

func (s *Server) serve(decide decide) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		from := caller{remote: r.RemoteAddr}
		if r.TLS != nil {
			from.tls = *r.TLS
		}
		var q question
		a, n := answer{}, identity.Name{}
		raw, err := readBody(w, r)
		if err != nil || json.Unmarshal(raw, &q) != nil {
			err = identity.Refuse(identity.Invalid, "the body is no question of this exchange")
		} else {
			a, n, err = s.answer(r.Context(), from, q, decide)
		}
		status := http.StatusOK
		if err != nil {
			refusal, ok := errors.AsType[*identity.Refusal](err)
			if !ok {
				s.o.Logger.ErrorContext(r.Context(), "machine not enrolled, it will try again", "machine", n.String(), "remote", from.remote, "err", err)
				refusal = identity.Refuse(identity.Unavailable, "try again later; the log of the server says why")
			} else if refusal.Code != identity.Pending { // the machine asks again until a person decides
				s.o.Logger.WarnContext(r.Context(), "machine refused", "machine", n.String(), "remote", from.remote, "code", string(refusal.Code), "err", refusal.Message)
			}
			s.o.Registrar.Refused(r.Context(), n, from.remote, refusal)
			a, status = answer{Code: refusal.Code, Message: refusal.Message}, statusOf(refusal.Code)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(a) // the machine is gone, and asks again
	}
}

// readBody reads a question, all of it, by one deadline. Of a body that is not read to its end
// the deadline stays, as the server throws away the rest.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyWait)) // fails where the connection is closed, as the read does then
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		_ = control.SetReadDeadline(time.Time{}) // or the decision would end with it
	}
	return raw, err
}

func statusOf(c identity.Code) int {
	switch c {
	case identity.Invalid:
		return http.StatusUnprocessableEntity
	case identity.Unavailable:
		return http.StatusServiceUnavailable
	case identity.NameTaken:
		return http.StatusConflict
	case identity.TokenUnknown, identity.TokenExpired, identity.TokenExhausted, identity.WrongSite, identity.NotEnrolled, identity.Revoked, identity.Pending, identity.PendingFull, identity.Rejected:
	}
	return http.StatusForbidden
}

// answer decides on a question and issues what it asks for.
func (s *Server) answer(ctx context.Context, from caller, q question, decide decide) (a answer, n identity.Name, err error) {
	if n, err = s.nameOf(q); err != nil {
		return a, identity.Name{}, err
	}
	key, err := identity.KeyOf(q.Request)
	if err != nil {
		return a, n, identity.Refuse(identity.Invalid, "%v", err)
	}
	var below crypto.PublicKey
	if n.Tier == identity.LO { // before the token is used up
		if below, err = identity.KeyOf(q.Authority); err != nil {
			return a, n, identity.Refuse(identity.Invalid, "the site's authority: %v", err)
		}
	}
	authority, err := s.o.Authority()
	if err != nil {
		return a, n, err
	}
	sum := identity.KeySum(key)
	if err := decide(ctx, from, q, n, hex.EncodeToString(sum[:])); err != nil {
		return a, n, err
	}
	now := s.o.Holder.Clock().Now()
	chain, err := authority.Issue(n, key, now)
	if err != nil {
		return a, n, err
	}
	a.Root = authority.Root().Raw
	for _, c := range chain {
		a.Chain = append(a.Chain, c.Raw)
	}
	if err := s.o.Registrar.Issued(ctx, n, chain[0]); err != nil || n.Tier != identity.LO {
		return a, n, err
	}
	cert, err := authority.IssueSite(n.Site, below, now)
	if err != nil {
		return a, n, err
	}
	a.Authority = cert.Raw
	return a, n, s.o.Registrar.Issued(ctx, n, cert)
}

// nameOf is whom a machine says to be.
func (s *Server) nameOf(q question) (identity.Name, error) {
	site, err := protocol.ParseSiteID(q.Site)
	n := identity.OfLO(site)
	if err == nil && q.Node != "" {
		var node protocol.NodeID
		node, err = protocol.ParseNodeID(q.Node)
		n = identity.OfNode(site, node)
	}
	switch {
	case err != nil:
		return n, identity.Refuse(identity.Invalid, "%v", err)
	case n.Tier != s.o.Tier && n.Tier == identity.EN:
		return n, identity.Refuse(identity.Invalid, "%s is a node: it is enrolled at the LO of its site", n)
	case n.Tier != s.o.Tier:
		return n, identity.Refuse(identity.Invalid, "%s is a site: its LO is enrolled at the CO", n)
	}
	return n, nil
}

func (s *Server) join(ctx context.Context, from caller, q question, n identity.Name, key string) error {
	if !identity.WellFormed(q.Token, q.Secret) {
		return identity.Refuse(identity.TokenUnknown, "there is no such join token: make a new one")
	}
	return s.o.Registrar.Admit(ctx, identity.Claim{Token: q.Token, Secret: q.Secret, Name: n, Key: key, Remote: from.remote})
}

// maxDevice bounds the serial number of a machine, in bytes.
const maxDevice = 128

func (s *Server) apply(ctx context.Context, from caller, q question, n identity.Name, key string) error {
	switch {
	case s.o.Apply == nil && n.Tier == identity.EN:
		return identity.Refuse(identity.TokenUnknown, "nodes enrol at this LO with join tokens alone: make one with colony node token %s; identity.pending in the configuration of the LO lets nodes without one wait to be approved", n.Site)
	case s.o.Apply == nil:
		return identity.Refuse(identity.TokenUnknown, "an LO enrols with a join token alone: make one with colony site add %s", n.Site)
	case len(q.Device) > maxDevice || strings.ContainsFunc(q.Device, func(r rune) bool { return !unicode.IsPrint(r) }):
		return identity.Refuse(identity.Invalid, "the serial number of the machine: want up to %d printable bytes", maxDevice)
	}
	return s.o.Apply(ctx, identity.Claim{Name: n, Key: key, Device: q.Device, Remote: from.remote})
}

func (s *Server) renew(ctx context.Context, from caller, _ question, n identity.Name, key string) error {
	p, err := s.o.Holder.Former(from.tls)
	switch {
	case err != nil && p.Name == (identity.Name{}): // it has proved nothing
		return identity.Refuse(identity.Invalid, "the certificate does not open a renewal: %v", err)
	case err != nil:
		return identity.Refuse(identity.Revoked, "the certificate does not open a renewal: %v", err)
	case p.Name != n:
		return identity.Refuse(identity.NotEnrolled, "the certificate is that of %s", p.Name)
	case p.Key != key:
		return identity.Refuse(identity.Invalid, "a renewal is for the key of the certificate")
	}
	return s.o.Registrar.Renewed(ctx, p)
}
