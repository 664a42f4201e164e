package desired

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Source brings desired states until ctx ends. It calls offer with each
// encoded SiteDesired, again while offer says that it is worth it, and stops
// doing so when a newer one is there.
type Source interface {
	Run(ctx context.Context, offer func(ctx context.Context, payload []byte) error) error
}

const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// MQTT is the Source of what arrives on the site's topic. It holds the latest
// message only: the topic is retained, so an earlier one is of no use.
type MQTT struct {
	latest chan []byte // of one place
	log    *slog.Logger
}

// NewMQTT returns a source that nothing has arrived at yet.
func NewMQTT(log *slog.Logger) *MQTT {
	return &MQTT{latest: make(chan []byte, 1), log: log}
}

// Put hands in an arrived message. It never waits: what it replaces was not
// looked at and is superseded. It is called by one goroutine at a time.
func (s *MQTT) Put(payload []byte) {
	select {
	case <-s.latest:
	default:
	}
	s.latest <- payload
}

// Run offers the latest message, with growing waits while that fails for a
// passing reason.
func (s *MQTT) Run(ctx context.Context, offer func(ctx context.Context, payload []byte) error) error {
	var payload []byte
	wait := firstRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop(timer)
	for {
		select {
		case <-ctx.Done():
			return nil
		case payload = <-s.latest:
			wait = firstRetry
			stop(timer)
		case <-timer.C:
		}
		err := offer(ctx, payload)
		if err == nil || ctx.Err() != nil {
			continue
		}
		s.log.WarnContext(ctx, "desired state could not be adopted yet", "retry_in", wait.String(), "err", err)
		timer.Reset(wait)
		wait = min(2*wait, lastRetry)
	}
}

func stop(t *time.Timer) {
	if !t.Stop() {
		select {
		case <-t.C:
		default:
		}
	}
}

// HTTP returns a Fetch that gets specs from base + digest. Digest and size are
// checked by the Store; HTTP bounds what it reads by the size that was announced.
func HTTP(client *http.Client, base *url.URL) Fetch {
	return func(ctx context.Context, digest protocol.Digest, size uint64) ([]byte, error) {
		if size > protocol.MaxMessage {
			return nil, protocol.Errorf(protocol.Invalid, "spec %s has %d bytes: the limit is %d", digest.Short(), size, protocol.MaxMessage)
		}
		target := base.JoinPath(string(digest)).String()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
		if err != nil {
			return nil, fmt.Errorf("make request: %w", err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, protocol.Errorf(protocol.Unavailable, "get %s: %w", target, err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return nil, protocol.Errorf(protocol.Unavailable, "get %s: the central orchestrator answered %s", target, resp.Status)
		}
		b, err := io.ReadAll(io.LimitReader(resp.Body, int64(size)+1))
		if err != nil {
			return nil, protocol.Errorf(protocol.Unavailable, "get %s: %w", target, err)
		}
		if uint64(len(b)) != size {
			return nil, protocol.Errorf(protocol.Unavailable, "get %s: got %d bytes, %d were announced", target, len(b), size)
		}
		return b, nil
	}
}
