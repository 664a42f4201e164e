package identity_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
	loidentity "github.com/colonyfleet/colony/lo/identity"
	"github.com/colonyfleet/colony/protocol"
)

// TestClocks reports that the clocks of site and CO differ once, and once when that is over.
func TestClocks(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	root := identitytest.Root(t, begin)
	clock := identity.NewClock(func() time.Time { return begin }, identity.Floor{}, nil)
	var got []int64
	c := loidentity.NewClocks(clock, func(_ context.Context, kind protocol.EventKind, _ string, message any) error {
		got = append(got, message.(*protocol.ClocksReport).AheadMillis)
		if kind != protocol.ClocksDiffer {
			t.Errorf("reported %s", kind)
		}
		return nil
	}, slog.New(slog.DiscardHandler))
	const day = 24 * time.Hour
	for _, ahead := range []time.Duration{0, 400 * day, 800 * day, 0, 0, 100 * day} {
		leaf := identitytest.Issue(t, root, root, identity.OfCO(), begin.Add(ahead)).Chain[0]
		if err := clock.Raise(leaf, root.Root()); err != nil {
			t.Fatal(err)
		}
		c.Compare(t.Context())
	}
	days := func(ms int64) int64 { return (ms + 12*3_600_000) / (24 * 3_600_000) }
	if len(got) != 3 || !slices.Equal([]int64{days(got[0]), days(got[1]), days(got[2])}, []int64{400, 0, 100}) {
		t.Errorf("reported %v, want once 400 days, once that it is over, and 100 days", got)
	}
}
