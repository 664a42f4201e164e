package desired

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// compilers is how many files are compiled at a time: most of it is waiting for
// registries.
const compilers = 8

// A file is one deployment.yaml.
type file struct {
	path   string
	site   protocol.SiteID
	name   protocol.DeploymentName
	commit string
	digest protocol.Digest // of the content
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
	siteFiles := l.readSites(ctx, s)
	for site := range siteFiles {
		if _, ok := bySite[site]; !ok {
			bySite[site] = nil
		}
	}
	for _, site := range slices.Sorted(maps.Keys(bySite)) {
		if ctx.Err() != nil {
			return
		}
		if l.sites[site] == nil {
			l.sites[site] = &siteState{}
			l.reportNewSite(ctx, site, out)
		}
		desired, waiting := l.compileAll(ctx, site, bySite[site], out)
		if ctx.Err() != nil {
			return
		}
		if !l.hold(site, waiting) {
			out.add(l.save(ctx, site, s.Commit, desired, l.siteData(ctx, site, siteFiles)))
		}
	}
}

// hold reports whether the first message of a site is held back, because a registry is
// away. The site may run what the CO does not know of, after the loss of its database,
// and a message without it would remove it. The wait is bounded: a registry that is
// never comes back must not hold back the deployments that do not need it.
func (l *Loop) hold(site protocol.SiteID, waiting bool) bool {
	s := l.sites[site]
	if !waiting || s.message.Generation > 0 {
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
		f := file{path: p, commit: s.Commits[p], digest: protocol.DigestOf(s.Files[p])}
		if last, ok := l.parsed[p]; ok && last.digest == f.digest && s.Skipped[p] == "" {
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

// compileAll returns what is desired at a site, sorted by name, and whether something
// is missing from it because a part is away.
func (l *Loop) compileAll(ctx context.Context, site protocol.SiteID, files []file, out *outcome) (desired []fleet.Desired, waiting bool) {
	desired, errs := make([]fleet.Desired, len(files)), make([]error, len(files))
	var group errgroup.Group
	group.SetLimit(compilers)
	for i, f := range files {
		have, ok := l.have(site, f.name)
		// The same commit is the same file; what was compiled from it stays.
		if ok && have.Commit == f.commit && have.Problem == "" && have.Entry.Digest != "" && f.err == nil {
			desired[i] = have
			continue
		}
		group.Go(func() error {
			desired[i], errs[i] = l.compile(ctx, f)
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
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
			if l.sites[site].message.Generation == 0 {
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

// save records what is desired at a site, where that changed, and publishes it.
func (l *Loop) save(ctx context.Context, site protocol.SiteID, commit string, desired []fleet.Desired, data fleet.SiteData) error {
	s := l.sites[site]
	same := slices.EqualFunc(desired, s.desired, func(a, b fleet.Desired) bool { return reflect.DeepEqual(a, b) })
	if !same || !reflect.DeepEqual(data, s.data) {
		message, changed, err := l.opts.Store.SaveDesired(ctx, site, commit, desired, data)
		if err != nil {
			return fmt.Errorf("record desired state of %s: %w", site, err)
		}
		s.desired, s.data, s.message = desired, data, message
		if changed {
			s.published = false
			l.log.InfoContext(ctx, "desired state changed", "site_id", site, "generation", message.Generation, "commit", commit,
				"deployments", len(desired), "data_rules", len(data.Rules))
		}
	}
	if s.message.Generation == 0 && (len(desired) > 0 || data.Problem != "") {
		// Files stand there, and none of them was ever compiled into this record. After
		// its loss the site may run them: "run nothing" is not what git says.
		return nil
	}
	return l.publish(ctx, site)
}
