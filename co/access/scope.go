package access

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A Reach is which sites an operation is about.
type Reach int

const (
	// WholeFleet is about all sites, or about what belongs to none and changes what each of them runs.
	// A token for some sites does not allow it.
	WholeFleet Reach = iota
	// OneSite is about the site that the path names.
	OneSite
	// Picked answers with what belongs to sites of the token alone; its handler sees to that by SitesOf and Check.
	Picked
)

// A Need is what a request needs.
type Need struct {
	Permission Permission
	Reach      Reach
	// Site is that of OneSite, as the path has it.
	Site protocol.SiteID
}

// picked are the operations of the API that a token for some sites allows though their path names none.
var picked = map[string]bool{
	"GET /api/v1/principal": true,
	// What is of no site.
	"GET /api/v1/apps": true, "GET /api/v1/apps/{id}": true, "GET /api/v1/apps/{id}/versions/{version}": true, "GET /api/v1/images": true,
	// Lists, counts and streams.
	"GET /api/v1/status": true, "GET /api/v1/sites": true, "GET /api/v1/nodes": true, "GET /api/v1/deployments": true, "GET /api/v1/events": true, "GET /api/v1/pending-nodes": true,
	"GET /api/v1/commands": true, "GET /api/v1/commands/{id}": true, "GET /api/v1/commands/{id}/results": true, "DELETE /api/v1/commands/{id}": true,
	"GET /api/v1/sessions": true, "GET /api/v1/sessions/{id}": true, "DELETE /api/v1/sessions/{id}": true, "GET /api/v1/sessions/{id}/recording": true,
	// The body names the site.
	"POST /api/v1/deployments": true, "POST /api/v1/sites": true, "POST /api/v1/commands": true,
}

// site is the part of a route that names a site.
const site = "{site}"

// ReachOf returns which sites an operation is about, by the method and the pattern of its route.
func ReachOf(route string) Reach {
	switch {
	case strings.Contains(route, "/"+site):
		return OneSite
	case route == "" || picked[route] || described.MatchString(route):
		return Picked
	}
	return WholeFleet
}

// NeedOf returns what a request needs whose route is the method and pattern. The site is the part of the path that the
// router gives to the handler.
func NeedOf(p Permission, route string, u *url.URL) Need {
	n := Need{Permission: p, Reach: ReachOf(route)}
	if n.Reach != OneSite {
		return n
	}
	_, pattern, _ := strings.Cut(route, " ")
	want, have := strings.Split(pattern, "/"), strings.Split(u.EscapedPath(), "/")
	n.Reach = WholeFleet // where the path is not of the pattern
	for i, part := range want {
		if part != site || len(have) != len(want) {
			continue
		}
		if id, err := url.PathUnescape(have[i]); err == nil {
			n.Reach, n.Site = OneSite, protocol.SiteID(id)
		}
	}
	return n
}

// RegistryNeed is RegistryNeeds with the sites: images are of none, and what is pushed changes what each may run.
func (s Sites) RegistryNeed(method, path string) Need {
	n := Need{Permission: s.RegistryNeeds(method, path), Reach: WholeFleet}
	if method == http.MethodGet || method == http.MethodHead {
		n.Reach = Picked
	}
	return n
}

// A Grant is a role, and the sites for which it holds.
type Grant struct {
	Role  Role     `json:"role" doc:"read-only, operator, admin, or a role of the configuration"`
	Sites []string `json:"sites,omitempty" doc:"names of sites, or how names begin with a * after it; absent: all"`
}

// Grants are all that a principal has.
func (p Principal) Grants() []Grant {
	if p.Role == "" {
		return nil
	}
	return append([]Grant{{p.Role, p.Sites}}, p.Further...)
}

// SetGrants has a principal hold grants, of which the one with the most permissions is named first.
func (p *Principal) SetGrants(grants []Grant) {
	p.Role, p.Sites, p.Further = "", nil, nil
	if len(grants) == 0 {
		return
	}
	grants = slices.Clone(grants)
	slices.SortStableFunc(grants, func(a, b Grant) int {
		return cmp.Compare(slices.Index(Roles(), b.Role), slices.Index(Roles(), a.Role))
	})
	p.Role, p.Sites, p.Further = grants[0].Role, grants[0].Sites, slices.Clip(grants[1:])
}

// Same reports whether two principals have the same grants.
func (p Principal) Same(o Principal) bool {
	return slices.EqualFunc(p.Grants(), o.Grants(), func(a, b Grant) bool { return a.Role == b.Role && slices.Equal(a.Sites, b.Sites) })
}

// sitesFor returns the sites for which a principal has a permission; false where it has it for none.
func (p Principal) sitesFor(need Permission) (all siteset.Set, has bool, err error) {
	var sets []siteset.Set
	for _, g := range p.Grants() {
		if !p.has(g.Role, need) {
			continue
		}
		set, err := siteset.Parse(g.Sites)
		if err != nil || set.All() {
			return set, true, err
		}
		has = true
		sets = append(sets, set)
	}
	if has {
		all, err = siteset.Union(sets...)
	}
	return all, has, err
}

// Allows says why a principal may not do what needs n, by an error of kind Denied; nil: it may.
func (p Principal) Allows(n Need) error {
	if p.Role == "" {
		return protocol.Errorf(protocol.Denied, "%s is signed in, and has no role in this Colony: ask an administrator of it for one", p.Name)
	}
	set, has, err := p.sitesFor(n.Permission)
	switch {
	case err != nil:
		return protocol.Errorf(protocol.Denied, "the sites of the token of %s cannot be read: %w", p.Name, err)
	case !has && p.unknown(p.Role):
		return protocol.Errorf(protocol.Denied, "%s has the role %s, which is not in the configuration of this CO (access.roles)", p.Name, p.Role)
	case !has:
		return protocol.Errorf(protocol.Denied, "%s has the role %s, which does not allow this: it needs %s", p.Name, p.Role, n.Permission)
	case set.All(), n.Reach == Picked:
		return nil
	case n.Reach == OneSite:
		return check(p, set, n.Site)
	}
	return protocol.Errorf(protocol.Denied, "the token of %s holds for %s, and this needs one for the whole fleet", p.Name, set)
}

// May reports whether the request of a context has a permission for a site, also where the request itself needed another
// permission. It is true where no token is required.
func May(ctx context.Context, need Permission, id protocol.SiteID) bool {
	p, asked := From(ctx)
	return !asked || p.Allows(Need{need, OneSite, id}) == nil
}

func check(p Principal, set siteset.Set, id protocol.SiteID) error {
	if set.Has(id) {
		return nil
	}
	return protocol.Errorf(protocol.Denied, "the token of %s holds for %s, and not for site %q", p.Name, set, id)
}

// SitesOf returns the sites that the request of a context may be about: all where no token is required.
func SitesOf(ctx context.Context) siteset.Set {
	v, _ := ctx.Value(key{}).(value)
	return v.sites
}

// Check returns an error of kind Denied where the request of a context may not be about a site.
func Check(ctx context.Context, id protocol.SiteID) error {
	v, _ := ctx.Value(key{}).(value)
	if err := check(v.Principal, v.sites, id); err != nil {
		return Deny(ctx, err)
	}
	return nil
}
