package link

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/impair"
	"github.com/colonyfleet/colony/sim"
)

var (
	kills     = flag.Int("kills", 40, "how often TestChaos kills an LO or a CO")
	chaosSeed = flag.Uint64("chaos-seed", 1, "decides what TestChaos does, though not when it is felt")
)

const (
	chaosNodes = 40
	chaosChurn = 300 // reports per second
	// chaosKeepAlive is short, so that a half-open link costs seconds and not a minute.
	chaosKeepAlive = 2 * time.Second
)

// TestChaos kills the LO and the CO with SIGKILL at random moments, in their
// start-up too, under load and over a link that breaks in every way, and then
// holds the CO's database against all that the LO ever acknowledged to a node.
func TestChaos(t *testing.T) {
	r := newRig(t)
	proxy, err := impair.Listen(r.coOptions.MQTT, impair.Profile{}, *chaosSeed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	r.loOptions.CO.MQTT, r.loOptions.CO.KeepAlive = []string{"tcp://" + proxy.Addr()}, chaosKeepAlive
	r.startCO()
	r.desire("app", "gateway")
	r.startLO()
	l := newLedger()
	f := r.fleet(sim.Options{
		Nodes: chaosNodes, Seed: *chaosSeed, KeepAlive: 5 * time.Second, MaxBackoff: 200 * time.Millisecond,
		SelfHeal: true, Acknowledged: l.acknowledged,
	})
	f.Churn(chaosChurn)
	c := chaos{r: r, proxy: proxy, rng: rand.New(rand.NewPCG(*chaosSeed, 2))}
	began := time.Now()
	for i := range *kills {
		if i%5 == 0 { // on a slow machine, too, there is something to lose
			before := f.Stats().Acknowledged
			eventually(t, time.Minute, "nodes report between kills", func() error {
				if s := f.Stats(); s.Acknowledged == before {
					return fmt.Errorf("%+v", s)
				}
				return nil
			})
		}
		c.round()
		if (i+1)%50 == 0 {
			t.Logf("%d kills in %s, %d reports acknowledged", i+1, time.Since(began).Round(time.Second), f.Stats().Acknowledged)
		}
	}
	f.Churn(0)
	proxy.Set(impair.Profile{})
	r.serves(r.co, r.coOptions.HTTP)
	r.serves(r.lo, r.loOptions.HTTP)
	settled(t, f)
	eventually(t, 90*time.Second, "the CO says what is true", func() error { return state(r, f) })
	transitions, failures, faults := l.history(r)
	if len(faults) > 0 {
		t.Errorf("%d faults in the CO's history:\n%s", len(faults), strings.Join(faults[:min(10, len(faults))], "\n"))
	}
	whole(t, r)
	s := f.Stats()
	if s.Refused > 0 || s.Acknowledged != s.Made {
		t.Errorf("the nodes: %+v", s)
	}
	if failures < *kills {
		t.Errorf("%d failures were reported under %d kills: too few to prove anything", failures, *kills)
	}
	t.Logf("%d kills (CO %d, LO %d) and %d breaks of the link in %s: %d reports acknowledged, %d moves in the CO's history, %d of them failures, each once and in order",
		*kills, c.killed[0], c.killed[1], c.breaks, time.Since(began).Round(time.Second), s.Acknowledged, transitions, failures)
}

// whole checks that no loss was reported to the CO.
func whole(t *testing.T, r *rig) {
	t.Helper()
	type row struct {
		Gap  bool
		Lost int64
	}
	for _, s := range query[row](r, `select gap, events_lost from sites where id = $1`, site) {
		if s.Gap || s.Lost != 0 {
			t.Errorf("the CO knows of a gap: %t, and of %d lost events", s.Gap, s.Lost)
		}
	}
	type report struct{ Kind, Message string }
	for _, e := range query[report](r, `select kind, message from events where site = $1 and kind in ('anomaly', 'data_lost', 'journal_gap') limit 5`, site) {
		t.Errorf("the CO recorded %s: %s", e.Kind, e.Message)
	}
}

// chaos is one run of TestChaos.
type chaos struct {
	r      *rig
	proxy  *impair.Proxy
	rng    *rand.Rand
	killed [2]int
	breaks int
}

// round lets things go for a moment, perhaps breaks the link, and kills.
func (c *chaos) round() {
	c.pause(1200 * time.Millisecond)
	if c.rng.IntN(3) == 0 {
		c.breakLink()
	}
	victims := [][]int{{0}, {0}, {1}, {1}, {0, 1}}[c.rng.IntN(5)]
	for _, v := range victims {
		c.process(v).Kill()
		c.killed[v]++
	}
	c.pause(200 * time.Millisecond)
	for _, v := range victims {
		if v == 0 {
			c.r.co.start(c.r.coOptions)
		} else {
			c.r.lo.start(c.r.loOptions)
		}
	}
}

func (c *chaos) process(i int) *process { return []*process{c.r.co, c.r.lo}[i] }

// breakLink breaks the link in one of its ways, and repairs it after a while.
func (c *chaos) breakLink() {
	c.breaks++
	switch mode := impair.Mode(c.rng.IntN(5)); mode {
	case impair.Refuse, impair.Stall, impair.Swallow:
		c.proxy.Set(impair.Profile{Mode: mode})
		c.pause(1500 * time.Millisecond)
		c.proxy.Set(impair.Profile{})
	case impair.Forward:
		c.proxy.Strand() // half open until the keep-alive finds it
	default:
		c.proxy.Reset()
	}
}

// pause waits for a random time up to most.
func (c *chaos) pause(most time.Duration) {
	<-time.After(time.Duration(c.rng.Int64N(int64(most))))
}
