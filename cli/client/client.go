// Package client calls the CO's HTTP API for the commands: requests, lists of several
// pages, and streams of server-sent events.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// DefaultURL is where a CO serves its API by default.
const DefaultURL = "http://127.0.0.1:8080"

// A Client calls the CO's HTTP API. Calls may run at the same time.
type Client struct {
	Base string // the address of the API without a trailing slash, such as DefaultURL
	HTTP *http.Client
	// Token is shown with each request, unless it is empty.
	Token string
	// Renew returns the token that counts now, in place of Token. Nil: Token stays as it is.
	Renew func(ctx context.Context) (string, error)
	// Timeout bounds the wait for the beginning of an answer, also of a stream; a whole
	// answer may take twice as long. 0: there is no bound.
	Timeout time.Duration
}

// An AddressError says that the Base of a client is not the URL of an API.
type AddressError struct {
	Base string
}

// Error names the address and says what is expected.
func (e *AddressError) Error() string {
	return fmt.Sprintf("--url (or COLONY_URL) %q: want a URL such as %s", e.Base, DefaultURL)
}

// SameBase reports whether two addresses are of one API.
func SameBase(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// do sends a request. The answer has to begin within the time-out; release, which is to
// be called, ends what is left of it.
func (c *Client) do(req *http.Request) (resp *http.Response, release func(), err error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	release = func() { cancel(nil) }
	if c.Timeout > 0 {
		late := lateError(fmt.Sprintf("no answer within %s", c.Timeout))
		defer time.AfterFunc(c.Timeout, func() { cancel(late) }).Stop()
	}
	if err := c.authorize(ctx, req.Header); err != nil {
		release()
		return nil, nil, err
	}
	resp, err = c.HTTP.Do(req.WithContext(ctx))
	if err != nil {
		cause := context.Cause(ctx)
		release()
		// Also where the time for the whole answer is over before this is seen.
		if late, ok := errors.AsType[lateError](cause); ok {
			return nil, nil, &Unreachable{c.Base, late}
		}
		return nil, nil, c.away(req.Context(), err)
	}
	return resp, release, nil
}

// authorize adds the token that counts now to the header of a request.
func (c *Client) authorize(ctx context.Context, header http.Header) (err error) {
	token := c.Token
	if c.Renew != nil {
		if token, err = c.Renew(ctx); err != nil {
			return err
		}
	}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	return nil
}

// A SignedOut error is a token that has ended and that nothing renews.
type SignedOut struct{ Err error }

// Error says why, and what to do.
func (s *SignedOut) Error() string { return s.Err.Error() }

// Unwrap returns why.
func (s *SignedOut) Unwrap() error { return s.Err }

// A lateError says that the API took longer than the user wants to wait.
type lateError string

// Error says how long that was.
func (e lateError) Error() string { return string(e) }

// A Problem is an answer that refuses a request (RFC 9457).
type Problem struct {
	Title  string `json:"title"`  // the name of the status
	Status int    `json:"status"` // the HTTP status
	Detail string `json:"detail"` // what is wrong, for people
	// Errors are the faults of the request, each with its place in it.
	Errors []struct {
		Message  string `json:"message"`
		Location string `json:"location"`
	} `json:"errors"`
}

// Error returns the detail, and each single error on a line of its own.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Detail)
	if p.Detail == "" {
		b.WriteString(p.Title)
	}
	for _, e := range p.Errors {
		b.WriteString("\n  ")
		if e.Location != "" {
			b.WriteString(e.Location + ": ")
		}
		b.WriteString(e.Message)
	}
	return b.String()
}

// An Unreachable error is an API that does not answer.
type Unreachable struct {
	base string
	err  error
}

// Error names the address of the API and says how to choose another one.
func (u *Unreachable) Error() string {
	return fmt.Sprintf("the API at %s does not answer (%v): is Colony running (colony up)? Another address goes in --url or COLONY_URL", u.base, u.err)
}

// Unwrap returns the network error.
func (u *Unreachable) Unwrap() error { return u.err }

// An Untrusted error is an API whose certificate is not accepted.
type Untrusted struct {
	base string
	err  error
}

// Error says why, and what to do.
func (u *Untrusted) Error() string {
	return fmt.Sprintf("the certificate of %s is not accepted (%v): name the file with the certificate that it comes from with --ca or COLONY_CA, and the host by a name that is in it", u.base, u.err)
}

// Unwrap returns the error of package x509.
func (u *Untrusted) Unwrap() error { return u.err }

// IsNotFound reports whether the API answered that there is no such thing.
func IsNotFound(err error) bool {
	p, ok := err.(*Problem)
	return ok && p.Status == http.StatusNotFound
}

// Call sends a request to the path below /api/v1 and decodes the answer into out, which may
// be nil. body nil sends none. The error is a *Problem where the API refuses, *Unreachable
// where it does not answer, *AddressError where it has no address, and that of ctx where
// ctx has ended.
func (c *Client) Call(ctx context.Context, method, path string, body, out any) error {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	_, err = c.send(req, out)
	return err
}

// Read gets what is at a path and decodes it into out. It returns the ETag of the answer
// (RFC 9110, section 8.8.3), "" where it has none. Errors are those of Call.
func (c *Client) Read(ctx context.Context, path string, out any) (etag string, err error) {
	req, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return "", err
	}
	return c.send(req, out)
}

// An Amendment is a request that writes.
type Amendment struct {
	Method, Path string
	// ETag is the state that was read, and must not have changed since. Empty: any state.
	ETag string
	Body any // nil: none is sent
}

// Write sends an amendment and decodes the answer into out, which may be nil. Errors are those
// of Call; a Problem of status 412 says that what ETag names has changed.
func (c *Client) Write(ctx context.Context, w Amendment, out any) error {
	req, err := c.request(ctx, w.Method, w.Path, w.Body)
	if err != nil {
		return err
	}
	if w.ETag != "" {
		req.Header.Set("If-Match", w.ETag)
	}
	_, err = c.send(req, out)
	return err
}

func (c *Client) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	if u, err := url.Parse(c.Base); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, &AddressError{c.Base}
	}
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Base+"/api/v1"+path, r)
	if err != nil {
		return nil, fmt.Errorf("address of the API: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

func (c *Client) send(req *http.Request, out any) (etag string, err error) {
	ctx := req.Context()
	if c.Timeout > 0 {
		whole, cancel := context.WithTimeoutCause(ctx, 2*c.Timeout, lateError(fmt.Sprintf("no whole answer within %s", 2*c.Timeout)))
		defer cancel()
		req = req.WithContext(whole)
	}
	resp, release, err := c.do(req)
	if err != nil {
		return "", err
	}
	defer release()
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		if cause := context.Cause(req.Context()); cause != nil {
			err = cause
		}
		return "", c.away(ctx, err)
	}
	if resp.StatusCode >= 300 {
		return "", asProblem(resp, b)
	}
	if out != nil && len(b) > 0 {
		if err := json.Unmarshal(b, out); err != nil {
			return "", fmt.Errorf("answer of %s %s: %w", req.Method, req.URL.Path, err)
		}
	}
	return resp.Header.Get("ETag"), nil
}

func (c *Client) away(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &Untrusted{c.Base, untrusted.Err}
	}
	return &Unreachable{c.Base, err}
}

func asProblem(resp *http.Response, body []byte) error {
	p := &Problem{Status: resp.StatusCode}
	if to, err := resp.Location(); err == nil {
		p.Title = fmt.Sprintf("%s: the API is at %s; name its address with --url or COLONY_URL", resp.Status, to)
		return p
	}
	if strings.Contains(string(body), "HTTP request to an HTTPS server") {
		p.Title = "the API is served by TLS; name its address with https:// in --url or COLONY_URL"
		return p
	}
	if json.Unmarshal(body, p) != nil || p.Title == "" {
		p.Title = strings.TrimSpace(resp.Status + " " + string(body[:min(len(body), 300)]))
	}
	p.Status = resp.StatusCode
	return p
}

// List fetches all pages of a list; query may be nil. It is not nil without items. Errors are
// those of Call.
func List[T any](ctx context.Context, c *Client, path string, query url.Values) ([]T, error) {
	all := []T{}
	if query == nil {
		query = url.Values{}
	}
	for {
		var page struct {
			Items []T    `json:"items"`
			Next  string `json:"next"`
		}
		if err := c.Call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}
