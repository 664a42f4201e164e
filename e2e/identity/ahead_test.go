package identity

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/memnet"
	"github.com/colonyfleet/colony/protocol"
)

// TestCOAhead has the clock of the CO ten years ahead for a while, and back: the LO, by whatever clock, belongs to the CO
// while it is ahead and after, and so do nodes to the LO, by whatever clock. No certificate is valid for longer
// than its life then.
func TestCOAhead(t *testing.T) {
	t.Parallel()
	for i, lo := range kinds()[:4] {
		for _, ahead := range [][]time.Duration{{13 * time.Second, 40 * day}, {13 * time.Second}, {3 * time.Hour}, {40 * day}}[i] {
			t.Run(lo.name+" for "+ahead.String(), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				synctest.Test(t, func(t *testing.T) { goAhead(t, dir, lo, ahead) })
			})
		}
	}
}

// looked is when the CO has seen that its clock has jumped, at which moment it looks: until then its own certificate may be that of
// before, by which no LO finds anything.
const looked = 11 * time.Second

func goAhead(t *testing.T, dir string, lo kind, ahead time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	y := &year{
		t: t, net: memnet.New(1), begin: time.Now(), dir: dir, token: filepath.Join(dir, "token"), los: map[string]bool{}, known: map[protocol.NodeID][]byte{},
	}
	const step = 30 * day
	off := between(step, step+ahead)
	y.startCO(ctx, func() time.Time {
		now := time.Now()
		if off(now.Sub(y.begin)) {
			now = now.Add(years)
		}
		return now
	})
	defer y.startLO(ctx, "lo1", func() time.Time { return lo.clock(y.begin, time.Since(y.begin)) })()
	time.Sleep(time.Minute)
	var wg sync.WaitGroup
	for i, k := range kinds()[:6] {
		name, server := identity.OfNode("plant1", protocol.NodeID(fmt.Sprintf("n%d", i))), identity.OfLO("plant1")
		m := y.start(ctx, name, newVault(), "lo1", server, func() time.Time { return k.clock(y.begin, time.Since(y.begin)) })
		wg.Go(func() {
			for time.Since(y.begin) < step+ahead+60*day {
				if err := y.belongs(ctx, m, "lo1", server); err != nil {
					t.Errorf("a node whose clock is %s, on day %d: %v", k.name, time.Since(y.begin)/day, err)
				}
				time.Sleep(7 * time.Hour)
			}
			end, now := m.holder.Credential().Chain[0].NotAfter, time.Now()
			if end.After(now.Add(2 * identity.LeafLife)) {
				t.Errorf("a node whose clock is %s has a certificate until %s, at %s", k.name, end, now)
			}
			m.stop()
		})
	}
	wg.Go(func() {
		time.Sleep(step + looked - time.Since(y.begin))
		for time.Since(y.begin) < step+ahead+60*day {
			if err := y.belongs(ctx, y.lo, "co", identity.OfCO()); err != nil {
				t.Errorf("the LO, on day %d: %v", time.Since(y.begin)/day, err)
			}
			differ := off(time.Since(y.begin)) && lo.name != "in 1970" && lo.name != "ten years behind"
			if got := y.lo.holder.Clock().Ahead() > 0; got != differ {
				t.Errorf("the LO finds that the clock of the CO is ahead: %t, on day %d", got, time.Since(y.begin)/day)
			}
			time.Sleep(5 * time.Hour)
		}
	})
	wg.Wait()
	cancel()
	time.Sleep(3 * day) // until the last one that sleeps has seen that
	synctest.Wait()
}
