package placement

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/margo/v1rc3/eligible"
	"github.com/colonyfleet/colony/protocol"
)

// matches are device constraints, with what each node answers to them, as far as it was asked.
type matches struct {
	constraints v1rc3.Constraints
	asked       []bool
	why         []string // "": the node meets them
}

// A filter says of one deployment on which nodes it may not run.
type filter struct {
	entry   *protocol.SiteEntry
	keys    []string        // of the selector, sorted
	digest  protocol.Digest // of the device constraints
	matches *matches        // nil: there are none
	// reasons are those of labels that were given before, by key and value: many nodes have the same.
	reasons map[[2]string]string
}

// filter returns the filter of a deployment. It fails where the device constraints cannot be read.
func (p *pass) filter(e *protocol.SiteEntry) (*filter, error) {
	f := &filter{entry: e, keys: slices.Sorted(maps.Keys(e.Placement.Selector)), reasons: map[[2]string]string{}}
	if len(e.Placement.Constraints) == 0 {
		return f, nil
	}
	f.digest = protocol.DigestOf(e.Placement.Constraints)
	if f.matches = p.matches[f.digest]; f.matches != nil {
		return f, nil
	}
	f.matches = &matches{asked: make([]bool, len(p.nodes)), why: make([]string, len(p.nodes))}
	if err := json.Unmarshal(e.Placement.Constraints, &f.matches.constraints); err != nil {
		return nil, fmt.Errorf("decode device constraints: %w", err)
	}
	p.matches[f.digest] = f.matches
	return f, nil
}

// mismatch returns why the deployment may not run on the i-th node, or "".
func (f *filter) mismatch(i int, n *Node, runs bool) string {
	e := f.entry
	if e.Placement.Node != "" && e.Placement.Node != n.ID {
		return f.reason("", "", func() string { return fmt.Sprintf("the deployment is for node %s", e.Placement.Node) })
	}
	// One that met these constraints meets them: what it says of itself now may be a probe that
	// failed, or a device that was unplugged for a moment, and nothing is removed for it.
	met := f.matches == nil || runs && n.Met[e.Deployment] == f.digest
	if n.Inventory == nil {
		if len(f.keys) == 0 && met {
			return ""
		}
		return "the node has not sent its inventory yet"
	}
	for _, key := range f.keys {
		want := e.Placement.Selector[key]
		switch got, ok := n.Inventory.Labels[key]; {
		case !ok:
			return f.reason(key, "", func() string { return fmt.Sprintf("it has no label %s; wanted %s=%s", key, key, want) })
		case got != want:
			return f.reason(key, "="+got, func() string { return fmt.Sprintf("its label %s is %q; wanted %q", key, got, want) })
		}
	}
	if met {
		return ""
	}
	return f.matches.of(i, n)
}

// reason returns a text that is made once.
func (f *filter) reason(key, value string, text func() string) string {
	at := [2]string{key, value}
	if f.reasons[at] == "" {
		f.reasons[at] = text()
	}
	return f.reasons[at]
}

// of returns why the i-th node does not meet the constraints; "": it does.
func (m *matches) of(i int, n *Node) string {
	if !m.asked[i] {
		m.asked[i] = true
		if ok, why := eligible.Match(&m.constraints, capabilities(*n)); !ok {
			m.why[i] = why
		}
	}
	return m.why[i]
}
