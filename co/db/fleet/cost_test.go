package fleetdb_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/db/dbtest"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgcost"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A costly is a read with what it may cost.
type costly struct {
	what string
	read func(ctx context.Context, s *fleetdb.Store) (rows int, err error)
	// most is how many pages of 8 KiB it may touch in a fleet of any size, perSite how
	// many more for each site.
	most    int64
	perSite float64
	// rows is how many it must find, at least.
	rows int
}

func not(values ...string) fleet.Choice { return fleet.Choice{Values: values, Not: true} }

func nodes(f fleet.NodeFilter) func(context.Context, *fleetdb.Store) (int, error) {
	return func(ctx context.Context, s *fleetdb.Store) (int, error) {
		list, _, err := s.Nodes(ctx, f, fleet.Page{})
		return len(list), err
	}
}

func deployments(f fleet.DeploymentFilter) func(context.Context, *fleetdb.Store) (int, error) {
	return func(ctx context.Context, s *fleetdb.Store) (int, error) {
		list, _, err := s.Deployments(ctx, f, fleet.Page{})
		return len(list), err
	}
}

func sites(f fleet.SiteFilter) func(context.Context, *fleetdb.Store) (int, error) {
	return func(ctx context.Context, s *fleetdb.Store) (int, error) {
		list, _, err := s.SitesLike(ctx, f, fleet.Page{})
		return len(list), err
	}
}

func events(f fleet.EventFilter) func(context.Context, *fleetdb.Store) (int, error) {
	return func(ctx context.Context, s *fleetdb.Store) (int, error) {
		list, err := s.Events(ctx, f)
		return len(list), err
	}
}

func total[F any](f F, count func(*fleetdb.Store, context.Context, F) (fleet.Total, error)) func(context.Context, *fleetdb.Store) (int, error) {
	return func(ctx context.Context, s *fleetdb.Store) (int, error) {
		n, err := count(s, ctx, f)
		return n.Count, err
	}
}

var offline = false

var some = set("site-0000*", "site-00042")

func set(entries ...string) siteset.Set {
	s, err := siteset.Parse(entries)
	if err != nil {
		panic(err)
	}
	return s
}

// The costs are those of pages of 100. At a site that has nodes which are offline, a list of
// deployments looks up the nodes that hold each, some ten of them here. What is sought for among rows without an index of
// its own may look at a few thousand of them.
var costs = []costly{
	{"sites", sites(fleet.SiteFilter{}), 900, 0, 100},
	{"sites that are offline", sites(fleet.SiteFilter{Online: &offline}), 900, 0, 1},
	{"sites by text", sites(fleet.SiteFilter{Text: "11"}), 900, 1.1, 1},
	{"sites by version", sites(fleet.SiteFilter{Version: not("1.4.0")}), 900, 1.1, 0},
	{"a site", func(ctx context.Context, s *fleetdb.Store) (int, error) {
		_, err := s.Site(ctx, "site-00007") // with its last events
		return 1, err
	}, 45, 0, 1},
	{"nodes", nodes(fleet.NodeFilter{}), 1200, 0, 100},
	{"nodes of a site", nodes(fleet.NodeFilter{Site: "site-00007"}), 1200, 0, 30},
	{"nodes by a label that a third has", nodes(fleet.NodeFilter{Labels: map[string]string{"role": "robot"}}), 1200, 0, 100},
	{"nodes by a label that few have", nodes(fleet.NodeFilter{Labels: map[string]string{"serial": "sn-7-3"}}), 60, 0, 1},
	{"nodes by two labels", nodes(fleet.NodeFilter{Labels: map[string]string{"role": "robot", "zone": "z07"}}), 2500, 0, 10},
	{"nodes that are offline", nodes(fleet.NodeFilter{State: fleet.Only(fleet.NodeOffline)}), 6000, 0, 20},
	{"nodes that are not online", nodes(fleet.NodeFilter{State: not(fleet.NodeOnline)}), 6000, 0, 20},
	{"nodes that are online", nodes(fleet.NodeFilter{State: fleet.Only(fleet.NodeOnline)}), 2500, 0, 100},
	{"nodes with a label that are offline", nodes(fleet.NodeFilter{Labels: map[string]string{"role": "robot"}, State: fleet.Only(fleet.NodeOffline)}), 14000, 0, 5},
	{"nodes with an old agent", nodes(fleet.NodeFilter{Version: fleet.Only("1.3.9")}), 1200, 0, 3},
	{"nodes with another agent", nodes(fleet.NodeFilter{Version: not("1.4.0")}), 6000, 0, 3},
	{"nodes by text", nodes(fleet.NodeFilter{Text: "7/gateway-00"}), 6000, 0, 10},
	{"a node", func(ctx context.Context, s *fleetdb.Store) (int, error) {
		_, err := s.Node(ctx, "site-00007", "gateway-003")
		return 1, err
	}, 30, 0, 1},
	{"deployments", deployments(fleet.DeploymentFilter{}), 6000, 0, 100},
	{"deployments of a site", deployments(fleet.DeploymentFilter{Site: "site-00007"}), 150, 0, 5},
	{"deployments of an application", deployments(fleet.DeploymentFilter{App: fleet.Only(dbtest.App(3))}), 6000, 0, 10},
	{"deployments of other applications", deployments(fleet.DeploymentFilter{App: not(dbtest.App(3))}), 6000, 0, 100},
	{"deployments FAILED", deployments(fleet.DeploymentFilter{State: fleet.Only("FAILED")}), 6000, 0, 5},
	{"deployments not INSTALLED", deployments(fleet.DeploymentFilter{State: not("INSTALLED")}), 6000, 0, 8},
	{"deployments INSTALLED", deployments(fleet.DeploymentFilter{State: fleet.Only("INSTALLED")}), 6000, 0, 100},
	{"deployments of an application in a state", deployments(fleet.DeploymentFilter{App: fleet.Only(dbtest.App(3)), State: fleet.Only("INSTALLED")}), 6000, 0, 5},
	{"deployments in a state that none has", deployments(fleet.DeploymentFilter{State: fleet.Only(string(lifecycle.RollingBack))}), 20, 0, 0},
	{"deployments by version", deployments(fleet.DeploymentFilter{Version: fleet.Only("1.0.0")}), 7000, 0, 20},
	{"deployments by version and state", deployments(fleet.DeploymentFilter{Version: fleet.Only("1.0.0"), State: not("FAILED")}), 9000, 0, 20},
	{"deployments by text", deployments(fleet.DeploymentFilter{Text: "7/DEPLOYMENT-2"}), 7000, 0, 5},
	{"a deployment", func(ctx context.Context, s *fleetdb.Store) (int, error) {
		d, err := s.Deployment(ctx, "site-00007", "deployment-2")
		return len(d.Nodes), err
	}, 150, 0, 5},
	{"history", func(ctx context.Context, s *fleetdb.Store) (int, error) {
		list, err := s.Transitions(ctx, "site-00007", "deployment-0", 0)
		return len(list), err
	}, 200, 0, 1},
	{"summary", func(ctx context.Context, s *fleetdb.Store) (int, error) {
		v, err := s.Summary(ctx, siteset.Set{})
		return v.Nodes, err
	}, 20, 0.2, 1000},
	{"gauges of all sites", func(ctx context.Context, s *fleetdb.Store) (int, error) {
		list, err := s.Gauges(ctx)
		return len(list), err
	}, 60, 3, 100},
	{"total of deployments", total(fleet.DeploymentFilter{State: not("INSTALLED")}, (*fleetdb.Store).CountDeployments), 20, 0.2, 8},
	{"total of deployments of an application", total(fleet.DeploymentFilter{App: fleet.Only(dbtest.App(3))}, (*fleetdb.Store).CountDeployments), 11000, 0, 10},
	{"total of deployments by text", total(fleet.DeploymentFilter{Text: "7/"}, (*fleetdb.Store).CountDeployments), 21000, 0, 10},
	{"total of nodes", total(fleet.NodeFilter{State: fleet.Only(fleet.NodeOffline)}, (*fleetdb.Store).CountNodes), 20, 0.2, 20},
	{"total of nodes by label", total(fleet.NodeFilter{Labels: map[string]string{"role": "robot"}}, (*fleetdb.Store).CountNodes), 11000, 0, 100},
	{"total of nodes by label that are offline", total(fleet.NodeFilter{Labels: map[string]string{"role": "robot"}, State: fleet.Only(fleet.NodeOffline)}, (*fleetdb.Store).CountNodes), 45000, 0, 5},
	{"total of sites", total(fleet.SiteFilter{}, (*fleetdb.Store).CountSites), 20, 1.1, 100},
	{"events, the newest", events(fleet.EventFilter{Newest: true}), 120, 0, 100},
	{"events after an id", events(fleet.EventFilter{After: 400}), 120, 0, 100},
	{"events of a site", events(fleet.EventFilter{Newest: true, Site: "site-00007"}), 200, 0, 5},
	{"events of a node", events(fleet.EventFilter{Newest: true, Site: "site-00006", Node: "gateway-006"}), 200, 0, 1},
	{"events of a deployment", events(fleet.EventFilter{Newest: true, Site: "site-00006", Deployment: "deployment-0"}), 200, 0, 1},
	{"events of a rare kind", events(fleet.EventFilter{Newest: true, Kinds: []string{"anomaly"}}), 120, 0, 1},
	{"events of a rare kind, the first", events(fleet.EventFilter{Kinds: []string{"anomaly"}}), 120, 0, 1},
	// Eleven sites. How their names begin is compared with all names.
	{"sites, of some", sites(fleet.SiteFilter{Within: some}), 200, 0.2, 11},
	{"nodes of some sites", nodes(fleet.NodeFilter{Within: some}), 1200, 0.2, 100},
	{"nodes of some sites that are offline", nodes(fleet.NodeFilter{Within: some, State: fleet.Only(fleet.NodeOffline)}), 1200, 0.2, 1},
	{"nodes of some sites by a label", nodes(fleet.NodeFilter{Within: some, Labels: map[string]string{"role": "robot"}}), 1500, 0.2, 1},
	{"deployments of some sites", deployments(fleet.DeploymentFilter{Within: some}), 6000, 0.2, 50},
	{"deployments of some sites in a state", deployments(fleet.DeploymentFilter{Within: some, State: fleet.Only("INSTALLED")}), 6000, 0.2, 1},
	{"summary of some sites", func(ctx context.Context, s *fleetdb.Store) (int, error) {
		v, err := s.Summary(ctx, some)
		return v.Nodes, err
	}, 60, 0.4, 100},
	{"events of some sites", events(fleet.EventFilter{Newest: true, Within: some}), 1500, 0.2, 10},
	{"events of some sites of two kinds", events(fleet.EventFilter{Newest: true, Within: some, Kinds: []string{"anomaly", "site_added"}}), 1500, 0.2, 0},
	{"events of two kinds, one of which there is not", events(fleet.EventFilter{Newest: true, Kinds: []string{"anomaly", "site_added"}}), 240, 0, 1},
}

// TestReadsCostWhatTheyShow holds each read to a number of pages, in a fleet and in one
// of eight times its size: a plan that reads the fleet fails, whatever the machine does.
func TestReadsCostWhatTheyShow(t *testing.T) {
	t.Parallel()
	small := dbtest.Size{Sites: 120, Nodes: 50, Deployments: 5, Events: 8000}
	before := measureCosts(t, small)
	after := measureCosts(t, small.Scale(8))
	for _, c := range costs {
		for size, got := range map[int]cost{small.Sites: before[c.what], small.Scale(8).Sites: after[c.what]} {
			if most := c.most + int64(c.perSite*float64(size)); got.buffers > most {
				t.Errorf("%s in a fleet of %d sites: %d pages, want %d at most\n%s", c.what, size, got.buffers, most, got.plan)
			}
			if got.rows < c.rows {
				t.Errorf("%s in a fleet of %d sites: %d rows, want %d at least", c.what, size, got.rows, c.rows)
			}
		}
		t.Logf("%-50s %5d rows, %5d pages; %5d rows, %5d pages", c.what, before[c.what].rows, before[c.what].buffers, after[c.what].rows, after[c.what].buffers)
	}
}

// TestEventsOfQuietSitesCostNoHistory lists events of many sites that have one each, beside others with a long history:
// what is read depends on the sites, and not on that.
func TestEventsOfQuietSitesCostNoHistory(t *testing.T) {
	t.Parallel()
	const quiet = 100
	m := opened(t, dbtest.Size{Sites: 120, Nodes: 2, Deployments: 1, Events: 240_000})
	for _, sql := range []string{
		`insert into sites (id) select 'quiet-' || i from generate_series(1, 100) i`,
		`update events set site = 'quiet-' || id, node = '', deployment = '' where id <= 100`,
		`vacuum analyze`,
	} {
		if _, err := m.conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, newest := range []bool{true, false} {
		first := int64(1)
		if newest {
			first = quiet - 49
		}
		f := fleet.EventFilter{Newest: newest, Limit: 50, Within: set("quiet-*")}
		got := m.cost(t, func(ctx context.Context, s *fleetdb.Store) (int, error) {
			list, err := s.Events(ctx, f)
			if err == nil && (len(list) != 50 || list[0].ID != first || list[49].ID != first+49) {
				t.Errorf("newest %t: %d events, want those from %d on", newest, len(list), first)
			}
			return len(list), err
		})
		if got.buffers > 3000 {
			t.Errorf("newest %t: %d pages, want 3000 at most\n%s", newest, got.buffers, got.plan)
		}
		t.Logf("newest %t: %d pages", newest, got.buffers)
	}
}

// A cost is that of a read.
type cost struct {
	rows    int
	buffers int64
	plan    string
}

// A measured is a database of a size, whose reads are measured.
type measured struct {
	store    *fleetdb.Store
	conn     *pgx.Conn
	recorder *pgcost.Recorder
}

func opened(t *testing.T, size dbtest.Size) measured {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	url := pgtest.New(t)
	recorder := &pgcost.Recorder{}
	pool, err := db.Open(ctx, url, db.Options{Tracer: recorder})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if err := dbtest.Seed(ctx, conn, size); err != nil {
		t.Fatal(err)
	}
	return measured{fleetdb.New(pool), conn, recorder}
}

func (m measured) cost(t *testing.T, read func(ctx context.Context, s *fleetdb.Store) (rows int, err error)) cost {
	t.Helper()
	m.recorder.Take()
	rows, err := read(t.Context(), m.store)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgcost.Of(t.Context(), m.conn, m.recorder.Take())
	if err != nil {
		t.Fatal(err)
	}
	return cost{rows, got.Buffers, got.Plan}
}

func measureCosts(t *testing.T, size dbtest.Size) map[string]cost {
	t.Helper()
	m := opened(t, size)
	out := map[string]cost{}
	for _, c := range costs {
		out[c.what] = m.cost(t, c.read)
	}
	return out
}
