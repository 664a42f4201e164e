package lo

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/lo/data/downlink"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/datarule"
)

// maxReason bounds what an event says of why something was refused, in bytes.
const maxReason = 4 << 10

// A ruleFault is why the data rules of a desired state are not wholly in force. Its
// methods may be called concurrently.
type ruleFault struct {
	mu  sync.Mutex           // protects what follows
	of  protocol.SiteDesired // whose rules were asked for last
	why string               // ""
}

// asked says that the rules of m are to come into force.
func (f *ruleFault) asked(m protocol.SiteDesired) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of.Epoch != m.Epoch || f.of.Generation != m.Generation {
		f.why = ""
	}
	f.of = m
}

// found says why they did not, and reports whether that is news.
func (f *ruleFault) found(why string) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	news = f.why == ""
	f.why = why
	return news
}

func (f *ruleFault) get() (of protocol.SiteDesired, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of, f.why
}

// refuse reports data rules that are not wholly in force, once a generation.
func (l *loop) refuse(ctx context.Context, now time.Time) error {
	m, why := l.site.ruleFault.get()
	if why == "" || l.state.RefusedEpoch == m.Epoch && l.state.RefusedGeneration == m.Generation {
		return nil
	}
	reason := "data rules: " + why
	f := siteFact(protocol.DesiredRefused, &protocol.Adopted{
		V: protocol.Version, Generation: m.Generation, Commit: m.Commit, Reason: strings.ToValidUTF8(reason[:min(len(reason), maxReason)], ""),
	}, now)
	f.Key = "data_rules"
	if _, err := l.site.append(ctx, []nodes.Fact{f}); err != nil {
		return err
	}
	l.state.RefusedEpoch, l.state.RefusedGeneration = m.Epoch, m.Generation
	return l.site.store.SaveSite(l.state)
}

// directRules tells the way down which rules there are. Where they are not valid
// those before stay in force, as on the way up.
func directRules(down *downlink.Downlink, m protocol.SiteDesired) {
	if len(datarule.Validate(m.Data)) == 0 {
		down.SetRules(m.Data)
	}
}
