package lint

import (
	"path"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/repo/layout"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/protocol"
)

// repoFile judges a file by where it is in the folder, which is a deployments repo where repo is set: deployments are judged by
// themselves.
func (l *linter) repoFile(p string, repo bool) {
	if path.Base(p) == "margo.yml" {
		l.add(p, 0, true, "it is not read: an application is described in %s", applicationFile)
	}
	top, _, below := strings.Cut(p, "/")
	inside := below && slices.Contains(layout.Folders, top)
	if why := layout.Stray(p); why != "" && (inside || repo && !below) {
		yaml := strings.HasSuffix(p, ".yaml") || strings.HasSuffix(p, ".yml")
		l.add(p, 0, !inside || !yaml, "the CO ignores it: %s", why) // what is no YAML may be meant to be ignored
		return
	}
	if !inside {
		return // it may be of a package
	}
	if folder, ok := sitefile.SiteOf(p); ok {
		if raw, ok := l.read(p); ok {
			_, err := sitefile.Parse(protocol.SiteID(folder), raw)
			l.problems(p, err)
		}
	}
	name, site, ok := fleetfile.Of(p)
	if !ok {
		return
	}
	raw, ok := l.read(p)
	if !ok {
		return
	}
	var err error
	if site == "" {
		_, err = fleetfile.Parse(protocol.DeploymentName(name), raw)
	} else {
		_, err = fleetfile.ParseException(protocol.SiteID(site), raw)
	}
	l.problems(p, err)
}
