package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/data/live"
	"github.com/colonyfleet/colony/co/db"
	datadb "github.com/colonyfleet/colony/co/db/data"
	"github.com/colonyfleet/colony/co/db/dbtest"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	proposaldb "github.com/colonyfleet/colony/co/db/fleet/proposals"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgcost"
	"github.com/colonyfleet/colony/protocol"
)

// A read is a request of the API.
type read struct {
	what string
	path func(i int) string // of its i-th repetition
}

func same(path string) func(int) string { return func(int) string { return path } }

// of asks for another site each time.
func of(sites int, format string) func(int) string {
	return func(i int) string { return fmt.Sprintf(format, dbtest.Site(i*7919%sites)) }
}

func reads(f dbtest.Size) []read {
	return []read{
		{"status", same("/status")},
		{"applications", same("/apps")},
		{"an application's version", same("/apps/" + dbtest.App(3) + "/versions/1.1.0")},
		{"sites", same("/sites")},
		{"sites, the second page of 1,000", same("/sites?limit=1000")},
		{"sites that are offline", same("/sites?online=false")},
		{"a site", of(f.Sites, "/sites/%s")},
		{"a site's link", of(f.Sites, "/sites/%s/link")},
		{"a site's data rules", of(f.Sites, "/sites/%s/data-rules")},
		{"a site's stored data", of(f.Sites, "/sites/%s/data")},
		{"nodes", same("/nodes")},
		{"nodes, the second page of 1,000", same("/nodes?limit=1000")},
		{"nodes of a site", of(f.Sites, "/nodes?site=%s")},
		{"nodes by label, a third of all", same("/nodes?label=role=robot")},
		{"nodes by label, one of a hundred", same("/nodes?label=zone=z42")},
		{"nodes by label, one", same("/nodes?label=serial=sn-7-3")},
		{"nodes by two labels", same("/nodes?label=role=robot,zone=z42")},
		{"nodes that are offline", same("/nodes?state=offline")},
		{"nodes with an old agent", same("/nodes?version=!1.4.0")},
		{"nodes by text", same("/nodes?q=-77")},
		{"a node", of(f.Sites, "/nodes/%s/"+dbtest.Node(5))},
		{"deployments", same("/deployments")},
		{"deployments, the second page of 1,000", same("/deployments?limit=1000")},
		{"deployments of a site", of(f.Sites, "/deployments?site=%s")},
		{"deployments of an application", same("/deployments?app=" + dbtest.App(3))},
		{"deployments FAILED", same("/deployments?state=FAILED")},
		{"deployments not INSTALLED", same("/deployments?state=!INSTALLED")},
		{"deployments PENDING of an application", same("/deployments?state=PENDING&app=" + dbtest.App(3))},
		{"deployments ROLLINGBACK: none", same("/deployments?state=ROLLINGBACK")},
		{"deployments by version", same("/deployments?version=1.0.0")},
		{"deployments by text", same("/deployments?q=77%2Fdeployment-2")},
		{"deployments FAILED with their total", same("/deployments?state=FAILED&total=true")},
		{"deployments with their total", same("/deployments?total=true")},
		{"nodes with their total", same("/nodes?total=true")},
		{"a deployment", of(f.Sites, "/deployments/%s/"+dbtest.Deployment(2))},
		{"a deployment's history", of(f.Sites, "/deployments/%s/"+dbtest.Deployment(2)+"/history")},
		{"events, the newest", same("/events?newest=true")},
		{"events after an id", same(fmt.Sprintf("/events?after=%d", f.Events/2))},
		{"events of a site", of(f.Sites, "/events?newest=true&site=%s")},
		{"events of a node", of(f.Sites, "/events?newest=true&site=%s&node="+dbtest.Node(5))},
		{"events of a deployment", of(f.Sites, "/events?newest=true&site=%s&deployment="+dbtest.Deployment(2))},
		{"events of a rare kind", same("/events?newest=true&kind=anomaly")},
		{"events of a kind that there is not", same("/events?newest=true&kind=site_added")},
	}
}

// A measured is what a read took.
type measured struct {
	read
	rows     int
	buffers  int64
	p50, p99 time.Duration
	refused  string // the answer, where the API does not know the request
}

// slowRead bounds one read, and about the repetitions of one.
const slowRead = 20 * time.Second

func measureReads(ctx context.Context, s *server, l load) ([]measured, error) {
	recorder := &pgcost.Recorder{}
	d, err := db.Open(ctx, s.url(), db.Options{Tracer: recorder})
	if err != nil {
		return nil, err
	}
	defer d.Close()
	conn, err := pgx.Connect(ctx, s.url())
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rd := reader{newAPI(d), recorder, conn, l.repeats}
	var list []measured
	for _, r := range reads(l.fleet) {
		m, err := rd.measure(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.what, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %d buffers, %s ms %s\n", m.what, m.buffers, millis(m.p99), m.refused)
		list = append(list, m)
	}
	return list, nil
}

// A reader sends the reads of one database.
type reader struct {
	api      http.Handler
	recorder *pgcost.Recorder
	conn     *pgx.Conn // for the plans
	repeats  int
}

func (rd reader) measure(ctx context.Context, r read) (measured, error) {
	m := measured{read: r}
	cursor := ""
	if strings.Contains(r.what, "second page") {
		cursor = "&cursor=" + rd.get(ctx, r.path(0)).next
	}
	rd.recorder.Take()
	answer := rd.get(ctx, r.path(0)+cursor)
	queries := rd.recorder.Take()
	if answer.status != http.StatusOK {
		m.refused = fmt.Sprint(answer.status)
		return m, nil
	}
	m.rows = answer.rows
	cost, err := pgcost.Of(ctx, rd.conn, queries)
	if err != nil {
		return m, err
	}
	m.buffers = cost.Buffers
	var times []time.Duration
	began := time.Now()
	for i := 0; i < rd.repeats && time.Since(began) < slowRead; i++ {
		start := time.Now()
		rd.get(ctx, r.path(i)+cursor)
		times = append(times, time.Since(start))
	}
	rd.recorder.Take()
	sorted(times)
	m.p50, m.p99 = percentile(times, 0.5), percentile(times, 0.99)
	return m, ctx.Err()
}

// An answer is what is read of one.
type answer struct {
	status, rows int
	next         string
}

func (rd reader) get(ctx context.Context, path string) answer {
	ctx, cancel := context.WithTimeout(ctx, slowRead)
	defer cancel()
	w := httptest.NewRecorder()
	rd.api.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1"+path, nil))
	var body struct {
		Items    []json.RawMessage
		Messages []json.RawMessage
		Next     string
	}
	a := answer{status: w.Code, rows: 1}
	if json.Unmarshal(w.Body.Bytes(), &body) == nil && (body.Items != nil || body.Messages != nil) {
		a.rows, a.next = len(body.Items)+len(body.Messages), body.Next
	}
	return a
}

// newAPI is the API of a CO without a deployments repo and a broker.
func newAPI(d *db.DB) *api.API {
	store, hub := fleetdb.New(d), &live.Hub{}
	return api.New(api.Options{
		Apps: store, Fleet: store, Deployments: store, Counts: store, Events: store, Rules: store, Data: datadb.New(d), Repo: noRepo{}, Proposals: proposaldb.New(d),
		Ready: func(context.Context) map[string]error { return nil }, Version: "bench",
		Sites: api.SiteActions{Ask: func(context.Context, protocol.SiteID) error { return nil }},
		Watch: func(site protocol.SiteID, limit int, want func(fleet.Delivery) bool) sitedata.Watch {
			return hub.Subscribe(site, limit, want)
		},
	})
}

// noRepo is a deployments repo without files.
type noRepo struct{ api.Repo }

func (noRepo) File(context.Context, string) ([]byte, string, error) {
	return nil, "", protocol.Errorf(protocol.NotFound, "no such file")
}

func (noRepo) Revisions(context.Context, string) ([]fleet.Revision, error) { return nil, nil }

// writeReads writes the table; small are the same reads of a tenth of the fleet.
func writeReads(out io.Writer, f dbtest.Size, large, small []measured) {
	if len(large) == 0 {
		return
	}
	fmt.Fprintf(out, "\n### Reads: %d sites, %d nodes, %d deployments, %d events\n\n", f.Sites, f.Sites*f.Nodes, f.Sites*f.Deployments, f.Events)
	fmt.Fprint(out, "| read | rows | buffers | of a tenth of the fleet | p50 ms | p99 ms |\n|---|---|---|---|---|---|\n")
	for i, m := range large {
		if m.refused != "" {
			fmt.Fprintf(out, "| %s | %s | | | | |\n", m.what, m.refused)
			continue
		}
		fmt.Fprintf(out, "| %s | %d | %d | %d | %s | %s |\n", m.what, m.rows, m.buffers, small[i].buffers, millis(m.p50), millis(m.p99))
	}
}
