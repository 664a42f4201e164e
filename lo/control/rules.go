package control

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// maxReason bounds the reason in a DesiredRefused event, in bytes; the rest is cut.
const maxReason = 4 << 10

// A ruleFault is why the data rules of a desired state are not wholly in force. Its
// methods may be called concurrently.
type ruleFault struct {
	mu     sync.Mutex           // protects what follows
	of     protocol.SiteDesired // whose rules DataRules returned last
	reason string               // "": they are in force, as far as is known
}

// request notes that the rules of m are to come into force.
func (f *ruleFault) request(m protocol.SiteDesired) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of.Position != m.Position {
		f.reason = ""
	}
	f.of = m
}

// set notes why they did not, and reports whether it is the first reason for them.
func (f *ruleFault) set(reason string) (first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first = f.reason == ""
	f.reason = reason
	return first
}

func (f *ruleFault) get() (of protocol.SiteDesired, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of, f.reason
}

// DataRules returns the data rules of the desired state in force; ok is false if
// there is none. The caller puts them into force, and calls RulesFault if it cannot.
func (s *Site) DataRules() (rules []protocol.DataRule, ok bool) {
	m, ok := s.opts.Desired.Current()
	s.ruleFault.request(m)
	return m.Data, ok
}

// RulesFault says why what DataRules returned last is not wholly in force. The Loop
// reports the first reason to the CO.
func (s *Site) RulesFault(reason string) {
	if s.ruleFault.set(reason) {
		s.due.Notify()
	}
}

// reportRuleFault reports data rules that are not wholly in force, once for each
// position of the desired state.
func (l *Loop) reportRuleFault(ctx context.Context, now time.Time) error {
	m, reason := l.site.ruleFault.get()
	if reason == "" || l.state.RulesRefused == m.Position {
		return nil
	}
	reason = "data rules: " + reason
	f := siteFact(protocol.DesiredRefused, "data_rules", &protocol.Adopted{
		V: protocol.Version, Position: m.Position, Commit: m.Commit, Held: m.Held(), Reason: strings.ToValidUTF8(reason[:min(len(reason), maxReason)], ""),
	}, now)
	if _, err := l.site.append(ctx, []nodes.Fact{f}); err != nil {
		return err
	}
	l.state.RulesRefused = m.Position
	return l.site.store.SaveSite(l.state)
}
