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
	"fmt"
	"maps"
	"slices"
	"strings"

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
	// Unreported says that the node has not reported what it runs since the LO started: Runs is
	// what the LO remembers, or expects.
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
	// Rejected are the other nodes of the site, sorted, each with its reason.
	Rejected []Rejection
	// Problem says why fewer nodes than asked for were found; empty if enough.
	Problem string
	// Stays says of nodes that are drained, and run it all the same, why it does not move.
	Stays map[protocol.NodeID]string
	// Leaves are the nodes that are drained, sorted: it moves from them to others of Nodes.
	Leaves []protocol.NodeID
}

// A Rejection is a node that was not chosen, and why, for people.
type Rejection struct {
	Node protocol.NodeID
	Why  string
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
	for _, rejected := range r.Rejected[:min(len(r.Rejected), limit)] {
		if m.Rejected == nil {
			m.Rejected = map[protocol.NodeID]string{}
		}
		m.Rejected[rejected.Node] = rejected.Why
	}
	return m
}

// Place decides for all deployments of a site, in the order of their names, so
// that the same input always has the same result. Where the replicas that are
// to stay are on unreported nodes, surplus ones stay as well.
func Place(in Input) Placement {
	p := newPass(in)
	entries := make([]*protocol.SiteEntry, len(in.Desired))
	for i := range in.Desired {
		entries[i] = &in.Desired[i]
	}
	slices.SortFunc(entries, func(a, b *protocol.SiteEntry) int { return cmp.Compare(a.Deployment, b.Deployment) })
	placement := make(Placement, len(entries))
	for _, e := range entries {
		placement[e.Deployment] = p.place(e)
	}
	return placement
}

// pass is one run of Place. Nodes are known by their places in nodes.
type pass struct {
	nodes     []*Node // sorted
	load      []int   // how many deployments each runs
	used      []usage
	runs      map[protocol.DeploymentName][]int // which nodes run a deployment, ascending
	asked     map[protocol.DeploymentName]demand.Demand
	matches   map[protocol.Digest]*matches // by device constraints
	unsettled bool
}

func newPass(in Input) *pass {
	p := &pass{
		load: make([]int, len(in.Nodes)), used: make([]usage, len(in.Nodes)), runs: make(map[protocol.DeploymentName][]int, len(in.Desired)),
		asked: make(map[protocol.DeploymentName]demand.Demand, len(in.Desired)), matches: map[protocol.Digest]*matches{}, unsettled: in.Unsettled,
	}
	for i := range in.Nodes {
		p.nodes = append(p.nodes, &in.Nodes[i])
	}
	slices.SortFunc(p.nodes, func(a, b *Node) int { return cmp.Compare(a.ID, b.ID) })
	of := in.Demand
	if of == nil {
		of = func(protocol.Digest) (none demand.Demand) { return none }
	}
	for i := range in.Desired {
		p.asked[in.Desired[i].Deployment] = of(in.Desired[i].Digest)
	}
	for i, n := range p.nodes {
		p.load[i] = len(n.Runs)
		for _, name := range n.Runs {
			p.runs[name] = append(p.runs[name], i)
			// Of what is desired the desired version counts, also where an earlier one runs yet.
			d, ok := p.asked[name]
			if !ok {
				d = of(n.Versions[name])
			}
			p.used[i].take(name, &d)
		}
	}
	return p
}

// place decides for one deployment. It counts what it newly places.
func (p *pass) place(e *protocol.SiteEntry) Result {
	r := Result{}
	f, err := p.filter(e)
	if err != nil {
		r.Problem = fmt.Sprintf("not placeable: its device constraints cannot be read: %v", err)
		for _, i := range p.runs[e.Deployment] { // the nodes that run it keep it
			if id := p.nodes[i].ID; e.Placement.Node == "" || e.Placement.Node == id {
				r.Nodes = append(r.Nodes, id)
			}
		}
		return r
	}
	c := p.candidates(f, &r)
	p.sortStaying(c.stay)
	chosen := c.stay
	want := p.most(e, c.stay)
	if want == 0 || len(c.stay) < want {
		chosen = append(chosen, p.roomy(e, c.fresh, &r)...)
	} else {
		chosen = append(chosen, c.fresh...)
	}
	if want > 0 && len(chosen) > want {
		why := fmt.Sprintf("enough nodes run it already: %d wanted", want)
		for _, i := range chosen[want:] {
			r.reject(p.nodes[i], why)
		}
		chosen = chosen[:want]
	}
	chosen = p.drain(e, chosen, c.leave, &r)
	asked := p.asked[e.Deployment]
	slices.Sort(chosen)
	for _, i := range chosen {
		r.Nodes = append(r.Nodes, p.nodes[i].ID)
		if _, runs := slices.BinarySearch(p.runs[e.Deployment], i); !runs {
			p.load[i]++
			p.used[i].take(e.Deployment, &asked)
		}
	}
	slices.SortFunc(r.Rejected, func(a, b Rejection) int { return cmp.Compare(a.Node, b.Node) })
	r.Problem = problem(e.Placement, r, len(p.nodes))
	return r
}

// sortStaying sorts the nodes that run a deployment: those that are held first, those online before those away, those that have
// reported before those that have not.
func (p *pass) sortStaying(stay []int) {
	slices.SortStableFunc(stay, func(a, b int) int {
		x, y := p.nodes[a], p.nodes[b]
		return cmp.Or(rank(x.Restricted.Held != "")-rank(y.Restricted.Held != ""), rank(x.Online)-rank(y.Online), rank(!x.Unreported)-rank(!y.Unreported))
	})
}

// roomy returns the nodes that have room for a deployment, the least loaded first.
func (p *pass) roomy(e *protocol.SiteEntry, fresh []int, r *Result) []int {
	asked := p.asked[e.Deployment]
	fresh = slices.DeleteFunc(fresh, func(i int) bool {
		why := p.used[i].lacks(&asked, p.nodes[i].Inventory)
		if why != "" {
			r.reject(p.nodes[i], why)
		}
		return why != ""
	})
	if e.Placement.Replicas > 0 {
		slices.SortStableFunc(fresh, func(a, b int) int { return p.load[a] - p.load[b] })
	}
	return fresh
}

func (r *Result) reject(n *Node, why string) { r.Rejected = append(r.Rejected, Rejection{n.ID, why}) }

// candidates are the nodes that may run a deployment.
type candidates struct {
	stay  []int // they run it, and may go on with it
	fresh []int // they may begin
	leave []int // they run it, and are drained: its replicas there move if they can
}

// candidates sorts the nodes. It notes in r why the others may not run the deployment.
func (p *pass) candidates(f *filter, r *Result) (c candidates) {
	e, running := f.entry, p.runs[f.entry.Deployment]
	r.Rejected = make([]Rejection, 0, len(p.nodes))
	for i, n := range p.nodes {
		runs := len(running) > 0 && running[0] == i
		if runs {
			running = running[1:]
		}
		if runs && n.Restricted.Held != "" && (e.Placement.Node == "" || e.Placement.Node == n.ID) {
			if n.Restricted.Drained != "" {
				r.stay(n, "nothing leaves the node, as it is "+n.Restricted.Held)
			}
			c.stay = append(c.stay, i) // independently of its state: nothing is moved off it
			continue
		}
		if why := f.mismatch(i, n, runs); why != "" {
			r.reject(n, why)
			continue
		}
		switch {
		case runs && n.Restricted.Drained != "":
			if why := p.stays(e, n); why != "" {
				r.stay(n, why)
				c.stay = append(c.stay, i)
			} else {
				c.leave = append(c.leave, i)
			}
		case runs:
			c.stay = append(c.stay, i)
		case n.Restricted.Closed != "":
			r.reject(n, "the node is "+n.Restricted.Closed)
		case n.Unreported && n.Online:
			r.reject(n, "the node has not reported yet what it runs")
		case p.unsettled && e.Placement.Replicas > 0 && e.Placement.Node == "":
			r.reject(n, "not all nodes have reported yet what they run")
		case n.Online || e.Placement.Node != "":
			c.fresh = append(c.fresh, i)
		default:
			r.reject(n, "the node is offline")
		}
	}
	return c
}

// most is how many nodes a deployment gets at most; 0: any number. stay are those that run it, in
// the order in which they are chosen.
func (p *pass) most(e *protocol.SiteEntry, stay []int) int {
	want := int(e.Placement.Replicas)
	if want > 0 && len(stay) > want && slices.ContainsFunc(stay[:want], func(i int) bool { return p.nodes[i].Unreported }) {
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
		if !slices.ContainsFunc(r.Rejected, func(x Rejection) bool { return x.Node == p.Node }) {
			return fmt.Sprintf("not placeable: node %s is not known at this site; check the name, or start its agent", p.Node)
		}
	}
	if found > 0 {
		return fmt.Sprintf("only %d of %d nodes found%s", found, want, because(r.Rejected))
	}
	return "not placeable: no node matches" + because(r.Rejected)
}

// because lists the first reasons, each with the first of the nodes that share it.
func because(rejected []Rejection) string {
	const reasons, names = 4, 3
	by := map[string][]string{}
	for _, r := range rejected {
		by[r.Why] = append(by[r.Why], string(r.Node))
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
