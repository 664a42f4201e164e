package access

import (
	"regexp"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// groupMark begins an entry of a list of sites that is a group.
const groupMark = "@"

var groupForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// A SiteGroup is sites under one name, which grants name as @name.
type SiteGroup struct {
	Name  string   `json:"name"`
	Sites []string `json:"sites" doc:"names of sites, or how names begin with a * after it"`
}

// NewSiteGroup returns a group of sites. Errors are of kind Invalid and say what is wanted.
func NewSiteGroup(name string, sites []string) (SiteGroup, error) {
	if !groupForm.MatchString(name) {
		return SiteGroup{}, protocol.Errorf(protocol.Invalid, "group %q: want 1 to 63 lower-case letters, digits, and - between them", name)
	}
	set, err := siteset.Parse(sites)
	switch {
	case err != nil:
		return SiteGroup{}, err
	case set.All():
		return SiteGroup{}, protocol.Errorf(protocol.Invalid, "group %s: want at least one site; a role for all sites names no group", name)
	}
	return SiteGroup{name, set.Entries()}, nil
}

// ParseSites checks a list of sites and groups of them, as a grant has it, and returns it sorted, each entry once. Nil is all
// sites. Errors are of kind Invalid and name the entry.
func ParseSites(list []string) ([]string, error) {
	if list != nil && len(list) == 0 { // as of an empty variable of a shell
		return nil, protocol.Errorf(protocol.Invalid, "sites: the list has no site; leave it out for all sites")
	}
	var groups, others []string
	for _, e := range list {
		name, group := strings.CutPrefix(e, groupMark)
		switch {
		case !group:
			others = append(others, e)
		case groupForm.MatchString(name):
			groups = append(groups, e)
		default:
			return nil, protocol.Errorf(protocol.Invalid, "group %q: want @ and the name of a group of sites", e)
		}
	}
	set, err := siteset.Parse(others)
	switch {
	case err != nil:
		return nil, err
	case len(others) > 0 && set.All():
		return nil, nil
	}
	slices.Sort(groups)
	return append(slices.Compact(groups), set.Entries()...), nil
}

// GroupsIn returns the names of the groups in a list of sites.
func GroupsIn(list []string) (names []string) {
	for _, e := range list {
		if name, group := strings.CutPrefix(e, groupMark); group {
			names = append(names, name)
		}
	}
	return names
}

// Within returns p with the sites of its groups in their place. A group that does not exist has no site, and a role without
// any is left out.
func (p Principal) Within(groups map[string][]string) Principal {
	if !slices.ContainsFunc(p.Grants(), func(g Grant) bool { return len(GroupsIn(g.Sites)) > 0 }) {
		return p
	}
	var grants []Grant
	for _, g := range p.Grants() {
		if len(g.Sites) == 0 {
			grants = append(grants, g)
			continue
		}
		var sites []string
		for _, e := range g.Sites {
			if name, group := strings.CutPrefix(e, groupMark); group {
				sites = append(sites, groups[name]...)
			} else {
				sites = append(sites, e)
			}
		}
		if len(sites) > 0 {
			grants = append(grants, Grant{g.Role, sites})
		}
	}
	p.SetGrants(grants)
	return p
}
