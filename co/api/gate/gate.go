// Package gate lets requests to the CO's HTTP API pass that show a token whose role allows them.
package gate

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/access/limit"
	owntoken "github.com/colonyfleet/colony/co/access/token"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/allowance"
	"github.com/colonyfleet/colony/internal/netaddr"
	"github.com/colonyfleet/colony/protocol"
)

// A Store is the CO's record of tokens. Errors are of the protocol's kinds.
type Store interface {
	// Tokens returns a page of the tokens that have not ended, and of those that ended within a month.
	Tokens(ctx context.Context, p fleet.Page) (list []access.Token, next string, err error)
	// TokensByID returns those of the tokens that are in the record.
	TokensByID(ctx context.Context, ids []string) ([]access.Token, error)
	// TokensOfOtherKeys returns how many tokens count that another key signed.
	TokensOfOtherKeys(ctx context.Context, key string) (int, error)
	// AddToken records a new token.
	AddToken(ctx context.Context, t access.Token) error
	// RevokeToken ends a token; NotFound where there is none.
	RevokeToken(ctx context.Context, id string) error
	// TokensUsed records when tokens were used last, by id.
	TokensUsed(ctx context.Context, at map[string]time.Time) error
}

// A Signer makes the texts of tokens and reads them.
type Signer interface {
	// KeyID names the key.
	KeyID() string
	// Text returns the text of a token, which its owner presents.
	Text(t access.Token) (string, error)
	// Read returns the id of a token that was signed here and has not ended. The error may be shown to the client.
	Read(text string) (id string, err error)
}

// Options are what a gate needs. All are required but for Provider and Limits.
type Options struct {
	Store    Store
	Groups   GroupStore
	Signer   Signer
	Provider Provider
	Limits   limit.Limits
	// Roles are those of the configuration. Nil: none.
	Roles      access.Custom
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

const (
	// rereadInterval is how often the tokens that are shown are read again: one that another replica revokes counts as long.
	rereadInterval = 2 * time.Second
	// writeUses is how often the record learns which tokens were used.
	writeUses = time.Minute
	// storeWait bounds one access to the record.
	storeWait = 5 * time.Second
	// forgetAfter is how long an unused token stays in memory.
	forgetAfter = 10 * time.Minute
	// mostKnown bounds the tokens in memory that are not in use, and the texts whose signatures were checked.
	mostKnown = 4096
	// cutAfter is how long the answer to a request may still be written whose token does not count any more.
	cutAfter = 2 * time.Second
	// logEvery and logBurst bound the lines about requests that are refused.
	logEvery, logBurst = time.Second, 20
)

// A Gate knows the tokens that are shown. Its methods may be called concurrently.
type Gate struct {
	o       Options
	refused *prometheus.CounterVec
	lines   *allowance.Allowance // of refused requests of unknown clients
	limits  *limits

	reading sync.Mutex // one reads the record again at a time
	mu      sync.Mutex // guards what follows
	tokens  map[string]*held
	most    int                          // tokens in memory before some are forgotten, where more than mostKnown are in use
	known   map[[sha256.Size]byte]string // ids of texts whose signatures were checked
	persons map[*request]bool            // that are answered, of people for whom the provider vouches
	groups  map[string][]string          // sites by the name of their group; replaced, and never changed
}

// held is a token in memory.
type held struct {
	access.Token           // its ID is empty where the record has none
	shown        time.Time // last
	unwritten    bool      // the record does not know of the last use
	open         map[*request]bool
}

// allowed reports whether what was shown still allows what a request may do.
func (r *request) allowed(shown access.Principal, groups map[string][]string) bool {
	return shown.Within(groups).Same(r.of)
}

// A request that is answered.
type request struct {
	shown access.Principal // as its token says
	of    access.Principal // with the sites of the groups that it had at its beginning
	end   context.CancelCauseFunc
}

// New asks the record for tokens of other keys. Call Run afterwards.
func New(ctx context.Context, o Options) (*Gate, error) {
	g := &Gate{
		o: o, lines: allowance.New(logEvery, logBurst), tokens: map[string]*held{}, known: map[[sha256.Size]byte]string{}, persons: map[*request]bool{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_co_requests_refused_total", Help: "Requests to the HTTP API that were refused, by status: 401 without a valid token, 403 without the permission.",
		}, []string{"status"}),
	}
	o.Registerer.MustRegister(g.refused)
	g.limits = newLimits(o)
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	if err := g.readGroups(ctx); err != nil {
		return nil, err
	}
	n, err := o.Store.TokensOfOtherKeys(ctx, o.Signer.KeyID())
	if n > 0 {
		o.Logger.WarnContext(ctx, "another key signed tokens that count in the record, and they are refused here: all replicas need the same access.keyFile; after a new key, revoke them", "tokens", n, "key", o.Signer.KeyID())
	}
	return g, err
}

// Run follows the record until ctx ends. While the record cannot be read, what is known counts.
func (g *Gate) Run(ctx context.Context) {
	tick := time.NewTicker(rereadInterval)
	defer tick.Stop()
	away, wrote := false, time.Now()
	for {
		select {
		case <-ctx.Done():
			if err := g.writeUses(context.WithoutCancel(ctx)); err != nil {
				g.o.Logger.WarnContext(ctx, "the last uses of tokens are not recorded", "err", err)
			}
			return
		case <-tick.C:
		}
		err := g.readGroups(ctx)
		g.endPersons()
		if err == nil {
			err = g.read(ctx)
		}
		if err == nil && time.Since(wrote) >= writeUses {
			wrote = time.Now()
			err = g.writeUses(ctx)
		}
		if err != nil && !away && ctx.Err() == nil {
			g.o.Logger.WarnContext(ctx, "tokens and groups of sites cannot be read or recorded; those that are known count", "err", err)
		}
		away = err != nil
	}
}

// read reads the tokens in memory again, and ends the requests whose token does not count any more, or not as it did.
func (g *Gate) read(ctx context.Context) error {
	g.reading.Lock()
	defer g.reading.Unlock()
	g.mu.Lock()
	for id, h := range g.tokens {
		if len(h.open) == 0 && !h.unwritten && time.Since(h.shown) > forgetAfter {
			delete(g.tokens, id)
		}
	}
	ids := slices.Collect(maps.Keys(g.tokens))
	g.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	list, err := g.o.Store.TokensByID(ctx, ids)
	if err != nil {
		return err
	}
	tokens := make(map[string]access.Token, len(list))
	for _, t := range list {
		tokens[t.ID] = t
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		h, ok := g.tokens[id]
		if !ok {
			continue
		}
		h.Token = tokens[id]
		for r := range h.open {
			if !h.Holds(time.Now()) || !r.allowed(h.Principal(), g.groups) {
				r.end(errEnded)
			}
		}
	}
	return nil
}

func (g *Gate) writeUses(ctx context.Context) error {
	used := map[string]time.Time{}
	g.mu.Lock()
	for id, h := range g.tokens {
		if h.unwritten {
			used[id], h.unwritten = h.shown, false
		}
	}
	g.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	return g.o.Store.TokensUsed(ctx, used)
}

// Create makes a token, records it, and returns it with its text, which is kept nowhere.
func (g *Gate) Create(ctx context.Context, t access.Token) (made access.Token, text string, err error) {
	if err := CheckGroups(ctx, g.o.Groups, t.Sites); err != nil {
		return t, "", err
	}
	t.Key = g.o.Signer.KeyID()
	if text, err = g.o.Signer.Text(t); err != nil {
		return t, "", err
	}
	return t, text, g.o.Store.AddToken(ctx, t)
}

// Roles are those of the configuration.
func (g *Gate) Roles() access.Custom { return g.o.Roles }

// Revoke ends a token, here at once.
func (g *Gate) Revoke(ctx context.Context, id string) error {
	if err := g.o.Store.RevokeToken(ctx, id); err != nil {
		return err
	}
	g.mu.Lock()
	g.keep(id, access.Token{}) // so that it is read again, and a concurrent reader does not store its old state
	g.mu.Unlock()
	return g.read(ctx)
}

// Tokens returns a page of the record, and the cursor of the next.
func (g *Gate) Tokens(ctx context.Context, p fleet.Page) ([]access.Token, string, error) {
	return g.o.Store.Tokens(ctx, p)
}

// errEnded is why a request ends whose token was revoked or has ended.
var errEnded = errors.New("the token was revoked, has ended, or allows something else")

// Authenticate returns whose token a text is. The error is of kind Denied and says what to do, or of kind
// Unavailable.
func (g *Gate) Authenticate(ctx context.Context, text string) (access.Principal, error) {
	sum := sha256.Sum256([]byte(text))
	g.mu.Lock()
	id, known := g.known[sum]
	g.mu.Unlock()
	if !known && g.o.Provider != nil {
		if p, theirs, err := g.o.Provider.Verify(ctx, text); theirs {
			return p, err
		}
	}
	if !known {
		var err error
		if id, err = g.o.Signer.Read(text); err != nil {
			return access.Principal{}, protocol.Errorf(protocol.Denied, "%w: log in again with colony login, or get another token with colony token create, or on the CO's machine with colony co token", err)
		}
	}
	t, err := g.token(ctx, id)
	if err != nil {
		g.o.Logger.WarnContext(ctx, "the record of tokens cannot be read", "err", err)
		return access.Principal{}, protocol.Errorf(protocol.Unavailable, "the record of tokens cannot be read")
	}
	now := time.Now()
	switch {
	case t.ID == "":
		return access.Principal{}, protocol.Errorf(protocol.Denied, "the token is not in the CO's record: get another one")
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
	g.known[sum] = id
	if h, ok := g.tokens[id]; ok {
		h.unwritten = true
	}
	return t.Principal(), nil
}

// token returns a token, whose ID is empty where the record has none.
func (g *Gate) token(ctx context.Context, id string) (access.Token, error) {
	g.mu.Lock()
	if h, ok := g.tokens[id]; ok {
		defer g.mu.Unlock()
		h.shown = time.Now()
		return h.Token, nil
	}
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	list, err := g.o.Store.TokensByID(ctx, []string{id})
	if err != nil {
		return access.Token{}, err
	}
	var t access.Token
	if len(list) > 0 {
		t = list[0]
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.keep(id, t).Token, nil
}

// keep keeps a token in memory; one that is there stays as it is. Its caller holds the lock.
func (g *Gate) keep(id string, t access.Token) *held {
	h, ok := g.tokens[id]
	if !ok {
		if len(g.tokens) >= max(g.most, mostKnown) {
			maps.DeleteFunc(g.tokens, func(_ string, h *held) bool { return len(h.open) == 0 && !h.unwritten })
			g.most = 2 * len(g.tokens)
		}
		h = &held{Token: t, open: map[*request]bool{}}
		g.tokens[id] = h
	}
	h.shown = time.Now()
	return h
}

// Rules say what a guard lets pass. All are required.
type Rules struct {
	// Needs returns what a request needs.
	Needs func(r *http.Request) access.Need
	// Limited says whether a request counts for the limit of its address.
	Limited func(r *http.Request) bool
	// Basic says whether a request may show the token as a password (RFC 7617), as clients of registries do.
	Basic func(r *http.Request) bool
	// Refused is called with each refused request, and why; p is empty where the principal is unknown.
	Refused func(r *http.Request, p access.Principal, status int, why string)
}

// Guard returns a handler that lets to next pass what the rules allow to whom asks. The context of a request
// ends with its token.
func (g *Gate) Guard(next http.Handler, rules Rules) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		need, from := rules.Needs(r), netaddr.Network(r.RemoteAddr)
		if rules.Limited(r) && g.limits.over(w, r, "address", g.limits.address.Take(from, time.Now())) {
			return
		}
		if need.Permission == access.Open {
			next.ServeHTTP(w, r)
			return
		}
		asPassword := rules.Basic(r)
		refuse := func(err error) {
			if why := g.refuse(w, r, asPassword, err); why != "" {
				rules.Refused(r, access.Principal{}, http.StatusUnauthorized, why)
			}
		}
		text := shown(r, asPassword)
		if text == "" {
			refuse(protocol.Errorf(protocol.Denied, "this CO wants a token: log in with colony login, or send it as Authorization: Bearer TOKEN"))
			return
		}
		if !g.knows(text) && g.limits.over(w, r, "failures", g.limits.failures.Wait(from, time.Now())) {
			return
		}
		shown, err := g.Authenticate(r.Context(), text)
		if err != nil {
			// A token that was valid until it ended is no guess: a client that goes on using it, such as a forgotten program, does not keep
			// others of the same address out.
			if protocol.KindOf(err) == protocol.Denied && !errors.Is(err, owntoken.ErrExpired) {
				g.limits.failures.Take(from, time.Now())
			}
			refuse(err)
			return
		}
		whose := limitedBy(shown)
		if g.limits.over(w, r, "principal", g.limits.principal.Take(whose, time.Now())) {
			return
		}
		if !g.limits.open.Enter(whose) {
			g.limits.refuse(w, r, "open", fmt.Sprintf("%d requests of %s are under way, which is the limit: end streams that are not read, or set access.limits.open", g.o.Limits.Open, shown.Name))
			return
		}
		defer g.limits.open.Leave(whose)
		p := shown.Within(g.siteGroups()).WithRoles(g.o.Roles)
		denied := func(err error) {
			g.refused.WithLabelValues(fmt.Sprint(http.StatusForbidden)).Inc()
			g.o.Logger.WarnContext(r.Context(), "request refused", "principal", p.Name, "subject", p.Subject, "grants", p.Grants(), "needs", string(need.Permission), "method", r.Method, "path", r.URL.Path, "remote", r.RemoteAddr)
			rules.Refused(r, p, http.StatusForbidden, err.Error())
		}
		if err := p.Allows(need); err != nil {
			denied(err)
			problem.Write(w, http.StatusForbidden, err.Error())
			return
		}
		ctx, release := g.hold(access.With(r.Context(), p, need.Permission, denied), shown, p) // what a body or a filter names, handlers refuse
		defer release()
		// A handler that waits for the client's bytes, or for the client to take its own, does not see its context.
		c := http.NewResponseController(w)
		defer context.AfterFunc(ctx, func() {
			now := time.Now()
			_ = c.SetReadDeadline(now)
			_ = c.SetWriteDeadline(now.Add(cutAfter))
		})()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// refuse answers a request whose principal is not known, and returns why; "" where that cannot be said, as the record is away.
func (g *Gate) refuse(w http.ResponseWriter, r *http.Request, basic bool, err error) (why string) {
	if protocol.KindOf(err) != protocol.Denied {
		g.o.Logger.WarnContext(r.Context(), "request refused", "err", err)
		problem.Write(w, http.StatusServiceUnavailable, err.Error())
		return ""
	}
	g.refused.WithLabelValues(fmt.Sprint(http.StatusUnauthorized)).Inc()
	g.logStranger(r, err)
	challenge := `Bearer realm="colony"`
	if basic {
		challenge = `Basic realm="colony"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	problem.Write(w, http.StatusUnauthorized, err.Error())
	return err.Error()
}

// logStranger logs a request of an unknown client. Such clients cannot fill the log: a later line counts what it leaves
// out.
func (g *Gate) logStranger(r *http.Request, err error) {
	ok, leftOut := g.lines.Allow()
	if !ok {
		return
	}
	g.o.Logger.WarnContext(r.Context(), "request refused", "err", err, "method", r.Method, "path", r.URL.Path, "remote", r.RemoteAddr, "left_out_before", leftOut)
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

// hold returns a context that ends with the token that was shown, or when that does not allow what p may do any more.
func (g *Gate) hold(ctx context.Context, shown, p access.Principal) (context.Context, func()) {
	ctx, cancel := context.WithDeadlineCause(ctx, p.Expires, errEnded)
	ctx, end := context.WithCancelCause(ctx)
	r := &request{shown, p, end}
	if p.Issuer != "" {
		return ctx, g.holdPerson(r, cancel)
	}
	g.mu.Lock()
	h := g.keep(p.Token, access.Token{ID: p.Token, Name: p.Name, Role: shown.Role, Sites: shown.Sites, Expires: p.Expires})
	h.open[r] = true
	counts := h.Holds(time.Now()) && r.allowed(h.Principal(), g.groups)
	g.mu.Unlock()
	if !counts { // since it was authenticated
		end(errEnded)
	}
	return ctx, func() {
		g.mu.Lock()
		delete(h.open, r)
		g.mu.Unlock()
		end(nil)
		cancel()
	}
}
