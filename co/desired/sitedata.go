package desired

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/protocol"
)

// A siteFile is one site.yaml.
type siteFile struct {
	file    // doc and name stay empty
	content sitefile.Content
}

// readSites parses the files of the sites of a snapshot. One that did not change
// since the last reconcile is not parsed again.
func (l *Loop) readSites(ctx context.Context, s Snapshot) map[protocol.SiteID]siteFile {
	next, out := map[string]siteFile{}, map[protocol.SiteID]siteFile{}
	for _, p := range slices.AppendSeq(slices.Collect(maps.Keys(s.Files)), maps.Keys(s.Skipped)) {
		folder, ok := sitefile.SiteOf(p)
		if !ok {
			continue
		}
		f := siteFile{file: file{path: p, commit: s.Commits[p], blob: s.Blobs[p]}}
		last, known := l.parsedSites[p]
		if known && last.blob == f.blob && s.Skipped[p] == "" {
			last.commit = f.commit
			f = last
		} else {
			f.parse(folder, s)
		}
		if s.Skipped[p] == "" {
			next[p] = f // what was skipped has no content to know it by
		}
		if f.site == "" {
			if !known {
				l.log.WarnContext(ctx, "site file is in a folder that no site can have", "path", p, "err", f.err)
			}
			continue
		}
		out[f.site] = f
	}
	l.parsedSites = next
	return out
}

func (f *siteFile) parse(folder string, s Snapshot) {
	site, err := protocol.ParseSiteID(folder)
	if err != nil {
		f.err = err
		return
	}
	f.site = site
	if reason := s.Skipped[f.path]; reason != "" {
		f.commit, f.err = s.Commit, errors.New(reason)
		return
	}
	f.content, f.err = sitefile.Parse(site, s.Files[f.path])
}

// siteData returns the desired state of a site's file: its content, or, if the file is bad or
// missing, the last recorded content. Only a file without rules removes them: a missing file may be
// a mistake, such as a renamed one, or a rewritten history.
func (l *Loop) siteData(ctx context.Context, site protocol.SiteID, files map[protocol.SiteID]siteFile) fleet.SiteData {
	f, ok := files[site]
	have := l.sites[site].data
	switch {
	case ok && f.err == nil:
		return fleet.SiteData{Commit: f.commit, Rules: f.content.Rules, Devices: f.content.Devices, Exec: f.content.Exec, Maintenance: f.content.Maintenance}
	case !ok && !have.InForce():
		return fleet.SiteData{}
	case !ok:
		windows := 0
		if have.Maintenance != nil {
			windows = len(have.Maintenance.Windows)
		}
		f = siteFile{file: file{path: sitefile.Path(site), commit: have.Commit}}
		programs := "programs in containers stay refused"
		if have.Exec {
			programs = "programs in containers stay allowed"
		}
		f.err = fmt.Errorf("it is missing: its %d data rules, %d device accounts and %d maintenance windows stay in force, and %s, until it is back, or a file without them removes them", len(have.Rules), len(have.Devices), windows, programs)
	}
	want := fleet.SiteData{Commit: f.commit, Rules: have.Rules, Devices: have.Devices, Exec: have.Exec, Maintenance: have.Maintenance, Problem: describe(f.file, f.err)}
	if want.Problem != have.Problem {
		l.log.WarnContext(ctx, "site file is invalid", "site_id", site, "problem", want.Problem)
	}
	return want
}
