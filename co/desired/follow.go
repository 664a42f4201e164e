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
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
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
	doc    *v1rc3.Deployment
	err    error // why doc is nil, or not acceptable
}

// follow compares the repo with the record, site by site.
func (l *Loop) follow(ctx context.Context, s Snapshot, known []protocol.SiteID, out *outcome) {
	files := l.read(ctx, s, out)
	l.reportStray(ctx, s, out)
	l.claimIDs(files)
	bySite := map[protocol.SiteID][]file{}
	for _, site := range known {
		bySite[site] = nil
	}
	for _, f := range files {
		bySite[f.site] = append(bySite[f.site], f)
	}
	review, err := l.review(ctx, s, files)
	if err != nil {
		out.add(err)
		return
	}
	requested, err := l.opts.Positions.Requested(ctx)
	if err != nil {
		out.add(fmt.Errorf("read what was asked for by name: %w", err))
		return
	}
	siteFiles := l.readSites(ctx, s)
	for site := range siteFiles {
		if _, ok := bySite[site]; !ok {
			bySite[site] = nil
		}
	}
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
		if l.sites[site] == nil {
			l.sites[site] = &siteState{}
			l.reportNewSite(ctx, site, out)
		}
		desired, waiting := l.compiled(ctx, site, work[site], out)
		if ctx.Err() != nil {
			return
		}
		if desired, err = review.retain(ctx, site, desired); err != nil {
			out.add(err)
			continue
		}
		if volumes, removes := review.removes[site]; removes {
			// Before each removal, so that nothing is left of one that was interrupted.
			if err := l.opts.Positions.RemoveVolumes(ctx, site, volumes); err != nil {
				out.add(fmt.Errorf("record which volumes of %s are removed: %w", site, err))
				continue
			}
		}
		asked := slices.Contains(requested, site)
		if _, file := siteFiles[site]; asked && !file && len(desired) == 0 {
			removed, err := l.removeSite(ctx, site)
			out.add(err)
			if removed || err != nil {
				continue
			}
		}
		if l.hold(site, waiting) {
			continue
		}
		want := fleet.SiteWant{Site: site, Desired: desired, Data: l.siteData(ctx, site, siteFiles)}
		have := l.sites[site]
		have.overdue = asked
		if have.published && have.unknown == nil && have.is(want) {
			have.followed = true
		} else {
			due = append(due, want)
		}
	}
	out.add(l.save(ctx, s.Commit, due))
}

// removeSite forgets a site whose removal was asked for, if it was, and takes back what was
// published for it.
func (l *Loop) removeSite(ctx context.Context, site protocol.SiteID) (removed bool, err error) {
	if removed, err = l.opts.Positions.RemoveSite(ctx, site); err != nil || !removed {
		return removed, err
	}
	l.log.InfoContext(ctx, "site removed", "site_id", site)
	delete(l.sites, site)
	if err := l.opts.Publish(ctx, site, nil); err != nil {
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

// read parses the deployment files of a snapshot; one that did not change since the
// last reconcile is not parsed again.
func (l *Loop) read(ctx context.Context, s Snapshot, out *outcome) []file {
	next := map[string]file{}
	paths := slices.AppendSeq(slices.Collect(maps.Keys(s.Files)), maps.Keys(s.Skipped))
	slices.Sort(paths)
	var files []file
	for _, p := range paths {
		parts := strings.Split(p, "/")
		if !isDeployment(parts) {
			continue
		}
		f := file{path: p, commit: s.Commits[p], blob: s.Blobs[p]}
		if last, ok := l.parsed[p]; ok && last.blob == f.blob && s.Skipped[p] == "" {
			last.commit = f.commit
			f = last
		} else {
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
	if f.doc, f.err = v1rc3.ParseDeployment(s.Files[f.path]); f.err == nil {
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
			if f.doc == nil || f.err != nil || (recorded && l.recordedAs(f) != f.doc.ID) {
				continue
			}
			first, claimed := owner[f.doc.ID]
			switch {
			case !claimed:
				owner[f.doc.ID] = i
			case first != i:
				f.err = v1rc3.Problems{{Path: "id", Message: fmt.Sprintf("%s is the id of %s: give this deployment a UUID of its own", f.doc.ID, files[first].path)}}
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

// A siteWork is what is desired at a site, as far as its files are compiled.
type siteWork struct {
	files   []file
	desired []fleet.Desired
	errs    []error
	left    atomic.Int32  // files that are not compiled yet
	done    chan struct{} // closed when none is left
}

func (w *siteWork) ready() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// compileAhead begins to compile what changed, in the order of the sites. done waits until
// nothing is compiled any more.
func (l *Loop) compileAhead(ctx context.Context, sites []protocol.SiteID, bySite map[protocol.SiteID][]file) (work map[protocol.SiteID]*siteWork, done func()) {
	type job struct {
		w *siteWork
		i int
	}
	var jobs []job
	work = make(map[protocol.SiteID]*siteWork, len(sites))
	for _, site := range sites {
		files := bySite[site]
		w := &siteWork{files: files, desired: make([]fleet.Desired, len(files)), errs: make([]error, len(files)), done: make(chan struct{})}
		for i, f := range files {
			have, ok := l.have(site, f.name)
			// The same commit is the same file; what was compiled from it stays.
			if ok && have.Commit == f.commit && have.Problem == "" && have.Entry.Digest != "" && f.err == nil {
				w.desired[i] = have
				continue
			}
			w.left.Add(1)
			jobs = append(jobs, job{w, i})
		}
		if w.left.Load() == 0 {
			close(w.done)
		}
		work[site] = w
	}
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(compilers, len(jobs)) {
		group.Go(func() {
			for n := next.Add(1); n <= int64(len(jobs)); n = next.Add(1) {
				j := jobs[n-1]
				j.w.desired[j.i], j.w.errs[j.i] = l.compile(ctx, j.w.files[j.i])
				if j.w.left.Add(-1) == 0 {
					close(j.w.done)
				}
			}
		})
	}
	return work, group.Wait
}

// compiled waits until the files of a site are compiled. It returns what is desired there,
// sorted by name, and whether something is missing from it because a part is away.
func (l *Loop) compiled(ctx context.Context, site protocol.SiteID, w *siteWork, out *outcome) (desired []fleet.Desired, waiting bool) {
	<-w.done // each compilation is bounded
	files, desired, errs := w.files, w.desired, w.errs
	for i, err := range errs {
		if err == nil {
			continue
		}
		have, known := l.have(site, files[i].name)
		desired[i] = files[i].keep(have)
		switch kind := protocol.KindOf(err); {
		case kind == protocol.Unavailable, errors.Is(err, context.DeadlineExceeded), ctx.Err() != nil:
			// Nothing is wrong with the file. What is recorded stays as it is, and its
			// older commit says that this one is still to be compiled.
			if known {
				desired[i] = have
			}
			waiting = waiting || have.Entry.Digest == ""
			desired[i].Waiting, desired[i].Problem = true, waits(files[i], have, err)
			if l.sites[site].fresh() {
				// Its first message may be held back, and is then not recorded.
				out.add(l.notice(ctx, fleet.Event{
					Kind: fleet.DeploymentWaiting, Site: site, Deployment: files[i].name, Message: desired[i].Problem,
				}))
			}
			out.add(fmt.Errorf("compile %s: %w", files[i].path, err))
		default:
			desired[i].Problem = describe(files[i], err)
			// Many registries say Denied of what is not there, and a right may be given.
			out.missing = out.missing || kind == protocol.NotFound || kind == protocol.Denied
			if desired[i].Problem != have.Problem {
				l.log.WarnContext(ctx, "deployment file is invalid", "site_id", site, "deployment_id", files[i].name, "problem", desired[i].Problem)
			}
		}
	}
	slices.SortFunc(desired, byName)
	return desired, waiting
}

func byName(a, b fleet.Desired) int { return strings.Compare(string(a.Name), string(b.Name)) }

// compile makes the entry of a file.
func (l *Loop) compile(ctx context.Context, f file) (d fleet.Desired, err error) {
	if f.err != nil {
		return d, f.err
	}
	ctx, cancel := context.WithTimeout(ctx, l.opts.CompileTimeout)
	defer cancel()
	defer func() {
		// One file must never stop the others, whatever a parser makes of it.
		if p := recover(); p != nil {
			err = protocol.Errorf(protocol.Internal, "the compiler failed: %v", p)
		}
	}()
	if l.opts.Validate != nil {
		if err := l.opts.Validate(ctx, f.path, f.commit, f.doc); err != nil {
			return d, err
		}
	}
	entry, spec, err := l.opts.Compile(ctx, f.doc)
	if err != nil {
		return d, err
	}
	d = f.keep(fleet.Desired{})
	d.Entry = entry
	d.App, d.AppVersion, d.Profile = spec.App, spec.AppVersion, spec.Profile
	return d, nil
}

// keep returns the desired state of a deployment whose file does not compile: the
// recorded one.
func (f *file) keep(have fleet.Desired) fleet.Desired {
	d := have
	d.Site, d.Name, d.Commit = f.site, f.name, f.commit
	if f.doc == nil {
		return d
	}
	if d.ID == "" {
		d.ID = f.doc.ID
	}
	if d.App == "" {
		d.App = f.doc.Spec.ApplicationID
		if c := f.doc.Spec.Colony; c != nil {
			d.AppVersion, d.Profile = c.ApplicationVersion, c.Profile
		}
	}
	return d
}

// describe words what is wrong with a file, in one line. It names the commit, so that
// the same mistake in another commit is reported once more. What a registry or a file put into
// the error must be text that the record can hold, or the whole site would stand still.
func describe(f file, err error) string {
	return fmt.Sprintf("%s at commit %.12s: %s", f.path, f.commit, oneLine(err))
}

func oneLine(err error) string {
	return strings.ToValidUTF8(strings.NewReplacer("\n", "; ", "\x00", "\uFFFD").Replace(err.Error()), "\uFFFD")
}

// waits words why a file is not compiled yet, although nothing is known to be wrong with
// it. The text stays while the file does, whatever the next try says: errors of a network
// name ports, and each new text would be an event.
func waits(f file, have fleet.Desired, err error) string {
	front := describe(f, errors.New("waits, and is tried again: "))
	if strings.HasPrefix(have.Problem, front) {
		return have.Problem
	}
	return front + oneLine(err)
}

// is reports whether what is recorded of a site is what is wanted, and nobody asked for more.
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
		s.followed, s.unknown = true, nil
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
