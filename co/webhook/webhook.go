// Package webhook posts events to addresses that the configuration names, as chats and tickets take them, by the rules of
// Standard Webhooks 1.0. It follows the events with a position of its own in the database: what was not accepted is posted
// again, after a restart too, so that each event arrives at least once, in order.
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol/siteset"
)

const (
	// page bounds the events of one post.
	page = 100
	// interval is how often the record is asked for new events.
	interval = 2 * time.Second
	// minRetry and maxRetry bound the wait after a post that was not accepted.
	minRetry    = time.Second
	maxRetry    = time.Minute
	retryJitter = 0.5
	// maxRetryAfter bounds how long a receiver may have the CO wait.
	maxRetryAfter = 5 * time.Minute
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = 4 << 10
)

// Events are the CO's record of events.
type Events interface {
	Events(ctx context.Context, f fleet.EventFilter) ([]fleet.Event, error)
	// FirstEvent and LastEvent return the ids of the oldest and of the newest event there is; 0: there is none.
	FirstEvent(ctx context.Context) (int64, error)
	LastEvent(ctx context.Context) (int64, error)
}

// Positions are how far the CO has come with each webhook.
type Positions interface {
	// Position returns the id of the last event that is done for a webhook; known is false where none is recorded.
	Position(ctx context.Context, name string) (id int64, known bool, err error)
	// SavePosition records it.
	SavePosition(ctx context.Context, name string, id int64) error
}

// Options are what webhooks work with. All are required but Retry.
type Options struct {
	Hooks     []Hook
	Events    Events
	Positions Positions
	// Lock waits until no other replica posts for a hook. The context that it returns ends when the lock is
	// lost.
	Lock       func(ctx context.Context, hook string) (held context.Context, release func(), err error)
	Retry      retry.Policy // between posts that are not accepted; default: 1 s to 1 min
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// A Message is the body of a post.
type Message struct {
	Hook   string        `json:"hook"`   // its name in the configuration
	Events []fleet.Event `json:"events"` // in their order
	// Missed is how many events, of all kinds, the CO no longer keeps that came before these, and were not posted.
	Missed int64 `json:"missed,omitempty"`
}

// A Poster posts the events of one hook.
type Poster struct {
	hook   Hook
	within siteset.Set
	o      Options
	log    *slog.Logger
	client *http.Client
	posts  *prometheus.CounterVec
	last   *prometheus.GaugeVec // by hook, once it has begun
}

// New returns the posters of valid hooks.
func New(o Options) ([]*Poster, error) {
	posts := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "colony_co_webhook_posts_total", Help: "Posts of events, by webhook and outcome: accepted or failed."}, []string{"hook", "outcome"})
	done := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "colony_co_webhook_position", Help: "Id of the last event that is done for a webhook, of the replica that posts for it."}, []string{"hook"})
	o.Registerer.MustRegister(posts, done)
	if o.Retry == (retry.Policy{}) {
		o.Retry = retry.Policy{Min: minRetry, Max: maxRetry, Jitter: retryJitter}
	}
	var out []*Poster
	for _, h := range o.Hooks {
		within, err := siteset.Parse(h.Sites)
		if err != nil {
			return nil, err
		}
		if h.Timeout == 0 {
			h.Timeout = defaultTimeout
		}
		out = append(out, &Poster{
			hook: h, within: within, o: o, log: o.Logger.With("component", "webhook", "hook", h.Name), posts: posts, last: done,
			// A redirection is not followed: it would take a post, and its signature, to another address.
			client: &http.Client{Timeout: h.Timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		})
	}
	return out, nil
}

// Name is that of the hook.
func (p *Poster) Name() string { return p.hook.Name }

// Run posts until ctx ends.
func (p *Poster) Run(ctx context.Context) {
	defer p.client.CloseIdleConnections()
	tries := &retry.Backoff{Policy: p.o.Retry}
	for ctx.Err() == nil {
		held, release, err := p.o.Lock(ctx, p.hook.Name)
		if err == nil {
			p.session(held)
			release()
			continue
		}
		p.log.WarnContext(ctx, "webhook waits for its lock", "err", err)
		_ = tries.Wait(ctx) // its end ends the loop, too
	}
}

// session posts while ctx lasts.
func (p *Poster) session(ctx context.Context) {
	tries := &retry.Backoff{Policy: p.o.Retry}
	for ctx.Err() == nil {
		more, err := p.next(ctx)
		switch wait, asked := errors.AsType[*later](err); {
		case ctx.Err() != nil:
		case err == nil && more:
			tries.Reset()
		case err == nil:
			tries.Reset()
			_ = retry.Sleep(ctx, interval)
		default:
			p.log.WarnContext(ctx, "events not posted, trying again", "err", err)
			if asked && wait.after > 0 {
				_ = retry.Sleep(ctx, wait.after)
				continue
			}
			_ = tries.Wait(ctx)
		}
	}
}

// next posts the next events, and reports whether there may be more.
func (p *Poster) next(ctx context.Context) (more bool, err error) {
	newest, err := p.o.Events.LastEvent(ctx)
	if err != nil {
		return false, err
	}
	at, known, err := p.o.Positions.Position(ctx, p.hook.Name)
	if err != nil {
		return false, err
	}
	if !known || at > newest { // it is new, or of a record that was lost
		return false, p.save(ctx, newest)
	}
	if at == newest {
		return false, nil
	}
	oldest, err := p.o.Events.FirstEvent(ctx)
	if err != nil {
		return false, err
	}
	list, err := p.o.Events.Events(ctx, fleet.EventFilter{After: at, Kinds: p.hook.Kinds, Within: p.within, Limit: page})
	if err != nil {
		return false, err
	}
	m := Message{Hook: p.hook.Name, Events: append([]fleet.Event{}, list...), Missed: max(0, oldest-1-at)}
	if len(list) == 0 && m.Missed == 0 {
		return false, p.save(ctx, newest)
	}
	if err := p.post(ctx, m, at); err != nil {
		p.posts.WithLabelValues(p.hook.Name, "failed").Inc()
		return false, err
	}
	p.posts.WithLabelValues(p.hook.Name, "accepted").Inc()
	if len(list) == page {
		return true, p.save(ctx, list[page-1].ID)
	}
	if len(list) > 0 { // one may have come since the newest was asked for
		newest = max(newest, list[len(list)-1].ID)
	}
	return false, p.save(ctx, newest)
}

func (p *Poster) save(ctx context.Context, id int64) error {
	if err := p.o.Positions.SavePosition(ctx, p.hook.Name, id); err != nil {
		return err
	}
	p.last.WithLabelValues(p.hook.Name).Set(float64(id))
	return nil
}

// later is an answer that asks for another try.
type later struct {
	after time.Duration // 0: whenever
	err   error
}

func (l *later) Error() string { return l.err.Error() }

// post posts a message; at names it, together with the hook, as it is the same in each try.
func (p *Poster) post(ctx context.Context, m Message, at int64) error {
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode events: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.hook.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("post events: %w", err)
	}
	id, timestamp := fmt.Sprintf("%s-%d", p.hook.Name, at), strconv.FormatInt(time.Now().Unix(), 10)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Webhook-Id", id)
	r.Header.Set("Webhook-Timestamp", timestamp)
	if p.hook.SecretFile != "" {
		keys, err := secrets(p.hook.SecretFile)
		if err != nil {
			return err
		}
		r.Header.Set("Webhook-Signature", signatures(keys, id, timestamp, body))
	}
	resp, err := p.client.Do(r)
	if err != nil {
		return fmt.Errorf("post events: %w", err)
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // for the log alone
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return nil
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // a date counts as none
	return &later{min(max(0, time.Duration(seconds)*time.Second), maxRetryAfter), fmt.Errorf("post events: the receiver answers %s: %.200q", resp.Status, said)}
}
