// Package placement is the scheduler: it decides which nodes of a site run a deployment.
// It is pure: the desired state, the nodes and the present placement in; the new
// placement out, with a reason for every node that was not chosen.
//
// It changes as little as it can. A node that runs a deployment keeps it for as long as
// it matches, online or not: if its work were started elsewhere when it is offline for
// an hour, it would run twice. A deployment is placed on further nodes only if they are
// online, unless its desired state names the node.
package placement

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/placement/demand"
	"github.com/colonyfleet/colony/protocol"
)

// A Node is what placement needs to know of a node.
type Node struct {
	ID     protocol.NodeID
	Online bool
	// Inventory is nil until the node sent one.
	Inventory *protocol.Inventory
	// Runs are the deployments that are placed on it now.
	Runs []protocol.DeploymentName
	// Versions are those of Runs that are assigned, for what the desired state does not name. A missing one asks for nothing.
	Versions map[protocol.DeploymentName]protocol.Digest
	// Met are the digests of the constraints that the node met when these deployments were
	// placed on it.
	Met map[protocol.DeploymentName]protocol.Digest
	// Unreported says that the node has not reported what it runs since the LO started:
	// Runs is what the LO remembers, or expects.
	Unreported bool
	// Restricted says that a person has cordoned, drained or held it.
	Restricted Restricted
}

// Restricted says what a person has restricted about a node, for package restriction. Each field is why, for people; "": it is not so.
type Restricted struct {
	// Closed says that nothing new is placed on the node.
	Closed string
	// Drained says that what can move to other nodes moves there.
	Drained string
	// Forced says of what is drained that volumes and devices keep nothing on the node.
	Forced bool
	// Held says that nothing leaves the node.
	Held string
}

// An Input is what Place decides upon.
type Input struct {
	Desired []protocol.SiteEntry
	Nodes   []Node
	// Unsettled says that not all nodes that may run something are known to have reported it: a deployment of which a
	// number of replicas is desired is not placed on further nodes then.
	Unsettled bool
	// Demand returns what a version asks of a node. Nil: nothing is asked for.
	Demand func(protocol.Digest) demand.Demand
}

// A Result is the placement of one deployment.
type Result struct {
	// Nodes run it, sorted.
	Nodes []protocol.NodeID
	// Rejected holds the reason for each other node of the site.
	Rejected map[protocol.NodeID]string
	// Problem says why fewer nodes than asked for were found; empty if enough.
	Problem string
	// Stays says of nodes that are drained, and run it all the same, why it does not move.
	Stays map[protocol.NodeID]string
	// Leaves are the nodes that are drained, sorted: it moves from them to others of Nodes.
	Leaves []protocol.NodeID
}

// Placement is the result for every deployment of a site.
type Placement map[protocol.DeploymentName]Result

// On returns the deployments that are placed on a node.
func (p Placement) On(node protocol.NodeID) map[protocol.DeploymentName]bool {
	on := map[protocol.DeploymentName]bool{}
	for name, r := range p {
		if _, ok := slices.BinarySearch(r.Nodes, node); ok {
			on[name] = true
		}
	}
	return on
}

// Report returns the result for the CO, with at most limit reasons, so that those of a
// large site do not fill its link.
func (r Result) Report(name protocol.DeploymentName, limit int) protocol.PlacementReport {
	m := protocol.PlacementReport{V: protocol.Version, Deployment: name, Nodes: r.Nodes, Problem: r.Problem}
	for _, id := range slices.Sorted(maps.Keys(r.Rejected)) {
		if len(m.Rejected) == limit {
			break
		}
		if m.Rejected == nil {
			m.Rejected = map[protocol.NodeID]string{}
		}
		m.Rejected[id] = r.Rejected[id]
	}
	return m
}

// Place decides for all deployments of a site, in the order of their names, so
// that the same input always has the same result. Where the replicas that are
// to stay are on unreported nodes, surplus ones stay as well.
func Place(in Input) Placement {
	nodes := slices.SortedFunc(slices.Values(in.Nodes), func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	p := pass{nodes: nodes, load: map[protocol.NodeID]int{}, unsettled: in.Unsettled, demand: in.Demand}
	if p.demand == nil {
		p.demand = func(protocol.Digest) (none demand.Demand) { return none }
	}
	p.take(in.Desired)
	placement := Placement{}
	for _, e := range slices.SortedFunc(slices.Values(in.Desired), func(a, b protocol.SiteEntry) int {
		return cmp.Compare(a.Deployment, b.Deployment)
	}) {
		placement[e.Deployment] = p.place(e)
	}
	return placement
}

// pass is one run of Place.
type pass struct {
	nodes     []Node                  // sorted
	load      map[protocol.NodeID]int // how many deployments each runs
	used      map[protocol.NodeID]*usage
	unsettled bool
	demand    func(protocol.Digest) demand.Demand
}

// take counts what the nodes run. Of what is desired the desired version counts, also where an earlier one runs yet.
func (p *pass) take(desired []protocol.SiteEntry) {
	asked := make(map[protocol.DeploymentName]demand.Demand, len(desired))
	for i := range desired {
		asked[desired[i].Deployment] = p.demand(desired[i].Digest)
	}
	p.used = make(map[protocol.NodeID]*usage, len(p.nodes))
	for _, n := range p.nodes {
		p.load[n.ID] = len(n.Runs)
		u := &usage{}
		for _, name := range n.Runs {
			d, ok := asked[name]
			if !ok {
				d = p.demand(n.Versions[name])
			}
			u.take(name, &d)
		}
		p.used[n.ID] = u
	}
}

// place decides for one deployment. It counts what it newly places in p.load.
func (p *pass) place(e protocol.SiteEntry) Result {
	r := Result{Rejected: map[protocol.NodeID]string{}}
	constraints, err := parse(e.Placement.Constraints)
	if err != nil {
		r.Problem = fmt.Sprintf("not placeable: its device constraints cannot be read: %v", err)
		for _, n := range p.nodes { // the nodes that run it keep it
			if slices.Contains(n.Runs, e.Deployment) && (e.Placement.Node == "" || e.Placement.Node == n.ID) {
				r.Nodes = append(r.Nodes, n.ID)
			}
		}
		return r
	}
	asked := p.demand(e.Digest)
	c := p.candidates(e, constraints, &r)
	c.fresh = slices.DeleteFunc(c.fresh, func(n Node) bool {
		why := p.used[n.ID].lacks(&asked, n.Inventory)
		if why != "" {
			r.Rejected[n.ID] = why
		}
		return why != ""
	})
	// Nodes that already run it come first: those that are held, those online before those away; then
	// the least loaded.
	slices.SortStableFunc(c.stay, func(a, b Node) int {
		return cmp.Or(cmp.Compare(rank(a.Restricted.Held != ""), rank(b.Restricted.Held != "")),
			cmp.Compare(rank(a.Online), rank(b.Online)), cmp.Compare(rank(!a.Unreported), rank(!b.Unreported)))
	})
	slices.SortStableFunc(c.fresh, func(a, b Node) int { return cmp.Compare(p.load[a.ID], p.load[b.ID]) })
	chosen := slices.Concat(c.stay, c.fresh)
	if want := most(e, c.stay); want > 0 && len(chosen) > want {
		for _, n := range chosen[want:] {
			r.Rejected[n.ID] = fmt.Sprintf("enough nodes run it already: %d wanted", want)
		}
		chosen = chosen[:want]
	}
	chosen = p.drain(e, chosen, c.leave, &r)
	for _, n := range chosen {
		r.Nodes = append(r.Nodes, n.ID)
		if !slices.Contains(n.Runs, e.Deployment) {
			p.load[n.ID]++
			p.used[n.ID].take(e.Deployment, &asked)
		}
	}
	slices.Sort(r.Nodes)
	r.Problem = problem(e.Placement, r, len(p.nodes))
	return r
}

// candidates are the nodes that may run a deployment.
type candidates struct {
	stay  []Node // they run it, and may go on with it
	fresh []Node // they may begin
	leave []Node // they run it, and are drained: it moves where it can
}

// candidates sorts the nodes. It notes in r why the others may not run the deployment.
func (p *pass) candidates(e protocol.SiteEntry, constraints *v1rc3.Constraints, r *Result) (c candidates) {
	for _, n := range p.nodes {
		runs := slices.Contains(n.Runs, e.Deployment)
		required := constraints
		if runs && required != nil && n.Met[e.Deployment] == protocol.DigestOf(e.Placement.Constraints) {
			// It met these constraints. What it says of itself now may be a probe that
			// failed, or a device that was unplugged for a moment: nothing is removed for it.
			required = nil
		}
		if runs && n.Restricted.Held != "" && (e.Placement.Node == "" || e.Placement.Node == n.ID) {
			if n.Restricted.Drained != "" {
				r.stay(n, "nothing leaves the node, as it is "+n.Restricted.Held)
			}
			c.stay = append(c.stay, n) // whatever it says of itself now: nothing leaves it
			continue
		}
		if why := mismatch(e.Placement, required, n); why != "" {
			r.Rejected[n.ID] = why
			continue
		}
		switch {
		case runs && n.Restricted.Drained != "":
			if why := p.stays(e, n); why != "" {
				r.stay(n, why)
				c.stay = append(c.stay, n)
			} else {
				c.leave = append(c.leave, n)
			}
		case runs:
			c.stay = append(c.stay, n)
		case n.Restricted.Closed != "":
			r.Rejected[n.ID] = "the node is " + n.Restricted.Closed
		case n.Unreported && n.Online:
			r.Rejected[n.ID] = "the node has not reported yet what it runs"
		case p.unsettled && e.Placement.Replicas > 0 && e.Placement.Node == "":
			r.Rejected[n.ID] = "not all nodes have reported yet what they run"
		case n.Online || e.Placement.Node != "":
			c.fresh = append(c.fresh, n)
		default:
			r.Rejected[n.ID] = "the node is offline"
		}
	}
	return c
}

// most is how many nodes a deployment gets at most; 0: any number. stay are those that run it, in
// the order in which they are chosen.
func most(e protocol.SiteEntry, stay []Node) int {
	want := int(e.Placement.Replicas)
	if want > 0 && len(stay) > want && slices.ContainsFunc(stay[:want], func(n Node) bool { return n.Unreported }) {
		return len(stay) // it is not known whether those that would stay run it
	}
	return want
}

func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

func parse(doc []byte) (*v1rc3.Constraints, error) {
	if len(doc) == 0 {
		return nil, nil //nolint:nilnil // no constraints is a value
	}
	c := &v1rc3.Constraints{}
	if err := json.Unmarshal(doc, c); err != nil {
		return nil, fmt.Errorf("decode device constraints: %w", err)
	}
	return c, nil
}

// mismatch returns why a deployment may not run on a node, or "".
func mismatch(p protocol.Placement, c *v1rc3.Constraints, n Node) string {
	if p.Node != "" && p.Node != n.ID {
		return fmt.Sprintf("the deployment is for node %s", p.Node)
	}
	if n.Inventory == nil {
		if len(p.Selector) == 0 && c == nil {
			return ""
		}
		return "the node has not sent its inventory yet"
	}
	for _, key := range slices.Sorted(maps.Keys(p.Selector)) {
		want := p.Selector[key]
		switch got, ok := n.Inventory.Labels[key]; {
		case !ok:
			return fmt.Sprintf("it has no label %s; wanted %s=%s", key, key, want)
		case got != want:
			return fmt.Sprintf("its label %s is %q; wanted %q", key, got, want)
		}
	}
	if c != nil {
		if ok, why := c.Match(capabilities(n)); !ok {
			return why
		}
	}
	return ""
}

// problem says why there are fewer nodes than asked for; "" if there are enough.
func problem(p protocol.Placement, r Result, known int) string {
	found, want := len(r.Nodes), max(1, int(p.Replicas))
	if p.Node != "" {
		want = 1
	}
	if found >= want {
		return ""
	}
	if known == 0 {
		return "not placeable: the site has no nodes yet; start an agent that connects to this site"
	}
	if p.Node != "" {
		if _, ok := r.Rejected[p.Node]; !ok {
			return fmt.Sprintf("not placeable: node %s is not known at this site; check the name, or start its agent", p.Node)
		}
	}
	if found > 0 {
		return fmt.Sprintf("only %d of %d nodes found%s", found, want, because(r.Rejected))
	}
	return "not placeable: no node matches" + because(r.Rejected)
}

// because lists the first reasons, each with the first of the nodes that share it.
func because(rejected map[protocol.NodeID]string) string {
	const reasons, names = 4, 3
	by := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(rejected)) {
		by[rejected[id]] = append(by[rejected[id]], string(id))
	}
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(by)) {
		who := by[why]
		if len(who) > names {
			who = append(who[:names:names], fmt.Sprintf("and %d more", len(who)-names))
		}
		parts = append(parts, strings.Join(who, ", ")+": "+why)
	}
	if len(parts) > reasons {
		parts = append(parts[:reasons], fmt.Sprintf("and %d more reasons", len(parts)-reasons))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}
