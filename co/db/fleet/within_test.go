package fleetdb_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// TestWithin lists and counts what belongs to some sites, page by page, and nothing of the others.
func TestWithin(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), open(t)
	for _, site := range []string{"north", "plant", "plant-1", "plant-2", "south"} {
		if _, err := commitOf(ctx, s, site, "n1"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		entries []string
		want    []string
	}{
		{nil, []string{"north", "plant", "plant-1", "plant-2", "south"}},
		{[]string{"plant"}, []string{"plant"}},
		{[]string{"plant-*"}, []string{"plant-1", "plant-2"}},
		{[]string{"plant-2", "n*"}, []string{"north", "plant-2"}},
		{[]string{"s*", "absent"}, []string{"south"}},
		{[]string{"absent"}, nil},
		{[]string{"absent-*"}, nil},
	} {
		t.Run(fmt.Sprint(c.entries), func(t *testing.T) {
			within := set(c.entries...)
			for _, size := range []int{1, 100} {
				sites := pages(t, size, func(p fleet.Page) ([]fleet.Site, string, error) {
					return s.SitesLike(ctx, fleet.SiteFilter{Within: within}, p)
				}, func(v fleet.Site) string { return string(v.ID) })
				compare(t, "sites", c.want, sites)
				online := true
				sites = pages(t, size, func(p fleet.Page) ([]fleet.Site, string, error) {
					return s.SitesLike(ctx, fleet.SiteFilter{Within: within, Online: &online, Text: "o"}, p)
				}, func(v fleet.Site) string { return string(v.ID) })
				compare(t, "sites that are online with an o", nil, sites) // none has connected
				var nodes []string
				for _, site := range c.want {
					nodes = append(nodes, site+"/n1")
				}
				for what, f := range map[string]fleet.NodeFilter{
					"nodes": {Within: within}, "nodes by state": {Within: within, State: fleet.Only(fleet.NodeUnknown)}, "nodes by text": {Within: within, Text: "n"},
				} {
					got := pages(t, size, func(p fleet.Page) ([]fleet.Node, string, error) { return s.Nodes(ctx, f, p) },
						func(v fleet.Node) string { return string(v.Site) + "/" + string(v.ID) })
					compare(t, what, nodes, got)
				}
				var names []string
				for _, site := range c.want {
					names = append(names, site+"/d")
				}
				for what, f := range map[string]fleet.DeploymentFilter{
					"deployments": {Within: within}, "deployments by state": {Within: within, State: not("FAILED")}, "deployments by text": {Within: within, Text: "/d"},
				} {
					got := pages(t, size, func(p fleet.Page) ([]fleet.Deployment, string, error) { return s.Deployments(ctx, f, p) },
						func(v fleet.Deployment) string { return string(v.Site) + "/" + string(v.Name) })
					compare(t, what, names, got)
				}
			}
			counts(t, s, fleet.SiteFilter{Within: within}, fleet.NodeFilter{Within: within}, fleet.DeploymentFilter{Within: within}, len(c.want))
			for what, f := range map[string]fleet.EventFilter{
				"events": {Within: within}, "the newest events": {Within: within, Newest: true}, "events without results": {Within: within, WithoutResults: true}, "events of two kinds": {Within: within, Kinds: []string{fleet.SiteAdded, string(protocol.NodeOnlineEvent)}},
			} {
				list, err := s.Events(ctx, f)
				if err != nil {
					t.Fatal(err)
				}
				found := map[protocol.SiteID]bool{}
				for _, e := range list {
					found[e.Site] = true
				}
				for _, site := range c.want {
					if !found[protocol.SiteID(site)] {
						t.Errorf("%s: none of %s", what, site)
					}
					delete(found, protocol.SiteID(site))
				}
				if !within.All() && len(found) > 0 {
					t.Errorf("%s: some of other sites: %v", what, found)
				}
			}
		})
	}
}

// counts compares the totals of n sites, each with a node and a deployment.
func counts(t *testing.T, s *fleetdb.Store, sites fleet.SiteFilter, nodes fleet.NodeFilter, deployments fleet.DeploymentFilter, n int) {
	t.Helper()
	ctx := t.Context()
	check := func(what string, got fleet.Total, err error, want int) {
		t.Helper()
		if err != nil || got.Count != want {
			t.Errorf("%s: %d, %v; want %d", what, got.Count, err, want)
		}
	}
	got, err := s.CountSites(ctx, sites)
	check("sites", got, err, n)
	got, err = s.CountNodes(ctx, nodes)
	check("nodes", got, err, n)
	nodes.Text = "n"
	got, err = s.CountNodes(ctx, nodes)
	check("nodes by text", got, err, n)
	got, err = s.CountDeployments(ctx, deployments)
	check("deployments", got, err, n)
	deployments.Text = "d"
	got, err = s.CountDeployments(ctx, deployments)
	check("deployments by text", got, err, n)
	sum, err := s.Summary(ctx, sites.Within)
	if err != nil || sum.Sites != n || sum.Nodes != n {
		t.Errorf("summary: %d sites, %d nodes, %v; want %d", sum.Sites, sum.Nodes, err, n)
	}
}

// pages reads a list to its end, by pages of a size.
func pages[T any](t *testing.T, size int, read func(fleet.Page) ([]T, string, error), name func(T) string) (out []string) {
	t.Helper()
	for p := (fleet.Page{Limit: size}); ; {
		list, next, err := read(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			out = append(out, name(v))
		}
		if next == "" {
			return out
		}
		p.Cursor = next
	}
}

func compare(t *testing.T, what string, want, got []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
