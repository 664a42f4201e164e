// Package gate lets requests to the CO's HTTP API pass that show a token whose role allows them.
package gate

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/protocol"
)

// A Store is the CO's record of tokens. Errors are of the protocol's kinds.
type Store interface {
	// Tokens returns the tokens that have not ended, and those that ended within a month.
	Tokens(ctx context.Context) ([]access.Token, error)
	AddToken(ctx context.Context, t access.Token) error
	// RevokeToken ends a token; NotFound where there is none.
	RevokeToken(ctx context.Context, id string) error
	// TokensUsed records when tokens were used last, by id.
	TokensUsed(ctx context.Context, at map[string]time.Time) error
}

// A Signer makes the texts of tokens and reads them.
type Signer interface {
	Text(t access.Token) (string, error)
	// Read returns the id of a token that was signed here and has not ended. The error may be shown to whoever sent it.
	Read(text string) (id string, err error)
}

// Options are what a gate needs. All are required.
type Options struct {
	Store      Store
	Signer     Signer
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

const (
	// readAgain is how often the record is read: a token that another replica revokes counts as long.
	readAgain = 2 * time.Second
	// writeUses is how often the record learns which tokens were used.
	writeUses = time.Minute
	// storeWait bounds one access to the record.
	storeWait = 10 * time.Second
	// mostKnown bounds the texts whose signatures were checked.
	mostKnown = 4096
)

// A Gate knows the tokens that count. Its methods may be called concurrently.
type Gate struct {
	o       Options
	refused *prometheus.CounterVec

	reading sync.Mutex // one reads the record at a time
	mu      sync.Mutex // guards what follows
	tokens  map[string]access.Token
	known   map[[sha256.Size]byte]string // ids of texts whose signatures were checked
	used    map[string]time.Time
	open    map[*request]bool
}

// A request that is answered.
type request struct {
	of  access.Principal
	end context.CancelCauseFunc
}

// New reads the record. Call Run afterwards.
func New(ctx context.Context, o Options) (*Gate, error) {
	g := &Gate{
		o: o, known: map[[sha256.Size]byte]string{}, used: map[string]time.Time{}, open: map[*request]bool{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_co_requests_refused_total", Help: "Requests to the HTTP API of somebody who may not make them, by status: 401 who does not say who it is, 403 who may not.",
		}, []string{"status"}),
	}
	o.Registerer.MustRegister(g.refused)
	return g, g.read(ctx)
}

// Run follows the record until ctx ends. While the record cannot be read, what is known counts.
func (g *Gate) Run(ctx context.Context) {
	tick := time.NewTicker(readAgain)
	defer tick.Stop()
	away, wrote := false, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := g.read(ctx)
		if err == nil && time.Since(wrote) >= writeUses {
			wrote = time.Now()
			err = g.writeUses(ctx)
		}
		if err != nil && !away && ctx.Err() == nil {
			g.o.Logger.WarnContext(ctx, "tokens cannot be read or recorded; those that are known count", "err", err)
		}
		away = err != nil
	}
}

// read reads the record, and ends the requests whose token does not count any more, or not as it did.
func (g *Gate) read(ctx context.Context) error {
	g.reading.Lock()
	defer g.reading.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	list, err := g.o.Store.Tokens(ctx)
	if err != nil {
		return err
	}
	tokens := make(map[string]access.Token, len(list))
	for _, t := range list {
		tokens[t.ID] = t
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tokens = tokens
	for r := range g.open {
		if t, ok := tokens[r.of.Token]; !ok || !t.Holds(time.Now()) || t.Role != r.of.Role {
			r.end(errEnded)
		}
	}
	return nil
}

func (g *Gate) writeUses(ctx context.Context) error {
	g.mu.Lock()
	used := g.used
	g.used = map[string]time.Time{}
	g.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	return g.o.Store.TokensUsed(ctx, used)
}

// Create makes a token, records it, and returns its text, which is kept nowhere.
func (g *Gate) Create(ctx context.Context, t access.Token) (text string, err error) {
	if text, err = g.o.Signer.Text(t); err != nil {
		return "", err
	}
	if err = g.o.Store.AddToken(ctx, t); err != nil {
		return "", err
	}
	return text, g.read(ctx)
}

// Revoke ends a token, here at once.
func (g *Gate) Revoke(ctx context.Context, id string) error {
	if err := g.o.Store.RevokeToken(ctx, id); err != nil {
		return err
	}
	return g.read(ctx)
}

// Tokens returns the record.
func (g *Gate) Tokens(ctx context.Context) ([]access.Token, error) { return g.o.Store.Tokens(ctx) }

// errEnded is why a request ends whose token was revoked or has ended.
var errEnded = errors.New("the token was revoked, has ended, or has another role")

// Authenticate returns whose token a text is. The error is of kind Denied and says what to do, or of kind
// Unavailable.
func (g *Gate) Authenticate(ctx context.Context, text string) (access.Principal, error) {
	sum := sha256.Sum256([]byte(text))
	g.mu.Lock()
	id, known := g.known[sum]
	g.mu.Unlock()
	if !known {
		var err error
		if id, err = g.o.Signer.Read(text); err != nil {
			return access.Principal{}, protocol.Errorf(protocol.Denied, "%v: get another one with colony token create, or on the CO's machine with colony co token", err)
		}
	}
	t, ok := g.token(id)
	if !ok { // made by another replica just now
		if err := g.read(ctx); err != nil {
			return access.Principal{}, protocol.Errorf(protocol.Unavailable, "the record of tokens cannot be read: %w", err)
		}
		if t, ok = g.token(id); !ok {
			return access.Principal{}, protocol.Errorf(protocol.Denied, "the token is not in the CO's record any more: get another one")
		}
	}
	now := time.Now()
	switch {
	case t.RevokedAt != nil:
		return access.Principal{}, protocol.Errorf(protocol.Denied, "the token of %s was revoked: get another one", t.Name)
	case !t.Holds(now):
		return access.Principal{}, protocol.Errorf(protocol.Denied, "the token of %s has ended at %s: get another one", t.Name, t.Expires.Format(time.RFC3339))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= mostKnown {
		clear(g.known)
	}
	g.known[sum], g.used[id] = id, now
	return access.Principal{Name: t.Name, Role: t.Role, Token: t.ID, Expires: t.Expires}, nil
}

func (g *Gate) token(id string) (access.Token, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t, ok := g.tokens[id]
	return t, ok
}

// Guard returns a handler that lets to next pass what needs says is allowed to whom asks. The context of a request
// ends with its token; basic says whether a request may show the token as a password (RFC 7617), as clients of registries do.
func (g *Gate) Guard(next http.Handler, needs func(*http.Request) access.Permission, basic func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		need := needs(r)
		if need == access.Open {
			next.ServeHTTP(w, r)
			return
		}
		asPassword := basic(r)
		text := shown(r, asPassword)
		if text == "" {
			g.refuse(w, r, asPassword, protocol.Errorf(protocol.Denied, "this CO wants a token: log in with colony login, or send it as Authorization: Bearer TOKEN"))
			return
		}
		p, err := g.Authenticate(r.Context(), text)
		if err != nil {
			g.refuse(w, r, asPassword, err)
			return
		}
		if !p.Role.Has(need) {
			g.refused.WithLabelValues(fmt.Sprint(http.StatusForbidden)).Inc()
			g.o.Logger.WarnContext(r.Context(), "request refused", "principal", p.Name, "role", string(p.Role), "needs", string(need), "method", r.Method, "path", r.URL.Path, "remote", r.RemoteAddr)
			problem.Write(w, http.StatusForbidden, fmt.Sprintf("%s has the role %s, which does not allow this: it needs %s", p.Name, p.Role, need))
			return
		}
		ctx, release := g.hold(access.With(r.Context(), p), p)
		defer release()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (g *Gate) refuse(w http.ResponseWriter, r *http.Request, basic bool, err error) {
	if protocol.KindOf(err) != protocol.Denied {
		g.o.Logger.WarnContext(r.Context(), "request refused", "err", err)
		problem.Write(w, http.StatusServiceUnavailable, "the record of tokens cannot be read")
		return
	}
	g.refused.WithLabelValues(fmt.Sprint(http.StatusUnauthorized)).Inc()
	challenge := `Bearer realm="colony"`
	if basic {
		challenge = `Basic realm="colony"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	problem.Write(w, http.StatusUnauthorized, err.Error())
}

// shown returns the token that a request shows, "" where it shows none.
func shown(r *http.Request, basic bool) string {
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(text)
	}
	if _, password, ok := r.BasicAuth(); ok && basic {
		return password
	}
	return ""
}

// hold returns a context that ends with the token of p.
func (g *Gate) hold(ctx context.Context, p access.Principal) (context.Context, func()) {
	ctx, cancel := context.WithDeadlineCause(ctx, p.Expires, errEnded)
	ctx, end := context.WithCancelCause(ctx)
	r := &request{p, end}
	g.mu.Lock()
	g.open[r] = true
	t := g.tokens[p.Token]
	g.mu.Unlock()
	if !t.Holds(time.Now()) || t.Role != p.Role { // since it was authenticated
		end(errEnded)
	}
	return ctx, func() {
		g.mu.Lock()
		delete(g.open, r)
		g.mu.Unlock()
		end(nil)
		cancel()
	}
}
