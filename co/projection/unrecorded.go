package projection

import (
	"slices"

	"github.com/colonyfleet/colony/protocol"
)

// unrecorded notes the deployments that a node has begun, or ceased, to have containers of without a record: what no status reports
// is to be shown all the same.
func (f *fold) unrecorded(was, is *protocol.Inventory) {
	var before, now []protocol.DeploymentName
	if was != nil {
		before = was.Unknown
	}
	if is != nil {
		now = is.Unknown
	}
	for _, name := range slices.Concat(before, now) {
		if _, err := protocol.ParseDeploymentName(string(name)); err != nil || slices.Contains(before, name) == slices.Contains(now, name) {
			continue
		}
		if f.Unrecorded == nil {
			f.Unrecorded = map[protocol.DeploymentName]bool{}
		}
		f.Unrecorded[name] = true
		f.app(name, App{})
	}
}
