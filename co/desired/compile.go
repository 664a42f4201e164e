package desired

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

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
		w    *siteWork
		i    int
		have fleet.Desired // what is recorded
	}
	var jobs []job
	work = make(map[protocol.SiteID]*siteWork, len(sites))
	for _, site := range sites {
		files := bySite[site]
		w := &siteWork{files: files, desired: make([]fleet.Desired, len(files)), errs: make([]error, len(files)), done: make(chan struct{})}
		for i, f := range files {
			have, ok := l.have(site, f.name)
			if ok && compiledAt(&have, f.commit) && f.err == nil {
				w.desired[i] = have
				continue
			}
			w.left.Add(1)
			jobs = append(jobs, job{w, i, have})
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
				j.w.desired[j.i], j.w.errs[j.i] = l.compile(ctx, j.w.files[j.i], &j.have)
				if j.w.left.Add(-1) == 0 {
					close(j.w.done)
				}
			}
		})
	}
	return work, group.Wait
}

// compiledAt reports whether what is recorded of a deployment was compiled from its file as a commit has it. The same commit is the same
// file; what was compiled from it stays.
func compiledAt(have *fleet.Desired, commit string) bool {
	return have.Commit == commit && have.Problem == "" && have.Entry.Digest != ""
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

// compile makes the entry of a file, of which have is recorded.
func (l *Loop) compile(ctx context.Context, f file, have *fleet.Desired) (d fleet.Desired, err error) {
	if f.err != nil {
		return d, f.err
	}
	ctx, cancel := context.WithTimeout(ctx, l.opts.CompileTimeout)
	defer cancel()
	defer func() {
		// One file must never stop the others, even if a parser panics on it.
		if p := recover(); p != nil {
			err = protocol.Errorf(protocol.Internal, "the compiler failed: %v", p)
		}
	}()
	doc := f.doc
	if l.opts.Resolve != nil {
		if doc, err = l.opts.Resolve(ctx, f.path, f.commit, doc); err != nil {
			return d, err
		}
	}
	entry, spec, err := l.opts.Compile(ctx, f.path, f.commit, doc)
	if err != nil {
		return d, err
	}
	if recorded := have.Entry.Digest != "" && have.App == spec.App && have.AppVersion == spec.AppVersion; l.opts.Admit != nil && !recorded {
		if err := l.opts.Admit(ctx, f.site, f.name, doc); err != nil {
			return d, err
		}
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
	return strings.ToValidUTF8(strings.NewReplacer(":\n", ": ", "\n", "; ", "\x00", "\uFFFD").Replace(err.Error()), "\uFFFD")
}

// waits describes why a file is not compiled yet, although no fault of it is known. The text stays
// as long as the file does: errors of later tries would name other ports, and each new text would
// be an event.
func waits(f file, have fleet.Desired, err error) string {
	front := describe(f, errors.New("waits, and is tried again: "))
	if strings.HasPrefix(have.Problem, front) {
		return have.Problem
	}
	return front + oneLine(err)
}
