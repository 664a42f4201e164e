package desired

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
)

// A Source brings desired states until ctx ends. It calls offer with each
// encoded SiteDesired, again while offer says that it is worth it, and stops
// doing so when a newer one is there.
type Source interface {
	// Run runs until ctx ends, and calls offer with each message.
	Run(ctx context.Context, offer func(ctx context.Context, payload []byte) error) error
}

const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// MQTT is the Source of what arrives on the site's topic. It holds the latest
// message only: the topic is retained, so an earlier one is of no use.
type MQTT struct {
	latest chan []byte   // holds one payload
	retry  notify.Signal // what was away may be back
	log    *slog.Logger

	mu      sync.Mutex // protects what follows
	offered []byte
	giveUp  context.CancelFunc // of the offer at work; nil: none is
}

// NewMQTT returns a source that nothing has arrived at yet.
func NewMQTT(log *slog.Logger) *MQTT {
	return &MQTT{latest: make(chan []byte, 1), retry: notify.New(), log: log}
}

// Put hands in an arrived message. Put never waits: it replaces a message that was not looked at
// yet. It cancels a running offer of an earlier message, which may be fetching a superseded state
// for hours. It is called by one goroutine at a time.
func (s *MQTT) Put(payload []byte) {
	select {
	case <-s.latest:
	default:
	}
	s.latest <- payload
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.giveUp != nil && !bytes.Equal(payload, s.offered) {
		s.giveUp()
	}
}

// attempt offers a message, until a newer one is there: superseded is true then.
func (s *MQTT) attempt(ctx context.Context, payload []byte, offer func(ctx context.Context, payload []byte) error) (superseded bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.offered, s.giveUp = payload, cancel
	s.mu.Unlock()
	err = offer(ctx, payload)
	s.mu.Lock()
	s.giveUp = nil
	s.mu.Unlock()
	return ctx.Err() != nil, err
}

// Retry ends the wait before the next try, because what was away may be back. It
// never waits.
func (s *MQTT) Retry() {
	s.retry.Notify()
}

// Run offers the latest message, with growing waits while that fails for a
// passing reason.
func (s *MQTT) Run(ctx context.Context, offer func(ctx context.Context, payload []byte) error) error {
	var payload []byte
	open := false // payload is not adopted yet
	tries := retry.Backoff{Policy: retry.Policy{Min: firstRetry, Max: lastRetry}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop(timer)
	for {
		select {
		case <-ctx.Done():
			return nil
		case payload = <-s.latest:
			tries.Reset()
			stop(timer)
		case <-s.retry.C():
			if !open {
				continue
			}
			tries.Reset()
			stop(timer)
		case <-timer.C:
		}
		superseded, err := s.attempt(ctx, payload, offer)
		open = err != nil && !superseded
		if !open {
			continue
		}
		wait := tries.Next()
		s.log.WarnContext(ctx, "desired state could not be adopted yet", "retry_in", wait.String(), "err", err)
		timer.Reset(wait)
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
