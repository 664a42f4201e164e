package lo

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/lo/nodes/nodestatus"
	"github.com/colonyfleet/colony/protocol"
)

// counter returns the sum of the counters of one name that have a label of some value; ""
// is any.
func counter(t *testing.T, g prometheus.Gatherer, name, label string) (sum float64) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if label == "" || l.GetValue() == label {
					sum += m.GetCounter().GetValue()
					break
				}
			}
		}
	}
	return sum
}

// TestTwoGatewaysOfOneName runs two gateways with the name of one node, one of which may run from
// a copy of the other's disk: they do not take it from each other for long, and the status, an
// event and the refusal name both.
func TestTwoGatewaysOfOneName(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		second protocol.Gateway
		want   []string
	}{
		"two agents":    {protocol.Gateway{Agent: "agent-2", Boot: "b2"}, []string{"agent agent-2 at 127.0.0.1", "give each its own name"}},
		"a copied disk": {protocol.Gateway{Agent: "agent-1", Boot: "b2"}, []string{"agent agent-1 at 127.0.0.1 (boot b2)", "decide which one is the original"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testTwoGateways(t, tt.second, tt.want)
		})
	}
}

func testTwoGateways(t *testing.T, machine protocol.Gateway, problem []string) {
	t.Helper()
	c := newFakeCO(t)
	c.want(site1(1, "1", protocol.Policy{}))
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	registry := prometheus.NewRegistry()
	o.Registerer = registry
	l := startLO(t, o)
	first := startGateway(t, "gw-1", protocol.Gateway{Agent: "agent-1", Boot: "b1"}, l.MQTTAddr())
	<-first.up
	startGateway(t, "gw-1", machine, l.MQTTAddr())
	other := startGateway(t, "gw-2", protocol.Gateway{Agent: "agent-3", Boot: "b3"}, l.MQTTAddr())
	<-other.up

	eventually(t, "the conflict is reported", func() bool { return kinds(t, l)[protocol.NameConflict] > 0 })
	refused := func() float64 { return counter(t, registry, "colony_broker_refused_total", "0x89") }
	before := refused()
	// A takeover that shows the conflict may be counted after the conflict is; the gateway that it ends is refused when it
	// comes again.
	eventually(t, "a gateway is refused", func() bool { return refused() > before })
	takeovers, before := counter(t, registry, "colony_broker_takeovers_total", ""), refused()
	eventually(t, "the second gateway is refused several times", func() bool { return refused() >= before+3 })
	if got := counter(t, registry, "colony_broker_takeovers_total", ""); got != takeovers || got > 4 {
		t.Errorf("%v connections were taken over, %v of them after the conflict was known; want at most 4 and none", got, got-takeovers)
	}

	m := get(t, l, "/status")
	defer m.Body.Close() //nolint:errcheck // of the test
	body, err := io.ReadAll(m.Body)
	if err != nil {
		t.Fatal(err)
	}
	var status Status
	if err := json.Unmarshal(body, &status); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(status.Nodes, func(n nodestatus.NodeStatus) bool { return n.Node == "gw-1" })
	for _, want := range append(problem, "2 gateways use this name", "agent agent-1 at 127.0.0.1 (boot b1)") {
		if i < 0 || !strings.Contains(status.Nodes[i].Problem, want) {
			t.Errorf("the status of gw-1 does not say %q: %s", want, body)
		}
	}
	for _, n := range status.Nodes {
		if n.Node == "gw-2" && n.Problem != "" {
			t.Errorf("the status of gw-2 says %q", n.Problem)
		}
	}
}
