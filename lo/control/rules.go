package control

import (
	"context"
	"strings"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// maxReason bounds the reason in a DesiredRefused event, in bytes; the rest is cut.
const maxReason = 4 << 10

// DataRules returns the data rules of the desired state in force; ok is false if
// there is none. The caller puts them into force, and calls RulesFault if it cannot.
func (s *Site) DataRules() (rules []protocol.DataRule, ok bool) {
	m, ok := s.opts.Desired.Current()
	s.ruleFault.Request(m)
	return m.Data, ok
}

// RulesFault says why what DataRules returned last is not wholly in force. The Loop
// reports the first reason to the CO.
func (s *Site) RulesFault(reason string) {
	if s.ruleFault.Set(reason) {
		s.due.Notify()
	}
}

// reportRuleFault reports data rules that are not wholly in force, once for each
// position of the desired state.
func (l *Loop) reportRuleFault(ctx context.Context, now time.Time) error {
	m, reason := l.site.ruleFault.Get()
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
