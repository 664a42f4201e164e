package rollout

import (
	"fmt"
	"math"
)

// A Gate is a question about the world that a revision spreads in, such as how many requests fail. While one does not pass, no site is admitted, and
// no wave ends.
type Gate struct {
	Name string
	// Source is the name of the source to ask, in the configuration of the CO.
	Source string
	// Query is what a source is asked whose answer is numbers; each has to be from Min to Max. Nil: no bound.
	Query    string
	Min, Max *float64
}

// Within returns why a number does not pass; "" if it does.
func (g *Gate) Within(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "the answer is no finite number"
	case g.Min != nil && v < *g.Min:
		return fmt.Sprintf("it is %g, and at least %g passes", v, *g.Min)
	case g.Max != nil && v > *g.Max:
		return fmt.Sprintf("it is %g, and at most %g passes", v, *g.Max)
	}
	return ""
}

// An Answer is what became of the question of a gate.
type Answer struct {
	Gate string
	// Wave is the one that it was asked about.
	Wave int
	// Reason says why it does not pass; empty: it does.
	Reason string
	// Unknown says that there is no answer: that is no reason to begin the time anew in which all has to work.
	Unknown bool
}

// About says to a source what is asked about.
type About struct {
	Fleet    string `json:"fleet"`      // name of the fleet deployment
	Revision int64  `json:"revision"`   // number of the revision
	App      string `json:"app"`        // id of its application
	Version  string `json:"appVersion"` // of the application
	Commit   string `json:"commit"`     // of the revision
	// Wave is the current one, from 0.
	Wave int    `json:"wave"`
	Gate string `json:"gate"` // name of the gate
}

// About returns what is asked about for a gate of the rollout.
func (r *Rollout) About(gate string) About {
	return About{string(r.Fleet), r.Revision, r.App, r.Version, r.Commit, r.Wave, gate}
}

// held returns what the first gate says that holds a wave. A gate without an answer about it holds it, too.
func (p Plan) held(g Progress, wave int) (reason string, fails bool) {
	for _, gate := range p.Gates {
		answer := Answer{Reason: "it was not asked yet", Unknown: true}
		for _, a := range g.Answers {
			if a.Gate == gate.Name && a.Wave == wave {
				answer = a
			}
		}
		if answer.Reason == "" {
			continue
		}
		if reason == "" {
			reason = gate.Name + ": " + answer.Reason
		}
		fails = fails || !answer.Unknown
	}
	return reason, fails
}

// heldBy begins the reason of a decision that a gate holds.
const heldBy = "held by gate "

// Held reports whether the reason of a rollout is that a gate holds it.
func Held(reason string) bool { return len(reason) > len(heldBy) && reason[:len(heldBy)] == heldBy }
