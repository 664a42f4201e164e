package fleet

import (
	"fmt"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// Options say what is simulated.
type Options struct {
	// Seed decides everything that is drawn.
	Seed uint64
	// Sites is how many there are, Nodes how many each of them has.
	Sites, Nodes int
	// Day is how long people change things and things fail.
	Day time.Duration
	// Settle is how long after that the fleet may take to do what is desired of it.
	Settle time.Duration
}

// A Result is what came of a run.
type Result struct {
	// Trace has one line for each thing that happened.
	Trace []byte
	// Settled is how long after the day the fleet had done what is desired.
	Settled time.Duration
	// Problems say what differs from what is desired at the end. None: it converged.
	Problems []string
}

// A fleet is all that is simulated.
type fleet struct {
	*world
	o     Options
	sites []*site
}

// Run simulates a day.
func Run(o Options) Result {
	f := &fleet{o: o, world: &world{seed: o.Seed, start: time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC)}}
	f.world.co = newCO(f.world)
	for i := range o.Sites {
		f.addSite(protocol.SiteID(fmt.Sprintf("site-%d", i+1)))
	}
	for _, s := range f.sites {
		f.begin(s)
	}
	f.run(o.Day)
	f.logf("fleet", "the day ends")
	for _, s := range f.sites {
		f.finish(s)
	}
	const step = time.Minute
	for f.now < o.Day+o.Settle && len(f.problems()) > 0 {
		f.run(f.now + step)
	}
	r := Result{Settled: f.now - o.Day, Problems: f.problems()}
	f.logf("fleet", "settled after %s with %d problems", r.Settled, len(r.Problems))
	r.Trace = f.trace.Bytes()
	return r
}

// addSite makes a site with its nodes, and starts them.
func (f *fleet) addSite(id protocol.SiteID) {
	rng := f.draws("site/" + string(id))
	s := newSite(f.world, id)
	s.clock.drift = driftOf(rng)
	s.clock.offset = between(rng, -time.Hour, time.Hour)
	f.sites = append(f.sites, s)
	f.co.positions[id] = &stream.Position{}
	f.co.desired[id] = &protocol.SiteDesired{V: protocol.Version, Site: id}
	for i := range f.o.Nodes {
		n := newNode(f.world, s, protocol.NodeID(fmt.Sprintf("node-%02d", i+1)))
		n.labels = map[string]string{"zone": string(rune('a' + i%2))}
		n.clock.drift = driftOf(rng)
		if rng.IntN(3) == 0 { // no battery: it begins long ago, until the clock is set
			n.clock.offset = -45 * 365 * 24 * time.Hour
		}
		n.link = newLink(f.world, n.name, n, door{s, n})
		s.nodes = append(s.nodes, n)
	}
	s.uplink.link = newLink(f.world, string(id), s.uplink, gate{f.co, s})
	s.uplink.link.delay, s.uplink.link.loss = 150*time.Millisecond, 0.03
	s.start()
	s.uplink.link.reconnect()
	for _, n := range s.nodes {
		f.after(between(rng, 0, time.Minute), n.start)
	}
}
