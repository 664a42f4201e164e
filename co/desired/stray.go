package desired

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/layout"
	"github.com/colonyfleet/colony/protocol"
)

// reportStray makes an event for each file that looks as if it were meant for the CO and
// that the CO does not read.
func (l *Loop) reportStray(ctx context.Context, s Snapshot, out *outcome) {
	for _, p := range slices.Sorted(maps.Keys(s.Files)) {
		if why := layout.Stray(p); why != "" {
			out.add(l.notice(ctx, fleet.Event{Kind: fleet.FileIgnored, Message: ignored(p, s.Commits[p], why)}))
		}
	}
}

func ignored(file, commit, why string) string {
	return fmt.Sprintf("%s at commit %.12s is ignored: %s", file, commit, why)
}

// reportNewSite makes an event for a site that begins to exist because a folder is named
// so: a mistyped name would be one.
func (l *Loop) reportNewSite(ctx context.Context, site protocol.SiteID, out *outcome) {
	out.add(l.notice(ctx, fleet.Event{Kind: fleet.SiteAdded, Site: site, Message: fmt.Sprintf(
		"the deployments repo has files for site %s, which was not known and whose LO never connected: if the name is mistyped, move the folder", site)}))
}

// notice records an event, unless the same was recorded before.
func (l *Loop) notice(ctx context.Context, e fleet.Event) error {
	key := e.Kind + " " + e.Message
	if l.noticed[key] {
		return nil
	}
	if err := l.opts.Store.Notice(ctx, e); err != nil {
		return fmt.Errorf("record event %s: %w", e.Kind, err)
	}
	l.log.WarnContext(ctx, "the deployments repo needs attention", "kind", e.Kind, "site_id", e.Site, "deployment_id", e.Deployment, "reason", e.Message)
	l.noticed[key] = true
	return nil
}
