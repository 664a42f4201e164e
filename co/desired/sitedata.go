package desired

import (
	"context"
	"errors"
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

// siteData returns what is desired of a site's machine data and devices: what its file says, or,
// where the file is bad, what is recorded.
func (l *Loop) siteData(ctx context.Context, site protocol.SiteID, files map[protocol.SiteID]siteFile) fleet.SiteData {
	f, ok := files[site]
	if !ok {
		return fleet.SiteData{}
	}
	if f.err == nil {
		return fleet.SiteData{Commit: f.commit, Rules: f.content.Rules, Devices: f.content.Devices}
	}
	have := l.sites[site].data
	want := fleet.SiteData{Commit: f.commit, Rules: have.Rules, Devices: have.Devices, Problem: describe(f.file, f.err)}
	if want.Problem != have.Problem {
		l.log.WarnContext(ctx, "site file is invalid", "site_id", site, "problem", want.Problem)
	}
	return want
}
