package gate

import (
	"context"
	"slices"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/protocol"
)

// A GroupStore is the CO's record of groups of sites. Errors are of the protocol's kinds.
type GroupStore interface {
	// SiteGroups returns all groups, sorted by their names.
	SiteGroups(ctx context.Context) ([]access.SiteGroup, error)
	// PutSiteGroup makes a group, or gives it other sites, and returns those of before; none where it is new. The error is of
	// kind Conflict where there are too many.
	PutSiteGroup(ctx context.Context, g access.SiteGroup) (before []string, err error)
	// RemoveSiteGroup removes a group and returns its sites; NotFound where there is none.
	RemoveSiteGroup(ctx context.Context, name string) (before []string, err error)
}

// siteGroups are the sites by the name of their group.
func (g *Gate) siteGroups() map[string][]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.groups
}

// readGroups reads the groups of sites again. Requests whose sites are others then are ended by read and endPersons.
func (g *Gate) readGroups(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	g.reading.Lock() // so that no other reading, which may be older, replaces this one
	defer g.reading.Unlock()
	list, err := g.o.Groups.SiteGroups(ctx)
	if err != nil {
		return err
	}
	groups := make(map[string][]string, len(list))
	for _, each := range list {
		groups[each.Name] = each.Sites
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.groups = groups
	return nil
}

// SiteGroups returns all groups, sorted by their names.
func (g *Gate) SiteGroups(ctx context.Context) ([]access.SiteGroup, error) {
	return g.o.Groups.SiteGroups(ctx)
}

// PutSiteGroup makes a group, or gives it other sites, here at once, and returns those of before.
func (g *Gate) PutSiteGroup(ctx context.Context, group access.SiteGroup) (before []string, err error) {
	if before, err = g.o.Groups.PutSiteGroup(ctx, group); err != nil {
		return nil, err
	}
	return before, g.follow(ctx)
}

// RemoveSiteGroup removes a group, here at once, and returns its sites.
func (g *Gate) RemoveSiteGroup(ctx context.Context, name string) (before []string, err error) {
	if before, err = g.o.Groups.RemoveSiteGroup(ctx, name); err != nil {
		return nil, err
	}
	return before, g.follow(ctx)
}

// follow reads the groups, and ends the requests whose sites are others then.
func (g *Gate) follow(ctx context.Context) error {
	if err := g.readGroups(ctx); err != nil {
		return err
	}
	g.endPersons()
	return g.read(ctx)
}

// CheckGroups refuses sites with groups that are not in a record, by an error of kind Invalid.
func CheckGroups(ctx context.Context, s GroupStore, sites []string) error {
	names := access.GroupsIn(sites)
	if len(names) == 0 {
		return nil
	}
	list, err := s.SiteGroups(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(list, func(g access.SiteGroup) bool { return g.Name == name }) {
			return protocol.Errorf(protocol.Invalid, "no group of sites %q: colony group list shows them", name)
		}
	}
	return nil
}
