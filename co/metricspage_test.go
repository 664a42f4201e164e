package co_test

import (
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/webhook"
	"github.com/colonyfleet/colony/internal/doctable"
	"github.com/colonyfleet/colony/internal/metricstest"
	"github.com/colonyfleet/colony/internal/oidctest"
	"github.com/colonyfleet/colony/internal/testpart"
)

// TestPageOfMetrics holds the tables of the CO and of the broker in docs/metrics.md to what COs have registered, of which each has
// parts that the others have not. UPDATE=1 writes them.
func TestPageOfMetrics(t *testing.T) {
	t.Parallel()
	own, broker := map[string]metricstest.Metric{}, map[string]metricstest.Metric{}
	gather := func(r *prometheus.Registry) {
		// A CO works on its own from its start on: the type of a histogram without a value is not known.
		testpart.Eventually(t, "a transaction has ended", func() bool {
			return metricstest.Of(t, r, "colony_co_")["colony_co_db_transaction_seconds"].Type == "histogram"
		})
		maps.Copy(own, metricstest.Of(t, r, "colony_co_"))
		maps.Copy(broker, metricstest.Of(t, r, "colony_broker_"))
	}
	idp := oidctest.Start(t, oidctest.Options{Accounts: people})
	r := prometheus.NewRegistry()
	start(t, vouched(idp.Issuer), func(o *co.Options) {
		o.Registerer = r
		o.RemoteWrite = co.RemoteWriteOptions{URL: "http://127.0.0.1:1/api/v1/write"}
		o.Webhooks = []webhook.Hook{{Name: "ops", URL: "http://127.0.0.1:1", Kinds: []string{fleet.SiteOnline}}}
	})
	gather(r)
	o := identified(t)
	rootOf(t, o)
	o.Registerer = prometheus.NewRegistry()
	startCO(t, o)
	gather(o.Registerer)
	o = identified(t)
	o.Registerer, o.Identity, o.Broker.URLs = prometheus.NewRegistry(), co.IdentityOptions{}, []string{"tcp://127.0.0.1:1"}
	startCO(t, o)
	gather(o.Registerer)
	for name, metrics := range map[string]map[string]metricstest.Metric{"metrics of the CO": own, "metrics of the broker": broker} {
		doctable.Table{
			Doc: "../docs/metrics.md", Name: name, Content: metricstest.Table(metrics), Command: "UPDATE=1 go test ./co -run TestPageOfMetrics writes it",
		}.Check(t, os.Getenv("UPDATE") != "")
	}
}

// TestMeasured asks a CO for something, and looks for the time that the parts took which worked for it.
func TestMeasured(t *testing.T) {
	t.Parallel()
	b := start(t)
	if status, said := b.ask(http.MethodPost, "/api/v1/sites", "", `{"id":"quay"}`); status != http.StatusCreated {
		t.Fatalf("%d %s", status, said)
	}
	if status, _ := b.ask(http.MethodGet, "/api/v1/sites/nowhere", "", ""); status != http.StatusNotFound {
		t.Fatalf("a site that is not there: %d", status)
	}
	_, said := b.ask(http.MethodGet, "/metrics", "", "")
	metricstest.Check(t, []byte(said), "colony_co_", "colony_broker_")
	for _, want := range []string{
		`colony_co_http_request_seconds_count{code="2xx",method="POST",route="/api/v1/sites"} 1`,
		`colony_co_http_request_seconds_count{code="4xx",method="GET",route="/api/v1/sites/{site}"} 1`,
		`colony_co_db_query_seconds_count{outcome="ok",statement="select"} `, `colony_co_db_transaction_seconds_count{outcome="ok"} `,
		`colony_co_db_connections_max{pool="work"} 16`, `colony_co_db_connections{pool="feed",state="idle"} `, `colony_co_git_seconds_count{command="ls-remote",outcome="ok"} `,
	} {
		if !strings.Contains(said, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}
