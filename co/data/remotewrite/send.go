package remotewrite

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/internal/retry"
)

// maxSplits bounds how many more requests are spent on finding the bad samples of one
// batch, where nothing of the one before was good.
const maxSplits = 64

// deliver sends samples until the server has accepted or refused all of them, or ctx ends. A server
// refuses a whole request for one bad sample, such as one that is older than its last sample of the
// series. So deliver halves a refused request, the older half first, until only the bad samples are
// left out. After a restart the samples of one batch may be stored already, and each of them is
// refused. If a server accepts nothing, batch after batch, deliver does not send each sample alone.
func (w *Writer) deliver(ctx context.Context, samples []sample) error {
	budget, sent, refused, last := 2*len(samples), 0, 0, result{}
	if w.hopeless.Load() {
		budget = min(budget, maxSplits)
	}
	for todo := [][]sample{samples}; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		if len(part) == 0 {
			continue
		}
		r, err := w.post(ctx, encode(part))
		switch {
		case err != nil:
			return err
		case r.accepted:
			sent += len(part)
			w.metrics.sent.Add(float64(len(part)))
		case len(part) > 1 && budget >= 2:
			budget -= 2
			half := len(part) / 2
			todo = append([][]sample{part[:half], part[half:]}, todo...)
		default:
			refused += len(part)
			w.metrics.refused.WithLabelValues(strconv.Itoa(r.status)).Add(float64(len(part)))
			w.log.DebugContext(ctx, "sample refused by the remote write server", "samples", len(part), "status", r.status,
				"reason", r.reason, "site_id", part[0].site, "rule", part[0].rule, "topic", part[0].topic)
			last = r
		}
	}
	if refused > 0 {
		w.log.WarnContext(ctx, "samples refused by the remote write server", "refused", refused, "accepted", sent,
			"status", last.status, "reason", last.reason)
	}
	if sent+refused > 0 {
		w.hopeless.Store(sent == 0)
	}
	return nil
}

// A result is a final answer of the server.
type result struct {
	accepted bool
	status   int
	reason   string
}

// post sends one request, again and again until the server gives a final answer. It
// fails only when ctx ends.
func (w *Writer) post(ctx context.Context, body []byte) (result, error) {
	tries := w.tries()
	for {
		r, wait, err := w.try(ctx, body)
		if err == nil {
			return r, nil
		}
		if ctx.Err() != nil {
			return result{}, ctx.Err()
		}
		wait = max(wait, tries.Next())
		w.metrics.retries.Inc()
		w.log.WarnContext(ctx, "remote write failed, trying again", "err", err, "wait", wait)
		_ = retry.Sleep(ctx, wait) // the next try fails where ctx has ended
	}
}

// try sends one request. On an error the request is to be sent again, after wait at
// the least, which the server may have asked for.
func (w *Writer) try(ctx context.Context, body []byte) (r result, wait time.Duration, err error) {
	req, err := w.request(ctx, body)
	if err != nil {
		return result{}, 0, err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return result{}, 0, fmt.Errorf("send samples: %w", err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) // the answer stands without its text
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	r = result{accepted: resp.StatusCode/100 == 2, status: resp.StatusCode, reason: strings.TrimSpace(string(text))}
	if to := resp.Header.Get("Location"); to != "" && resp.StatusCode/100 == 3 {
		r.reason = fmt.Sprintf("it redirects to %s: set remoteWrite.url to the address that accepts samples", to)
	}
	if !r.accepted && retryable(resp.StatusCode) {
		return result{}, retryAfter(resp.Header.Get("Retry-After"), time.Now()), fmt.Errorf("send samples: %s: %s", resp.Status, r.reason)
	}
	return r, 0, nil
}

func (w *Writer) request(ctx context.Context, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.opts.URL, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for k, v := range w.opts.Headers {
		req.Header.Set(k, v)
	}
	if w.opts.CredentialFile != "" {
		credential, err := os.ReadFile(w.opts.CredentialFile)
		if err != nil {
			return nil, fmt.Errorf("read credential: %w", err)
		}
		req.Header.Set("Authorization", strings.TrimSpace(string(credential)))
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "snappy")
	req.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	req.Header.Set("User-Agent", "colony")
	return req, nil
}

// retryable reports whether a request may succeed later as it is. Beyond what the
// protocol says (429 and 5xx), that is so where the address or the credential is
// wrong: while it is being corrected nothing is lost.
func retryable(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusProxyAuthRequired, http.StatusRequestTimeout:
		return true
	}
	return status/100 != 4
}

// retryAfter reads the header of that name (RFC 9110, section 10.2.3).
func retryAfter(value string, now time.Time) time.Duration {
	var wait time.Duration
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if t, err := http.ParseTime(value); err == nil {
		wait = t.Sub(now)
	}
	return min(max(wait, 0), maxRetryAfter)
}

// tries returns the waits between the tries of one thing.
func (w *Writer) tries() *retry.Backoff {
	return &retry.Backoff{Policy: retry.Policy{Min: w.opts.MinRetry, Max: w.opts.MaxRetry, Jitter: 0.5}}
}
