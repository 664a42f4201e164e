package lint

import (
	"slices"

	"github.com/colonyfleet/colony/co/compiler/packagecheck"
	"github.com/colonyfleet/colony/co/registry/graph"
	"github.com/colonyfleet/colony/protocol"
)

// images warns of images, of services that run, that a CO reads only where its configuration names
// their registry. Those named by digest are pulled by nodes alone.
func (l *linter) images(file string, c protocol.Component, images []packagecheck.Image) {
	for _, i := range packagecheck.Lookups(c, images) {
		host := graph.Host(i.Known)
		if i.Pinned() || slices.Contains(l.registries, host) {
			continue
		}
		defaults := ""
		if !i.Settled {
			defaults = "; so it is with the defaults of the parameters"
		}
		l.lines(file, i.At+": "+i.Known+" comes from "+host+": a CO imports it only where import.registries of its configuration names "+host+
			"; else copy the image into the CO's registry, or name it with its digest"+defaults, true)
	}
}
