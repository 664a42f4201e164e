package fleet

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// problems says what differs from what is desired: what nodes run, what the LO and
// the CO take them to run, and which events the CO has.
func (f *fleet) problems() []string {
	var out []string
	for _, s := range f.sites {
		out = append(out, f.siteProblems(s)...)
	}
	return out
}

func (f *fleet) siteProblems(s *site) []string {
	want := f.co.desired[s.id]
	if s.desired == nil || s.desired.Position != want.Position {
		return []string{fmt.Sprintf("%s has not adopted desired state %s", s.id, want.Position)}
	}
	out := f.lostEvents(s)
	placed := placement.Place(placement.Input{Desired: want.Deployments, Nodes: s.view()})
	for _, e := range want.Deployments {
		if problem := placed[e.Deployment].Problem; problem != "" {
			out = append(out, fmt.Sprintf("%s/%s: %s", s.id, e.Deployment, problem))
		}
	}
	for _, n := range s.nodes {
		out = append(out, f.nodeProblems(n, want, placed)...)
	}
	return out
}

// lostEvents says how what the CO received differs from the site's journal.
func (f *fleet) lostEvents(s *site) []string {
	got := f.co.received[s.id]
	if len(got) != len(s.journal.events) {
		return []string{fmt.Sprintf("the CO has %d of %d events of %s", len(got), len(s.journal.events), s.id)}
	}
	for i, e := range s.journal.events {
		if got[i].Seq != uint64(i+1) || got[i].Kind != e.Kind || !bytes.Equal(got[i].Body, e.Body) {
			return []string{fmt.Sprintf("event %d of %s is another at the CO: seq %d, kind %s", i+1, s.id, got[i].Seq, got[i].Kind)}
		}
	}
	return nil
}

func (f *fleet) nodeProblems(n *node, want *protocol.SiteDesired, placed placement.Placement) (out []string) {
	on := placed.On(n.id)
	digests, specs := map[protocol.DeploymentName]protocol.Digest{}, map[protocol.DeploymentName][]byte{}
	for _, e := range want.Deployments {
		if on[e.Deployment] {
			digests[e.Deployment], specs[e.Deployment] = e.Digest, e.Spec
		}
	}
	differs := func(what string, name protocol.DeploymentName, state lifecycle.State, digest protocol.Digest) {
		want, expected := digests[name]
		removed := state == "" || state == lifecycle.Deleted
		if expected && (state != lifecycle.Installed || digest != want) || !expected && !removed {
			out = append(out, fmt.Sprintf("%s: %s: %s has it %s with %s, desired is %q", n.name, name, what, state, digest.Short(), want))
		}
	}
	for _, name := range deployments {
		rec := n.records[name]
		differs("the node", name, rec.State, rec.Digest)
		if d := n.site.records[n.id].Deployments[name]; d != nil {
			differs("the LO", name, d.Status.State, d.Status.Digest)
		} else {
			differs("the LO", name, "", "")
		}
		m := f.co.status[key{n.site.id, n.id, name}]
		differs("the CO", name, m.State, m.Digest)
	}
	return append(out, n.containerProblems(specs)...)
}

// containerProblems says which containers run that should not, and the reverse.
func (n *node) containerProblems(specs map[protocol.DeploymentName][]byte) (out []string) {
	want := map[engine.ID]protocol.Digest{}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		spec, err := plan.Decode(specs[name])
		if err != nil {
			return []string{fmt.Sprintf("%s: the spec of %s: %v", n.name, name, err)}
		}
		identities := plan.Identities(spec)
		for i, c := range spec.Components {
			for j, k := range c.Containers {
				want[engine.ID{Deployment: name, Component: c.Name, Name: k.Name}] = identities[i][j]
			}
		}
	}
	for _, c := range n.machine.list() {
		if c.State != engine.Running || c.Digest != want[c.ID] {
			out = append(out, fmt.Sprintf("%s: container %s is %s with %s, desired is %q", n.name, c.ID, c.State, c.Digest.Short(), want[c.ID]))
		}
		delete(want, c.ID)
	}
	for _, id := range slices.SortedFunc(maps.Keys(want), engine.ID.Compare) {
		out = append(out, fmt.Sprintf("%s: container %s is not there", n.name, id))
	}
	return out
}
