package desired

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
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
	if quoted := strconv.Quote(file); quoted != `"`+file+`"` || strings.TrimSpace(file) != file {
		file = quoted
	}
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

// leftovers looks for what may be one of the files of deployments that are missing.
func (l *Loop) leftovers(s Snapshot, removed removals, fresh []proposal.Removal) *layout.Leftovers {
	t := layout.Tree{
		Files: s.Files, Blobs: s.Blobs, Commits: s.Commits, Age: removed.age, Since: -1, Refused: func(p string) bool { return l.refused(s, p) },
	}
	if followed, ok := removed.age[l.head]; ok {
		t.Since = followed - 1
	}
	oldest := -1
	for _, r := range fresh {
		p := deploymentFile(r.Site, r.Deployment)
		if by, ok := removed.byPath[cmp.Or(s.Origins[p], p)]; ok {
			oldest = max(oldest, removed.age[by.Commit])
		}
	}
	return layout.LeftoversOf(t, oldest)
}

// refused reports whether the CO does not read a file that looks as if it were meant for it, or refuses it.
func (l *Loop) refused(s Snapshot, p string) bool {
	return l.parsed[p].err != nil || layout.Unread(p, s.Files[p]) != ""
}

// explainLeft holds a removal where another file may be the one that is missing, and makes an event for that file.
func (l *Loop) explainLeft(ctx context.Context, r *proposal.Removal, s Snapshot, m layout.Missing, left suspects) error {
	m.Commit, m.Site = r.Commit, r.Site
	p := left.files.Of(m)
	if p == "" || r.Confirmed {
		return nil
	}
	r.Cause = proposal.Unreadable
	return l.notice(ctx, fleet.Event{Kind: fleet.FileIgnored, Message: ignored(p, s.Commits[p], cmp.Or(layout.Stray(p),
		fmt.Sprintf("it may be %s, which is missing; the CO reads %s only", m.Path, layout.Places)))})
}
