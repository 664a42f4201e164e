package verdict

import (
	"fmt"

	"github.com/colonyfleet/colony/co/fleet"
)

// Nodes says on how many nodes the desired version runs, and on how many it should.
func Nodes(d fleet.Deployment) string { return fmt.Sprintf("%d/%d", d.Installed, d.DesiredNodes) }

// Shorten cuts a text for a table.
func Shorten(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}

// NodesOnline says how many nodes of a site are online; "?" while the site is offline, as it is
// then unknown.
func NodesOnline(s fleet.Site) string {
	if s.NodesUnknown > 0 {
		return fmt.Sprintf("?/%d", s.Nodes)
	}
	return fmt.Sprintf("%d/%d", s.NodesOnline, s.Nodes)
}

// CountNodes says how many nodes there are, how many are online, and of how many it is unknown
// because their site is offline.
func CountNodes(all, online, unknown int) string {
	text := fmt.Sprintf("%d, %d online", all, online)
	if unknown > 0 {
		text += fmt.Sprintf(", %d unknown (site offline)", unknown)
	}
	return text
}
