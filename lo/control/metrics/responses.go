package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// responses measure how long nodes take to begin what they are asked for.
type responses struct {
	seconds prometheus.Histogram

	mu    sync.Mutex                        // protects what follows
	asked map[protocol.NodeID][]question    // what nodes have not answered
	took  map[protocol.NodeID]time.Duration // of the last answer
}

// A question is an assignment that a node was sent.
type question struct {
	deployment protocol.DeploymentName
	digest     protocol.Digest
	attempt    uint32
	at         time.Time
}

func newResponses() responses {
	return responses{
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "colony_lo_node_response_seconds", Help: "Time from sending an assignment to a node that is online to its first report of it.",
			Buckets: []float64{.005, .025, .1, .5, 2, 10, 60, 300},
		}),
		asked: map[protocol.NodeID][]question{}, took: map[protocol.NodeID]time.Duration{},
	}
}

// Asked notes that a node was sent what it shall run, at a time of package time. What its record says it has begun already is not waited for.
func (r *responses) Asked(rec *nodes.Record, assignments []protocol.Assignment, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.asked[rec.Node]
	delete(r.asked, rec.Node)
	if !rec.Online() {
		return
	}
	var open []question
	for _, a := range assignments {
		q := question{a.Deployment, a.Digest, a.Attempt, at}
		if d := rec.Deployments[a.Deployment]; d != nil && q.answered(d.Status) {
			continue
		}
		for _, b := range before {
			if b.deployment == q.deployment && b.digest == q.digest && b.attempt == q.attempt {
				q.at = b.at
			}
		}
		open = append(open, q)
	}
	if len(open) > 0 {
		r.asked[rec.Node] = open
	}
}

// answered reports whether a status is of the assignment, and is what the node said: the LO sets states, too.
func (q question) answered(s protocol.DeploymentStatus) bool {
	return s.Digest == q.digest && s.Attempt == q.attempt && s.Actor == lifecycle.EN
}

// Answered measures the answer, where a report is one.
func (r *responses) Answered(s protocol.DeploymentStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, q := range r.asked[s.Node] {
		if q.deployment == s.Deployment && q.answered(s) {
			took := time.Since(q.at)
			r.seconds.Observe(took.Seconds())
			r.took[s.Node] = took
			r.asked[s.Node] = append(r.asked[s.Node][:i:i], r.asked[s.Node][i+1:]...)
			return
		}
	}
}

// Left forgets what a node was asked that is offline, or gone: how long it is away says nothing of it.
func (r *responses) Left(node protocol.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.asked, node)
	delete(r.took, node)
}

// lastOf returns the time of the last answer of a node, in seconds.
func (r *responses) lastOf(node protocol.NodeID) (seconds float64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	took, ok := r.took[node]
	return took.Seconds(), ok
}
