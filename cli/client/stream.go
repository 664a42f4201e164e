package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/retry"
)

// errStreamEnd is the end of an event stream that the server closed.
var errStreamEnd = errors.New("the event stream ended")

const (
	// reopenDelay is the wait before a broken stream is opened again.
	reopenDelay = 500 * time.Millisecond
	// maxStreamLine bounds one line of a stream: a message with its payload.
	maxStreamLine = 64 << 20
)

// A ServerEvent is one server-sent event (WHATWG HTML, section 9.2).
type ServerEvent struct {
	Kind string // "": it has none
	Data string
}

// Events calls each with every event after the id after, or where that is negative with
// every new one, until each reports false, ctx ends, or the server refuses. It connects
// again after a broken stream.
func (c *Client) Events(ctx context.Context, query url.Values, after int64, each func(fleet.Event) (more bool)) error {
	last := ""
	if after >= 0 {
		last = strconv.FormatInt(after, 10)
	}
	return c.Follow(ctx, "/events?"+query.Encode(), last, func(s ServerEvent) (bool, error) {
		var e fleet.Event
		if err := json.Unmarshal([]byte(s.Data), &e); err != nil {
			return true, fmt.Errorf("event stream: %w", err)
		}
		return each(e), nil
	})
}

// Follow calls each with every event of a stream, until each reports false, ctx ends,
// or the server refuses. It connects again after a broken stream and resumes behind
// the last event; last is where it begins, "" where the server decides.
func (c *Client) Follow(ctx context.Context, path, last string, each func(ServerEvent) (more bool, err error)) error {
	opened := false
	for {
		more, err := c.stream(ctx, path, &last, func(s ServerEvent) (bool, error) {
			opened = true
			return each(s)
		})
		if !more || ctx.Err() != nil {
			return ctx.Err()
		}
		if Final(err, opened) {
			return err
		}
		if retry.Sleep(ctx, reopenDelay) != nil {
			return ctx.Err()
		}
	}
}

// Final reports whether an error of a stream says that it will not be served: what was open once is refused for a while only, such as while the
// database is away.
func Final(err error, opened bool) bool {
	if p, refused := errors.AsType[*Problem](err); refused {
		return p.Status != http.StatusTooManyRequests && (!opened || p.Status < 500)
	}
	_, signedOut := errors.AsType[*SignedOut](err)
	_, untrusted := errors.AsType[*Untrusted](err)
	return signedOut || untrusted
}

// Once calls each with every event of a stream until each reports false, the stream or ctx ends, or the server refuses. It
// does not connect again: the error is about a stream that ended before each reported false.
func (c *Client) Once(ctx context.Context, path string, each func(ServerEvent) (more bool, err error)) error {
	last := ""
	more, err := c.stream(ctx, path, &last, each)
	if more && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// stream reads one stream to its end.
func (c *Client) stream(ctx context.Context, path string, last *string, each func(ServerEvent) (bool, error)) (more bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Base+"/api/v1"+path, nil)
	if err != nil {
		return false, fmt.Errorf("address of the API: %w", err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if *last != "" {
		req.Header.Set("Last-Event-ID", *last)
	}
	resp, release, err := c.do(req)
	if err != nil {
		return true, err
	}
	defer release()
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return true, asProblem(resp, b)
	}
	var data strings.Builder
	var event ServerEvent
	id := *last
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxStreamLine)
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "data":
			data.WriteString(value)
		case field == "event":
			event.Kind = value
		case field == "id":
			id = value
		case lines.Text() == "" && data.Len() > 0:
			event.Data = data.String()
			more, err := each(event)
			if !more || err != nil {
				return more, err
			}
			*last = id // the stream resumes after it
			data.Reset()
			event = ServerEvent{}
		}
	}
	return true, errors.Join(errStreamEnd, lines.Err())
}
