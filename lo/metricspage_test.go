package lo

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/internal/doctable"
	"github.com/colonyfleet/colony/internal/metricstest"
)

// TestPageOfMetrics holds the table of the LO in docs/metrics.md to what LOs have registered: one with a certificate, and one
// without. UPDATE=1 writes it.
func TestPageOfMetrics(t *testing.T) {
	t.Parallel()
	all := map[string]metricstest.Metric{}
	register := func(o Options) {
		o.Registerer = prometheus.NewRegistry()
		startLO(t, o)
		maps.Copy(all, metricstest.Of(t, o.Registerer, "colony_lo_"))
	}
	local := localOptions(t, newFakeCO(t), t.TempDir(), "127.0.0.1:0")
	local.CO.HTTP = "http://127.0.0.1:1" // which the image cache asks
	register(local)
	c := newProvenCO(t)
	o := DefaultOptions()
	o.Site, o.StateDir, o.MQTT, o.HTTP, o.Logger = "s1", t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", logger(t)
	o.CO.MQTT, o.CO.Enrol = []string{"tls://" + c.broker.Addr("machines")}, []string{c.enrol}
	o.Identity = IdentityOptions{TokenFile: filepath.Join(t.TempDir(), "token"), Enrol: "127.0.0.1:0", MQTT: "127.0.0.1:0"}
	register(o)
	doctable.Table{
		Doc: "../docs/metrics.md", Name: "metrics of the LO", Content: metricstest.Table(all), Command: "UPDATE=1 go test ./lo -run TestPageOfMetrics writes it",
	}.Check(t, os.Getenv("UPDATE") != "")
}
