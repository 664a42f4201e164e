package accessdb

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// TestMostGroups makes as many groups as there may be, the last ones at once: one more is refused, and what is there can be changed.
func TestMostGroups(t *testing.T) {
	t.Parallel()
	pool, err := db.Open(t.Context(), pgtest.New(t), db.Options{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := New(pool)
	if _, err := pool.Exec(t.Context(), `insert into site_groups (name, sites) select 'g' || i, '{depot}' from generate_series(1, $1::int) i`, mostGroups-2); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	errs := make(chan error, 4)
	for i := range cap(errs) {
		all.Go(func() {
			_, err := s.PutSiteGroup(t.Context(), access.SiteGroup{Name: fmt.Sprint("late-", i), Sites: []string{"quay"}})
			errs <- err
		})
	}
	all.Wait()
	close(errs)
	made := 0
	for err := range errs {
		if err == nil {
			made++
		} else if protocol.KindOf(err) != protocol.Conflict {
			t.Error(err)
		}
	}
	list, err := s.SiteGroups(t.Context())
	if err != nil || made != 2 || len(list) != mostGroups {
		t.Errorf("%d groups were made and there are %d, want 2 and %d: %v", made, len(list), mostGroups, err)
	}
	before, err := s.PutSiteGroup(t.Context(), access.SiteGroup{Name: "g1", Sites: []string{"plant-*"}})
	if err != nil || !slices.Equal(before, []string{"depot"}) {
		t.Errorf("%v %v", before, err)
	}
	if _, err := s.RemoveSiteGroup(t.Context(), "none"); protocol.KindOf(err) != protocol.NotFound {
		t.Error(err)
	}
	if before, err := s.RemoveSiteGroup(t.Context(), "g1"); err != nil || !slices.Equal(before, []string{"plant-*"}) {
		t.Errorf("%v %v", before, err)
	}
}
