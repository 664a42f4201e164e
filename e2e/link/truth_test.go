package link

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/sim"
)

// A ledger knows every report that the LO has acknowledged: from then on the node
// has forgotten it, and the link answers for it.
type ledger struct {
	mu       sync.Mutex
	failures map[position][]string // the messages of the FAILED reports, in order
	reports  int
}

// position is a deployment on a node.
type position struct {
	Node       protocol.NodeID
	Deployment protocol.DeploymentName
}

func newLedger() *ledger { return &ledger{failures: map[position][]string{}} }

// acknowledged is sim.Options.Acknowledged.
func (l *ledger) acknowledged(m protocol.DeploymentStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports++
	if m.State == lifecycle.Failed {
		p := position{m.Node, m.Deployment}
		l.failures[p] = append(l.failures[p], m.Message)
	}
}

// transition is a row of the CO's history.
type transition struct {
	Node       string
	Deployment string
	From, To   string
	Message    string
}

// history compares the CO's history with the ledger: every failure that was
// acknowledged is there once, in its order, and each move begins where the one
// before it ended. It returns how many moves and failures it has seen.
func (l *ledger) history(r *rig) (transitions, failures int, faults []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	got := map[position][]string{}
	at := map[position]string{}
	for _, m := range query[transition](r, `select node, deployment, from_state, to_state, message from deployment_history where site = $1 order by id`, site) {
		p := position{protocol.NodeID(m.Node), protocol.DeploymentName(m.Deployment)}
		transitions++
		if at[p] != m.From {
			faults = append(faults, fmt.Sprintf("%v: a move from %s to %s follows one to %s", p, m.From, m.To, at[p]))
		}
		at[p] = m.To
		if m.To == string(lifecycle.Failed) {
			failures++
			got[p] = append(got[p], m.Message)
		}
	}
	for p, want := range l.failures {
		if !slices.Equal(got[p], want) {
			faults = append(faults, fmt.Sprintf("%v: the CO has %q, the node reported %q", p, got[p], want))
		}
	}
	for p := range got {
		if _, ok := l.failures[p]; !ok {
			faults = append(faults, fmt.Sprintf("%v: the CO has failures that nobody reported", p))
		}
	}
	return transitions, failures, faults
}

// present is what the CO says of a deployment on a node.
type present struct {
	Node, Deployment, State, Message string
	Restarts                         int64
}

// state compares what the CO says of each node and deployment with the truth, and
// returns the first differences.
func state(r *rig, f *sim.Fleet) error {
	type row struct {
		ID     string
		Online bool
	}
	online := map[string]bool{}
	for _, n := range query[row](r, `select id, online from nodes where site = $1`, site) {
		online[n.ID] = n.Online
	}
	got := map[position]present{}
	for _, s := range query[present](r, `select node, deployment, state, message,
		coalesce((components->0->>'restarts')::bigint, 0) from deployment_nodes where site = $1`, site) {
		got[position{protocol.NodeID(s.Node), protocol.DeploymentName(s.Deployment)}] = s
	}
	var errs []error
	for _, n := range f.Truth() {
		if was, ok := online[string(n.ID)]; !ok || was != n.Online {
			errs = append(errs, fmt.Errorf("%s is online: %t; the CO knows it: %t, and says %t", n.ID, n.Online, ok, was))
		}
		for _, name := range slices.Sorted(maps.Keys(n.Deployments)) {
			d := n.Deployments[name]
			want := present{Node: string(n.ID), Deployment: string(name), State: string(d.State), Message: d.Message}
			if len(d.Components) > 0 {
				want.Restarts = int64(d.Components[0].Restarts)
			}
			if have := got[position{n.ID, name}]; have != want {
				errs = append(errs, fmt.Errorf("the CO says %+v, the node %+v", have, want))
			}
		}
	}
	if len(errs) > 3 {
		errs = append(errs[:3], fmt.Errorf("and %d more", len(errs)-3))
	}
	return errors.Join(errs...)
}
