package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// A client calls the CO's HTTP API.
type client struct {
	base string // without a trailing slash
	http *http.Client
	// timeout bounds a request with its answer, and the wait for the beginning of a
	// stream. 0: there is no bound.
	timeout time.Duration
}

// do sends a request. The answer has to begin within the time-out; release, which is to
// be called, ends what is left of it.
func (c *client) do(req *http.Request) (resp *http.Response, release func(), err error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	release = func() { cancel(nil) }
	if c.timeout > 0 {
		late := lateError(fmt.Sprintf("no answer within %s", c.timeout))
		defer time.AfterFunc(c.timeout, func() { cancel(late) }).Stop()
	}
	resp, err = c.http.Do(req.WithContext(ctx))
	if err != nil {
		cause := context.Cause(ctx)
		release()
		// Also where the time for the whole answer is over before this is seen.
		if late, ok := errors.AsType[lateError](cause); ok {
			return nil, nil, &unreachable{c.base, late}
		}
		return nil, nil, c.away(req.Context(), err)
	}
	return resp, release, nil
}

// A lateError says that the API took longer than the user wants to wait.
type lateError string

// Error says how long that was.
func (e lateError) Error() string { return string(e) }

// A problem is an RFC 9457 answer.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Errors []struct {
		Message  string `json:"message"`
		Location string `json:"location"`
	} `json:"errors"`
}

// Error returns the detail, and each single error on a line of its own.
func (p *problem) Error() string {
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

// An unreachable error is an API that does not answer.
type unreachable struct {
	base string
	err  error
}

// Error names the address of the API and says how to choose another one.
func (u *unreachable) Error() string {
	return fmt.Sprintf("the API at %s does not answer (%v): is Colony running (colony up)? Another address goes in --url or COLONY_URL", u.base, u.err)
}

// Unwrap returns the network error.
func (u *unreachable) Unwrap() error { return u.err }

// call sends a request and decodes the answer into out, which may be nil. body
// nil sends none. It returns the response's ETag.
func (c *client) call(ctx context.Context, method, path string, body, out any) (etag string, err error) {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return "", err
	}
	return c.send(req, out)
}

// An amendment is a request that writes.
type amendment struct {
	method, path string
	// etag names what was read, and may not have changed since. Empty: whatever is there.
	etag string
	body any
}

// write sends an amendment and decodes the answer into out, which may be nil.
func (c *client) write(ctx context.Context, w amendment, out any) error {
	req, err := c.request(ctx, w.method, w.path, w.body)
	if err != nil {
		return err
	}
	if w.etag != "" {
		req.Header.Set("If-Match", w.etag)
	}
	_, err = c.send(req, out)
	return err
}

func (c *client) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	if u, err := url.Parse(c.base); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usageError{fmt.Errorf("--url (or COLONY_URL) %q: want a URL such as %s", c.base, defaultURL)}
	}
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/api/v1"+path, r)
	if err != nil {
		return nil, fmt.Errorf("address of the API: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

func (c *client) send(req *http.Request, out any) (etag string, err error) {
	ctx := req.Context()
	if c.timeout > 0 {
		whole, cancel := context.WithTimeoutCause(ctx, 2*c.timeout, lateError(fmt.Sprintf("no whole answer within %s", 2*c.timeout)))
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

func (c *client) away(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &unreachable{c.base, err}
}

func asProblem(resp *http.Response, body []byte) error {
	p := &problem{Status: resp.StatusCode}
	if json.Unmarshal(body, p) != nil || p.Title == "" {
		p.Title = strings.TrimSpace(resp.Status + " " + string(body[:min(len(body), 300)]))
	}
	p.Status = resp.StatusCode
	return p
}

// list fetches all pages of a list.
func list[T any](ctx context.Context, c *client, path string, query url.Values) ([]T, error) {
	all := []T{}
	if query == nil {
		query = url.Values{}
	}
	for {
		var page struct {
			Items []T    `json:"items"`
			Next  string `json:"next"`
		}
		if _, err := c.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}
