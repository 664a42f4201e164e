package feed_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/colonyfleet/colony/co/api/feed"
	"github.com/colonyfleet/colony/co/fleet"
)

// unread is a store that must not be called.
type unread struct{ t *testing.T }

func (u unread) Feed(_ context.Context, f fleet.EventFilter) ([]fleet.Event, error) {
	u.t.Errorf("events after %d are read, and nobody follows", f.After)
	return nil, nil
}

// TestNobodyFollows has events come while there is no stream.
func TestNobodyFollows(t *testing.T) {
	t.Parallel()
	changed := make(chan int64)
	f := feed.New(unread{t}, slog.New(slog.DiscardHandler))
	go f.Run(t.Context(), changed)
	for id := range int64(3) {
		changed <- 10 * (id + 1)
	}
	close(changed)
	<-f.Over()
}
