package desired

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/repo/layout"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// compilers is how many files are compiled at a time: most of it is waiting for
	// registries.
	compilers = 16
	// saveAtOnce is how many sites are recorded in one transaction, at most.
	saveAtOnce = 100
)

// A file is one deployment.yaml.
type file struct {
	path   string
	site   protocol.SiteID
	name   protocol.DeploymentName
	commit string
	blob   string // of the content
	id     string // of the deployment, as the document or the record has it; empty: not known
	doc    *v1rc3.Deployment
	err    error // why doc is nil, or not acceptable
	// compiled says that the record has what this content compiles to: it is not parsed, and doc is nil.
	compiled bool
}

// A comparison is that of one commit of the repo with the record.
type comparison struct {
	snapshot  Snapshot
	review    *review
	requested map[protocol.SiteID]bool // with requests that were not taken up; true: for its removal, among others
	siteFiles map[protocol.SiteID]siteFile
	out       *outcome
}

// follow compares the repo with the record, site by site.
func (l *Loop) follow(ctx context.Context, c comparison, known []protocol.SiteID) {
	s, out := c.snapshot, c.out
	files := l.read(ctx, s, out)
	l.reportStray(ctx, s, out)
	l.claimIDs(files)
	review, err := l.review(ctx, s, files, c.requested)
	if err != nil {
		out.add(err)
		return
	}
	c.review, c.siteFiles = review, l.readSites(ctx, s)
	bySite := c.bySite(known, files)
	sites := slices.Sorted(maps.Keys(bySite))
	work, done := l.compileAhead(ctx, sites, bySite)
	defer done()
	var due []fleet.SiteWant
	for _, site := range sites {
		if len(due) >= saveAtOnce || len(due) > 0 && !work[site].ready() {
			out.add(l.save(ctx, s.Commit, due)) // what is compiled does not wait for what is not
			due = nil
		}
		if ctx.Err() != nil {
			return
		}
		want, isDue := l.followSite(ctx, &c, site, work[site])
		if ctx.Err() != nil {
			return
		}
		if isDue {
			due = append(due, want)
		}
	}
	out.add(l.save(ctx, s.Commit, due))
}

// followSite compares one site. It returns what is to be saved of it, if there is something.
func (l *Loop) followSite(ctx context.Context, c *comparison, site protocol.SiteID, work *siteWork) (want fleet.SiteWant, due bool) {
	if l.sites[site] == nil {
		l.sites[site] = &siteState{}
		l.reportNewSite(ctx, site, c.out)
	}
	desired, waiting := l.compiled(ctx, site, work, c.out)
	if ctx.Err() != nil {
		return want, false
	}
	desired, err := c.review.retain(ctx, site, desired)
	if err != nil {
		c.out.add(err)
		return want, false
	}
	if volumes, removes := c.review.removes[site]; removes {
		// Before each removal, so that nothing is left of one that was interrupted.
		if err := l.opts.Positions.RemoveVolumes(ctx, site, volumes); err != nil {
			c.out.add(fmt.Errorf("record which volumes of %s are removed: %w", site, err))
			return want, false
		}
	}
	removal, asked := c.requested[site]
	_, file := c.siteFiles[site]
	if removal && !file && !slices.ContainsFunc(desired, stays) {
		removed, err := l.removeSite(ctx, site)
		c.out.add(err)
		if !removed && err == nil {
			c.out.repeat = true // its LO has connected: what went with the site is held
			l.Notify()
		}
		return want, false
	}
	if l.hold(site, waiting) {
		return want, false
	}
	want = fleet.SiteWant{Site: site, Desired: desired, Data: l.siteData(ctx, site, c.siteFiles), Files: removal && (file || slices.ContainsFunc(desired, stays))}
	have := l.sites[site]
	have.overdue = asked
	if have.published && have.unknown == nil && have.is(want) {
		have.followed = c.snapshot.Commit
		return want, false
	}
	return want, true
}

// stays reports whether a deployment is in the way of a removal of its site: not one that is held because it went with that, whose request comes
// after its commit, nor one whose file is not there and may be of before what the site runs.
func stays(d fleet.Desired) bool {
	switch proposal.Cause(d.Hold.Cause) { //nolint:exhaustive // the others stay
	case proposal.SiteRemoved, proposal.Unheard, proposal.SetBack, proposal.Forgotten:
		return false
	}
	return true
}

// bySite returns the files of each site: of those that are known, and of those that have any.
func (c *comparison) bySite(known []protocol.SiteID, files []file) map[protocol.SiteID][]file {
	out := map[protocol.SiteID][]file{}
	for _, site := range known {
		out[site] = nil
	}
	for _, f := range files {
		out[f.site] = append(out[f.site], f)
	}
	for site := range c.siteFiles {
		if _, ok := out[site]; !ok {
			out[site] = nil
		}
	}
	return out
}

// removeSite forgets a site whose removal was asked for, if it was, and takes back what was
// published for it.
func (l *Loop) removeSite(ctx context.Context, site protocol.SiteID) (removed bool, err error) {
	if removed, err = l.opts.Positions.RemoveSite(ctx, site); err != nil || !removed {
		return removed, err
	}
	l.log.InfoContext(ctx, "site removed", "site_id", site)
	delete(l.sites, site)
	if l.opts.Removed != nil {
		l.opts.Removed(site)
	}
	if err := l.opts.publish(ctx, site, nil); err != nil {
		return true, fmt.Errorf("take back the desired state of %s: %w", site, err)
	}
	return true, nil
}

// hold reports whether the first message of a site is held back, because a registry is
// away. The site may run what the CO does not know of, after the loss of its database,
// and a message without it would remove it. The wait is bounded: a registry that is
// never comes back must not hold back the deployments that do not need it.
func (l *Loop) hold(site protocol.SiteID, waiting bool) bool {
	s := l.sites[site]
	if !waiting || !s.fresh() {
		s.heldSince = time.Time{}
		return false
	}
	if s.heldSince.IsZero() {
		s.heldSince = time.Now()
	}
	return time.Since(s.heldSince) < l.opts.HoldFirst
}

// read parses the deployment files of a snapshot, but for those whose content is compiled in the record; one that
// did not change since the last reconcile is not parsed again.
func (l *Loop) read(ctx context.Context, s Snapshot, out *outcome) []file {
	next := map[string]file{}
	paths := slices.AppendSeq(slices.Collect(maps.Keys(s.Files)), maps.Keys(s.Skipped))
	slices.Sort(paths)
	var files []file
	for _, p := range paths {
		parts := strings.Split(p, "/")
		if !layout.IsDeployment(parts) {
			continue
		}
		f := file{path: p, commit: s.Commits[p], blob: s.Blobs[p]}
		last, ok := l.parsed[p]
		switch {
		case s.Skipped[p] == "" && l.recorded(&f, parts[1], parts[2]):
		case ok && last.blob == f.blob && s.Skipped[p] == "" && !last.compiled:
			last.commit = f.commit
			f = last
		default:
			f.parse(parts[1], parts[2], s)
		}
		next[p] = f
		if f.site == "" {
			// No site or deployment of this name can exist.
			out.add(l.notice(ctx, fleet.Event{Kind: fleet.FileIgnored, Message: ignored(p, f.commit, oneLine(f.err))}))
			continue
		}
		files = append(files, f)
	}
	l.parsed = next
	return files
}

// recorded reports whether the record has what a file compiles to, and fills in what is known of it then. What names it is
// valid, and the commit that changed it last is the one that was compiled.
func (l *Loop) recorded(f *file, site, name string) bool {
	have, ok := l.have(protocol.SiteID(site), protocol.DeploymentName(name))
	if !ok || !compiledAt(&have, f.commit) || have.ID == "" {
		return false
	}
	f.site, f.name, f.id, f.compiled = have.Site, have.Name, have.ID, true
	return true
}

func (f *file) parse(site, name string, s Snapshot) {
	siteID, siteErr := protocol.ParseSiteID(site)
	deployment, nameErr := protocol.ParseDeploymentName(name)
	if err := errors.Join(siteErr, nameErr); err != nil {
		f.err = err
		return
	}
	f.site, f.name = siteID, deployment
	if reason := s.Skipped[f.path]; reason != "" {
		f.commit, f.err = s.Commit, errors.New(reason)
		return
	}
	if f.doc, f.err = v1rc3.ParseDeployment(s.Files[f.path]); f.doc != nil {
		f.id = f.doc.ID
	}
	if f.err == nil {
		f.err = f.check()
	}
}

// check holds a deployment against the folder that it is in.
func (f *file) check() error {
	site, node, ok := f.doc.Device()
	switch {
	case !ok:
		return v1rc3.Problems{{Path: "metadata.deviceId", Message: fmt.Sprintf("%q: want %s/<node> or %s/*", f.doc.Metadata.DeviceID, f.site, f.site)}}
	case site != string(f.site):
		return v1rc3.Problems{{Path: "metadata.deviceId", Message: fmt.Sprintf("the site is %q, and the file is in the folder of %q", site, f.site)}}
	case f.doc.Metadata.Name != string(f.name):
		return v1rc3.Problems{{Path: "metadata.name", Message: fmt.Sprintf("the name is %q, and the file is in the folder of %q", f.doc.Metadata.Name, f.name)}}
	}
	if node != "" {
		if _, err := protocol.ParseNodeID(node); err != nil {
			return v1rc3.Problems{{Path: "metadata.deviceId", Message: err.Error()}}
		}
	}
	return nil
}

// claimIDs refuses a file whose Margo id another deployment has already, as after a
// folder was copied by hand: to Margo the two would be one.
func (l *Loop) claimIDs(files []file) {
	owner := map[string]int{}
	for _, recorded := range []bool{true, false} {
		for i := range files {
			f := &files[i]
			if f.id == "" || f.err != nil || (recorded && l.recordedAs(f) != f.id) {
				continue
			}
			first, claimed := owner[f.id]
			switch {
			case !claimed:
				owner[f.id] = i
			case first != i:
				f.err = v1rc3.Problems{{Path: "id", Message: fmt.Sprintf("%s is the id of %s: give this deployment a UUID of its own", f.id, files[first].path)}}
			}
		}
	}
}

func (l *Loop) recordedAs(f *file) string {
	if have, ok := l.have(f.site, f.name); ok {
		return have.ID
	}
	return ""
}

// have returns what is recorded of a deployment.
func (l *Loop) have(site protocol.SiteID, name protocol.DeploymentName) (fleet.Desired, bool) {
	s := l.sites[site]
	if s == nil {
		return fleet.Desired{}, false
	}
	i, ok := slices.BinarySearchFunc(s.desired, name, func(d fleet.Desired, n protocol.DeploymentName) int {
		return strings.Compare(string(d.Name), string(n))
	})
	if !ok {
		return fleet.Desired{}, false
	}
	return s.desired[i], true
}

// is reports whether the record of a site equals what is desired, and nothing more was requested.
func (s *siteState) is(want fleet.SiteWant) bool {
	return !s.overdue && slices.EqualFunc(want.Desired, s.desired, func(a, b fleet.Desired) bool { return reflect.DeepEqual(a, b) }) &&
		reflect.DeepEqual(want.Data, s.data)
}

// save records what is desired at some sites, where that changed, and publishes it. The error
// is of the first one with which that failed.
func (l *Loop) save(ctx context.Context, commit string, list []fleet.SiteWant) error {
	var first error
	var changed []fleet.SiteWant
	var followed []fleet.SiteWant
	for _, want := range list {
		s := l.sites[want.Site]
		if s.unknown != nil {
			s.overdue = true
			// Compared with the record as it was, and before the record moves on below it.
			if err := l.raise(ctx, want.Site, *s.unknown); err != nil {
				first = cmp.Or(first, err)
				continue
			}
		}
		if s.is(want) {
			followed = append(followed, want)
		} else {
			changed = append(changed, want)
		}
	}
	if len(changed) > 0 {
		for i, saved := range l.opts.Store.SaveAll(ctx, commit, changed) {
			if saved.Err != nil {
				first = cmp.Or(first, fmt.Errorf("record desired state of %s: %w", changed[i].Site, saved.Err))
				continue
			}
			l.saved(ctx, commit, changed[i], saved)
			followed = append(followed, changed[i])
		}
	}
	var due []protocol.SiteID
	for _, want := range followed {
		s := l.sites[want.Site]
		if s.unknown = nil; !s.awaited { // what is missing is looked at once more when it has reported
			s.followed = commit
		}
		// Where files stand, and none of them was ever compiled into this record, the site may
		// run them after its loss: "run nothing" is not what git says.
		if !s.fresh() || len(want.Desired) == 0 && want.Data.Problem == "" {
			due = append(due, want.Site)
		}
	}
	return cmp.Or(first, l.publish(ctx, due))
}

// saved takes over what was recorded of a site.
func (l *Loop) saved(ctx context.Context, commit string, want fleet.SiteWant, saved fleet.SiteSaved) {
	s := l.sites[want.Site]
	s.desired, s.data, s.overdue = want.Desired, want.Data, false
	s.setMessage(saved.Message)
	if saved.Changed {
		s.published = false
		l.log.InfoContext(ctx, "desired state changed", "site_id", want.Site, "generation", saved.Message.Position.Generation, "commit", commit,
			"deployments", len(want.Desired), "data_rules", len(want.Data.Rules), "devices", len(want.Data.Devices))
	}
}
