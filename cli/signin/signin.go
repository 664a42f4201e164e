// Package signin signs a person in with an OpenID provider, renews the tokens, and revokes them. It uses a device
// code (RFC 8628), or an authorization code that arrives at a port of the loopback (RFC 8252) with PKCE (RFC 7636).
package signin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/colonyfleet/colony/co/access"
)

// A Session is what is kept of a person that has signed in, beside the ID token.
type Session struct {
	Issuer   string   `yaml:"issuer"`           // URL of the provider
	ClientID string   `yaml:"clientID"`         // of colony at the provider
	Scopes   []string `yaml:"scopes,omitempty"` // that were asked for
	// Refresh is the refresh token; empty where the provider gave none.
	Refresh string `yaml:"refresh,omitempty"`
	// Ends is when the ID token ends, by the clock of this machine.
	Ends time.Time `yaml:"ends"`
}

// A Way is how a person signs in.
type Way int

const (
	// Any is by a device code where the provider has them, otherwise by a browser.
	Any Way = iota
	// Device is by a code that the person confirms in a browser anywhere.
	Device
	// Browser is by a browser on this machine.
	Browser
)

// Options of a sign-in. All are required.
type Options struct {
	// How is what the CO says of its provider, and CO its address.
	How access.SignIn
	CO  string
	// HTTP asks the provider.
	HTTP *http.Client
	// Out is where the person reads what to do.
	Out io.Writer
	Way Way
	// Open opens an address in a browser, if it can.
	Open func(address string)
}

// patience bounds how long a person may take in their browser.
const patience = 15 * time.Minute

// ErrSignedOut says that nothing is left of a session that could be renewed: the person has to sign in again.
var ErrSignedOut = errors.New("the sign-in has ended")

// A provider is one that was found.
type provider struct {
	*oidc.Provider
	config oauth2.Config
	client *http.Client
}

func (p *provider) context(ctx context.Context) context.Context {
	return oidc.ClientContext(ctx, p.client)
}

func find(ctx context.Context, client *http.Client, issuer, clientID string, scopes []string) (*provider, error) {
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, client), issuer)
	if err != nil {
		return nil, fmt.Errorf("the OpenID provider %s does not answer as one: %w", issuer, err)
	}
	p := &provider{found, oauth2.Config{ClientID: clientID, Endpoint: found.Endpoint(), Scopes: scopes}, client}
	p.config.Endpoint.AuthStyle = oauth2.AuthStyleInParams // a public client has no secret
	return p, nil
}

// session reads what the provider has given: the ID token, and what is kept beside it. Its nonce is the one that was
// asked for; "" where none was.
func (p *provider) session(ctx context.Context, s Session, t *oauth2.Token, nonce string) (text string, _ Session, err error) {
	text, _ = t.Extra("id_token").(string)
	if text == "" {
		return "", s, errors.New("the provider gives no ID token: the scope openid has to be among access.oidc.scopes of the CO")
	}
	// The clock of this machine may be wrong; the CO judges the times.
	token, err := p.Verifier(&oidc.Config{ClientID: s.ClientID, SkipExpiryCheck: true}).Verify(p.context(ctx), text)
	if err != nil {
		return "", s, fmt.Errorf("the ID token of the provider: %w", err)
	}
	if nonce != "" && token.Nonce != nonce {
		return "", s, errors.New("the ID token of the provider is the answer to another sign-in")
	}
	s.Ends = time.Now().Add(token.Expiry.Sub(token.IssuedAt)).Truncate(time.Second)
	if t.RefreshToken != "" {
		s.Refresh = t.RefreshToken
	}
	return text, s, nil
}

// In signs a person in. It returns the ID token, and what is kept beside it.
func In(ctx context.Context, o Options) (text string, s Session, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no sign-in within %s", patience))
	defer cancel()
	s = Session{Issuer: o.How.Issuer, ClientID: o.How.ClientID, Scopes: o.How.Scopes}
	p, err := find(ctx, o.HTTP, s.Issuer, s.ClientID, s.Scopes)
	if err != nil {
		return "", s, err
	}
	way := o.Way
	if way == Any {
		way = Browser
		if p.config.Endpoint.DeviceAuthURL != "" {
			way = Device
		}
	}
	var t *oauth2.Token
	var nonce string
	if way == Device {
		t, err = p.byDevice(ctx, o)
	} else {
		nonce = rand.Text()
		t, err = p.byBrowser(ctx, o, nonce)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return "", s, fmt.Errorf("sign in with %s: %w", s.Issuer, said(err))
	}
	return p.session(ctx, s, t, nonce)
}

// consent asks for the person's agreement, without which no refresh token is given (OpenID Connect Core 1.0, section 11).
func consent(scopes []string) []oauth2.AuthCodeOption {
	if slices.Contains(scopes, oidc.ScopeOfflineAccess) {
		return []oauth2.AuthCodeOption{oauth2.SetAuthURLParam("prompt", "consent")}
	}
	return nil
}

func (p *provider) byDevice(ctx context.Context, o Options) (*oauth2.Token, error) {
	if p.config.Endpoint.DeviceAuthURL == "" {
		return nil, errors.New("the provider has no device codes: use --browser on the machine that has your browser")
	}
	code, err := p.config.DeviceAuth(p.context(ctx), consent(p.config.Scopes)...)
	if err != nil {
		return nil, err
	}
	address := code.VerificationURIComplete
	if address == "" {
		address = code.VerificationURI
	}
	if err := openable(address); err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Out, "To sign in for %s, open this in a browser, and see that it shows the code %s:\n\n  %s\n\n", o.CO, plain(code.UserCode), address)
	o.Open(address)
	return p.config.DeviceAccessToken(p.context(ctx), code)
}

// openable returns an error where an address that a provider gives is not one for a browser: a program that opens it might take it for a
// file, or for an option.
func openable(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || plain(address) != address {
		return fmt.Errorf("the provider gives %q to be opened in a browser: want an address that begins with https://", address)
	}
	return nil
}

// plain leaves out what would change a terminal.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text)
}

// Renew returns a new ID token for a session. The error is ErrSignedOut where the person has to sign in again.
func Renew(ctx context.Context, client *http.Client, s Session) (text string, _ Session, err error) {
	if s.Refresh == "" {
		return "", s, fmt.Errorf("%w: %s gave nothing to renew it with", ErrSignedOut, s.Issuer)
	}
	p, err := find(ctx, client, s.Issuer, s.ClientID, s.Scopes)
	if err != nil {
		return "", s, err
	}
	t, err := p.config.TokenSource(p.context(ctx), &oauth2.Token{RefreshToken: s.Refresh}).Token()
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refused.ErrorCode == "invalid_grant" {
		return "", s, fmt.Errorf("%w: %s does not renew it any more", ErrSignedOut, s.Issuer)
	}
	if err != nil {
		return "", s, fmt.Errorf("renew the sign-in with %s: %w", s.Issuer, said(err))
	}
	return p.session(ctx, s, t, "")
}

// Out has the provider forget a session (RFC 7009), where it can.
func Out(ctx context.Context, client *http.Client, s Session) error {
	if s.Refresh == "" {
		return nil
	}
	p, err := find(ctx, client, s.Issuer, s.ClientID, s.Scopes)
	if err != nil {
		return err
	}
	var says struct {
		Revocation string `json:"revocation_endpoint"`
	}
	if err := p.Claims(&says); err != nil || says.Revocation == "" {
		return err
	}
	form := url.Values{"token": {s.Refresh}, "token_type_hint": {"refresh_token"}, "client_id": {s.ClientID}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, says.Revocation, strings.NewReader(form.Encode()))
	if err != nil {
		return fmt.Errorf("revocation at the provider: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("revocation at the provider: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("revocation at the provider: it answers %s", resp.Status)
	}
	return nil
}

// said is an error as a person reads it: what a provider says of a request that it refuses.
func said(err error) error {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok || refused.ErrorCode == "" {
		return err
	}
	switch refused.ErrorCode {
	case "access_denied":
		return errors.New("it was refused in the browser")
	case "expired_token":
		return errors.New("the code was not confirmed in time: run colony login again")
	}
	return fmt.Errorf("the provider refuses it: %s", strings.TrimSuffix(refused.ErrorCode+": "+refused.ErrorDescription, ": "))
}
