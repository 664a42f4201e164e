package fleet

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// deployments are the names that people use, each with a placement of its own.
var deployments = []protocol.DeploymentName{"collector", "gateway", "historian", "vision"}

// driftOf draws what a cheap clock gains in a second: up to 100 ppm either way.
func driftOf(rng *rand.Rand) float64 { return (rng.Float64() - 0.5) * 2e-4 }

// each does something again and again, after a time drawn anew from low to high,
// until the day ends.
func (f *fleet) each(rng *rand.Rand, low, high time.Duration, do func()) {
	f.after(between(rng, low, high), func() {
		if f.now < f.o.Day {
			do()
			f.each(rng, low, high, do)
		}
	})
}

// begin plans the day of a site.
func (f *fleet) begin(s *site) {
	id := string(s.id)
	people, wan, lo := f.draws("people/"+id), f.draws("wan/"+id), f.draws("faults/"+id)
	versions := &releases{rng: people}
	d := f.co.desired[s.id]
	for _, name := range deployments {
		d.Deployments = append(d.Deployments, versions.entry(name, good))
	}
	f.co.publish(s)
	f.each(people, 10*time.Minute, 40*time.Minute, func() { f.change(s, versions) })
	f.each(wan, time.Hour, 4*time.Hour, func() { f.outage(s.uplink.link, between(wan, 10*time.Second, 2*time.Hour)) })
	f.each(lo, 2*time.Hour, 6*time.Hour, func() {
		s.kill()
		f.after(between(lo, time.Second, 2*time.Minute), func() {
			if !s.alive {
				s.start()
			}
		})
	})
	f.each(lo, 2*time.Hour, 8*time.Hour, func() { f.setClock(id, s.clock, lo) })
	losses := f.draws("losses/" + id)
	f.each(losses, time.Hour, 5*time.Hour, s.copyDisk)
	f.each(losses, 3*time.Hour, 9*time.Hour, func() {
		s.kill()
		if losses.IntN(2) == 0 {
			s.loseRecord(s.nodes[losses.IntN(len(s.nodes))].id)
		} else {
			s.restoreDisk()
		}
		f.after(between(losses, time.Second, time.Minute), func() {
			if !s.alive {
				s.start()
			}
		})
	})
	for _, n := range s.nodes {
		f.trouble(n)
	}
}

// outage cuts a link for a while.
func (f *fleet) outage(l *link, d time.Duration) {
	l.sever()
	f.after(d, l.restore)
}

// setClock corrects a clock, or makes it wrong.
func (f *fleet) setClock(who string, c *clock, rng *rand.Rand) {
	by := -c.offset
	if rng.IntN(2) == 0 {
		by = between(rng, -72*time.Hour, 72*time.Hour)
	}
	f.logf(who, "clock set by %s", by)
	c.set(by)
}

// trouble plans what befalls a node.
func (f *fleet) trouble(n *node) {
	rng := f.draws("trouble/" + n.name)
	back := func(low, high time.Duration, before func()) {
		f.after(between(rng, low, high), func() {
			if !n.alive {
				before()
				n.start()
			}
		})
	}
	nothing := func() {}
	f.each(rng, 2*time.Hour, 10*time.Hour, func() { f.outage(n.link, between(rng, 5*time.Second, 30*time.Minute)) })
	f.each(rng, 2*time.Hour, 10*time.Hour, func() { n.kill(); back(time.Second, time.Minute, nothing) })
	f.each(rng, 4*time.Hour, 20*time.Hour, func() { n.powerOff(); back(20*time.Second, 10*time.Minute, nothing) })
	f.each(rng, 12*time.Hour, 48*time.Hour, func() { n.kill(); back(time.Minute, 10*time.Minute, n.wipe) })
	f.each(rng, 4*time.Hour, 12*time.Hour, func() { f.setClock(n.name, n.clock, rng) })
	f.each(rng, time.Hour, 6*time.Hour, func() {
		if list := n.machine.list(); len(list) > 0 {
			s := list[rng.IntN(len(list))]
			f.logf(n.name, "container %s exits", s.ID)
			n.machine.exit(s.ID, 137)
		}
	})
}

// change is what a person does.
func (f *fleet) change(s *site, versions *releases) {
	d, rng := f.co.desired[s.id], versions.rng
	name := deployments[rng.IntN(len(deployments))]
	at := slices.IndexFunc(d.Deployments, func(e protocol.SiteEntry) bool { return e.Deployment == name })
	d.Deployments = slices.Clone(d.Deployments)
	switch draw := rng.IntN(100); {
	case at < 0:
		d.Deployments = append(d.Deployments, versions.entry(name, good))
	case draw < 50:
		d.Deployments[at] = versions.entry(name, good)
	case draw < 75:
		d.Deployments[at] = versions.entry(name, []string{crashes, sick, missing}[rng.IntN(3)])
	case draw < 85:
		d.Deployments[at].Retry++
		d.Deployments[at].Position = protocol.Position{}
	default:
		d.Deployments = slices.Delete(d.Deployments, at, at+1)
		d.Removals = append(slices.Clone(d.Removals), protocol.Removal{Deployment: name})
	}
	slices.SortFunc(d.Deployments, func(a, b protocol.SiteEntry) int { return slices.Compare([]byte(a.Deployment), []byte(b.Deployment)) })
	f.co.publish(s)
}

// finish ends all faults of a site, and asks for versions that work in the place of
// those that do not. The LO's clock is set back, so that what it remembers as the
// latest thing lies days ahead.
func (f *fleet) finish(s *site) {
	rng := f.draws("finish/" + string(s.id))
	versions := &releases{rng: rng, number: 1_000_000}
	d := f.co.desired[s.id]
	d.Deployments = slices.Clone(d.Deployments)
	for i, e := range d.Deployments {
		if !bytes.Contains(e.Spec, []byte(good)) {
			d.Deployments[i] = versions.entry(e.Deployment, good)
		}
	}
	s.clock.set(-between(rng, 24*time.Hour, 72*time.Hour))
	s.uplink.link.restore()
	if !s.alive {
		s.start()
	}
	for _, n := range s.nodes {
		n.link.restore()
		if !n.alive {
			n.start()
		}
	}
	f.co.publish(s)
}

// releases makes versions.
type releases struct {
	rng    *rand.Rand
	number int
}

// entry returns a new version of a deployment, whose programs behave as a word says.
func (r *releases) entry(name protocol.DeploymentName, behaviour string) protocol.SiteEntry {
	r.number++
	image := func(part string) string { return fmt.Sprintf("registry/%s-%s:%d-%s", name, part, r.number, behaviour) }
	spec := protocol.DeploymentSpec{
		V: protocol.Version, ID: fmt.Sprintf("%s-%d", name, r.number), Deployment: name, App: string(name), AppVersion: fmt.Sprint(r.number),
		Components: []protocol.Component{{Name: "main", Containers: []protocol.Container{
			{
				Name: "server", Image: image("server"), Restart: protocol.Restart{Policy: protocol.RestartAlways},
				Health: &protocol.Health{Command: []string{"check"}, IntervalMillis: 120_000},
			},
		}}},
	}
	if r.rng.IntN(2) == 0 {
		containers := &spec.Components[0].Containers
		*containers = append(*containers, protocol.Container{
			Name: "exporter", Image: fmt.Sprintf("registry/exporter:%d", r.number/4), Restart: protocol.Restart{Policy: protocol.RestartAlways},
			DependsOn: []protocol.Dependency{{Container: "server", Condition: protocol.ServiceHealthy}},
		})
	}
	encoded := protocol.Marshal(&spec)
	e := protocol.SiteEntry{Deployment: name, Digest: protocol.DigestOf(encoded), Size: uint64(len(encoded)), Spec: encoded}
	switch name {
	case "gateway":
		e.Placement.Node = "node-01"
	case "historian":
		e.Placement.Replicas = 3
	case "vision":
		e.Placement.Selector, e.Placement.Replicas = map[string]string{"zone": "b"}, 2
	}
	return e
}
