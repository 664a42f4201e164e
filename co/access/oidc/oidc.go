// Package oidc has an OpenID provider vouch for people and programs: whose token it has signed, may do what their groups
// are mapped to. It reads the provider's keys by discovery (OpenID Connect Discovery 1.0), and follows their rotation.
package oidc

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/access"
	owntoken "github.com/colonyfleet/colony/co/access/token"
	"github.com/colonyfleet/colony/internal/allowance"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// mostKnown bounds the tokens in memory that were verified.
	mostKnown = 4096
	// mostText bounds a token, in bytes.
	mostText = 32 << 10
	// leeway is by how much the clocks of the CO and the provider may differ.
	leeway = time.Minute
	// maxLife is how long a token counts that says longer: the CO cannot end it before.
	maxLife = 24 * time.Hour
	// logEvery and logBurst bound the lines about tokens that are refused.
	logEvery, logBurst = time.Second, 20
)

// backoff is between two readings of the keys while the provider is away.
var backoff = retry.Policy{Min: time.Second, Max: time.Minute, Jitter: 0.5}

// A Provider verifies tokens of an OpenID provider. Its methods may be called concurrently.
type Provider struct {
	c     Config
	log   *slog.Logger
	keys  *keys
	lines *allowance.Allowance

	mu    sync.Mutex                             // protects what follows
	known map[[sha256.Size]byte]access.Principal // of tokens that were verified
}

// New returns a provider that has read nothing yet: call Run afterwards. c is valid. The error is about the file of authorities.
func New(c Config, log *slog.Logger, registerer prometheus.Registerer) (*Provider, error) {
	c = c.completed()
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the transport of HTTP was replaced")
	}
	transport = transport.Clone()
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("access.oidc.ca: %w", err)
		}
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool() // the system has none
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("access.oidc.ca %s: want a file with certificates in PEM", c.CA)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	p := &Provider{
		c: c, log: log, lines: allowance.New(logEvery, logBurst), known: map[[sha256.Size]byte]access.Principal{},
		keys: &keys{issuer: c.Issuer, turn: make(chan struct{}, 1), client: &http.Client{
			Transport:     limited{transport},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}},
	}
	registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "colony_co_oidc_up", Help: "1 where the keys of the OpenID provider could be read last time, otherwise 0.",
	}, func() float64 {
		if list, err := p.keys.state(); err != nil || len(list) == 0 {
			return 0
		}
		return 1
	}))
	return p, nil
}

// Run reads the provider's keys until ctx ends. While they cannot be read, those that are known count, for a day.
func (p *Provider) Run(ctx context.Context) {
	wait, failures := time.Duration(0), 0
	for retry.Sleep(ctx, wait) == nil {
		err := p.keys.read(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			wait = min(backoff.Delay(failures, nil), p.c.Refresh)
			if failures == 0 {
				p.log.WarnContext(ctx, "the keys of the OpenID provider cannot be read: who signs in there is known by the keys of before, if at all; other tokens count", "issuer", p.c.Issuer, "err", err)
			}
			failures++
		default:
			if failures > 0 {
				p.log.InfoContext(ctx, "the keys of the OpenID provider are read again", "issuer", p.c.Issuer)
			}
			wait, failures = p.c.Refresh, 0
			p.forget()
		}
	}
}

// forget forgets the tokens that have ended, and those whose key was withdrawn.
func (p *Provider) forget() {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.known, func(_ [sha256.Size]byte, who access.Principal) bool {
		return !now.Before(who.Expires) || !p.keys.has(who.Key)
	})
}

// Holds reports whether the key still counts that has signed the token of a principal.
func (p *Provider) Holds(who access.Principal) bool { return p.keys.has(who.Key) }

// The errors that a client with a token of the provider gets. Why a token is not the provider's, or not for this Colony, is
// in the log alone.
var (
	errForeign       = protocol.Errorf(protocol.Denied, "the token is not one that counts here: log in again with colony login")
	errExpired error = &protocol.Error{Kind: protocol.Denied, Message: "the token has ended: log in again with colony login", Err: owntoken.ErrExpired}
	errEarly         = protocol.Errorf(protocol.Denied, "the token does not count yet: the clock of the provider that made it is ahead of the CO's")
	errAway          = protocol.Errorf(protocol.Unavailable, "who signs in with the OpenID provider cannot be known now, as its keys cannot be read; tokens of Colony itself count")
)

// Verify returns the person of a token, and false where the text does not claim to be a token of the provider. A person that
// may do nothing has no role. The error is of kind Denied or Unavailable, and may be shown to the client.
func (p *Provider) Verify(ctx context.Context, text string) (who access.Principal, theirs bool, err error) {
	sum := sha256.Sum256([]byte(text))
	p.mu.Lock()
	who, ok := p.known[sum]
	p.mu.Unlock()
	if ok && p.keys.has(who.Key) {
		if !time.Now().Before(who.Expires) {
			return access.Principal{}, true, errExpired
		}
		return who, true, nil
	}
	if !p.named(text) {
		return access.Principal{}, false, nil
	}
	who, err = p.verify(ctx, text)
	if err != nil {
		if ok, leftOut := p.lines.Allow(); ok {
			p.log.WarnContext(ctx, "a token of the OpenID provider is refused", "err", err, "left_out_before", leftOut)
		}
		for _, shown := range []error{errExpired, errEarly, errAway} {
			if errors.Is(err, shown) {
				return access.Principal{}, true, shown
			}
		}
		return access.Principal{}, true, errForeign
	}
	who.Token = base64.RawURLEncoding.EncodeToString(sum[:])
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.known) >= mostKnown {
		clear(p.known)
	}
	p.known[sum] = who
	return who, true, nil
}

// Knows reports whether Verify has accepted a text before.
func (p *Provider) Knows(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.known[sha256.Sum256([]byte(text))]
	return ok
}

// named reports whether a text says that it is a token of the provider, whether that is so or not.
func (p *Provider) named(text string) bool {
	parts := strings.Split(text, ".")
	if len(text) > mostText || len(parts) != 3 {
		return false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var said struct {
		Issuer string `json:"iss"`
	}
	return err == nil && json.Unmarshal(payload, &said) == nil && said.Issuer == p.c.Issuer
}

// verify is Verify without what is in memory. Its errors are for the log.
func (p *Provider) verify(ctx context.Context, text string) (access.Principal, error) {
	a := &attempt{keys: p.keys, apart: min(rereadDelay, p.c.Refresh)}
	list := make([]string, len(algorithms))
	for i, alg := range algorithms {
		list[i] = string(alg)
	}
	// The times are judged below, with the leeway of Colony's own tokens.
	token, err := oidc.NewVerifier(p.c.Issuer, a, &oidc.Config{SkipClientIDCheck: true, SkipExpiryCheck: true, SupportedSigningAlgs: list}).Verify(ctx, text)
	if err != nil {
		if known, reading := p.keys.state(); len(known) == 0 {
			return access.Principal{}, fmt.Errorf("%w (%w)", errAway, reading)
		}
		return access.Principal{}, err
	}
	var c claims
	if err := token.Claims(&c.all); err != nil {
		return access.Principal{}, err
	}
	if err := p.isFor(token, a.header.ExtraHeaders["typ"], c); err != nil {
		return access.Principal{}, err
	}
	until, err := holds(token, c, time.Now())
	if err != nil {
		return access.Principal{}, err
	}
	if n := len(token.Subject); n == 0 || n > mostSubject {
		return access.Principal{}, fmt.Errorf("the subject has %d bytes, want 1 to %d", n, mostSubject)
	}
	who := access.Principal{
		Name: namePrefix + c.name(p.c.NameClaim, token.Subject), Issuer: token.Issuer, Subject: token.Subject, Expires: until, Key: a.thumbprint,
	}
	groups := c.groups(p.c.GroupsClaim)
	who.SetGrants(p.c.grants(groups))
	if who.Role == "" {
		if ok, leftOut := p.lines.Allow(); ok {
			p.log.WarnContext(ctx, "a person has signed in of whose groups none has a role: see access.oidc.roles and groupsClaim", "principal", who.Name, "subject", who.Subject,
				"claim", p.c.GroupsClaim, "groups", slices.Sorted(maps.Keys(groups)), "left_out_before", leftOut)
		}
	}
	return who, nil
}

// isFor says why a token is not for this Colony; nil: it is. An ID token is for the client of the command line, an access token
// for the audience of the API.
func (p *Provider) isFor(token *oidc.IDToken, typ any, c claims) error {
	switch t, _ := typ.(string); strings.TrimPrefix(strings.ToLower(t), "application/") {
	case "", "jwt", "at+jwt":
	default: // as a logout token, which has the same audience
		return fmt.Errorf("the token is a %v, and neither an ID token nor an access token", typ)
	}
	if c.all["events"] != nil { // RFC 8417
		return errors.New("the token reports an event, and does not identify a person")
	}
	// An access token (RFC 9068) may have been made for another client of the provider.
	if access := strings.HasSuffix(strings.ToLower(fmt.Sprint(typ)), "at+jwt"); slices.Contains(token.Audience, p.c.ClientID) && (!access || p.c.Audience == p.c.ClientID) {
		if party, there := c.all["azp"]; there && party != p.c.ClientID {
			return fmt.Errorf("the ID token was made for the client %v, want %q", party, p.c.ClientID)
		}
		return nil
	}
	if p.c.Audience != "" && slices.Contains(token.Audience, p.c.Audience) {
		return nil
	}
	return fmt.Errorf("the token is for %q, want the clientID %q or the audience %q", token.Audience, p.c.ClientID, p.c.Audience)
}

// holds returns until when a token counts, or why it does not.
func holds(token *oidc.IDToken, c claims, now time.Time) (time.Time, error) {
	if token.Expiry.IsZero() || token.IssuedAt.IsZero() {
		return time.Time{}, errors.New("the token does not say when it was made, or when it ends")
	}
	until := token.Expiry
	if latest := token.IssuedAt.Add(maxLife); until.After(latest) {
		until = latest
	}
	if !now.Before(until) {
		return until, fmt.Errorf("%w: at %s", errExpired, until.UTC().Format(time.RFC3339))
	}
	for _, from := range []time.Time{token.IssuedAt, c.time("nbf")} {
		if from.After(now.Add(leeway)) {
			return until, fmt.Errorf("%w: from %s", errEarly, from.UTC().Format(time.RFC3339))
		}
	}
	return until, nil
}

// SignIn returns what the command line must know.
func (p *Provider) SignIn() *access.SignIn {
	return &access.SignIn{Issuer: p.c.Issuer, ClientID: p.c.ClientID, Scopes: p.c.Scopes}
}
