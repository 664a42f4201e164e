package en_test

import (
	"io"
	"maps"
	"net/http"
	"os"
	"testing"

	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/internal/doctable"
	"github.com/colonyfleet/colony/internal/metricstest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

// scrape returns what an agent answers at /metrics.
func scrape(t *testing.T, e *en.EN) []byte {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	resp, err := http.Get("http://" + e.HTTPAddr() + "/metrics") //nolint:noctx // one call of a test
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // of the test
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// TestPageOfMetrics holds the table of the agent in docs/metrics.md to what agents answer: one that runs a deployment, and one
// with a certificate. UPDATE=1 writes it.
func TestPageOfMetrics(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.want(t, 1, assignment())
	first := start(t, s.options(t, t.TempDir(), memory.New(memory.Options{})))
	defer stop(t, first)
	wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Installed })
	all := metricstest.OfText(t, scrape(t, first))
	o := s.options(t, t.TempDir(), memory.New(memory.Options{}))
	o.LO.MQTT, o.LO.Enrol = []string{"tls://127.0.0.1:1"}, []string{"127.0.0.1:1"}
	second := start(t, o)
	defer stop(t, second)
	maps.Copy(all, metricstest.OfText(t, scrape(t, second)))
	doctable.Table{
		Doc: "../docs/metrics.md", Name: "metrics of the agent", Content: metricstest.Table(all), Command: "UPDATE=1 go test ./en -run TestPageOfMetrics writes it",
	}.Check(t, os.Getenv("UPDATE") != "")
}
