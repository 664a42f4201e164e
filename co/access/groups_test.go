package access

import (
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

func TestSiteGroups(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		sites []string
		words string // of the error; "": none
	}{
		{"north", []string{"plant-*", "depot", "depot"}, ""},
		{"North", []string{"depot"}, `group "North"`},
		{"", []string{"depot"}, "want 1 to 63"},
		{"north", nil, "at least one site"},
		{"north", []string{"*"}, "at least one site"},
		{"north", []string{"@south"}, `site "@south"`}, // groups are of sites
	} {
		g, err := NewSiteGroup(tt.name, tt.sites)
		if tt.words == "" && (err != nil || !slices.Equal(g.Sites, []string{"depot", "plant-*"})) || tt.words != "" && (protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), tt.words)) {
			t.Errorf("%s %v: %+v %v, want %q", tt.name, tt.sites, g, err, tt.words)
		}
	}
	for _, tt := range []struct{ list, want, words string }{
		{"depot,@south,@north,@north,plant-*", "@north,@south,depot,plant-*", ""},
		{"@north,*", "", ""},
		{"@North", "", `group "@North"`},
		{"@", "", "want @ and the name"},
		{"x_y", "", `site "x_y"`},
	} {
		got, err := ParseSites(strings.Split(tt.list, ","))
		if strings.Join(got, ",") != tt.want || (err == nil) != (tt.words == "") || err != nil && !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: %v %v", tt.list, got, err)
		}
	}
	if got, err := ParseSites(nil); got != nil || err != nil {
		t.Errorf("all sites: %v %v", got, err)
	}
	if _, err := ParseSites([]string{}); err == nil {
		t.Error("an empty list is all sites")
	}
}

// TestWithin has a person whose roles name groups: one that is there, and one that is not.
func TestWithin(t *testing.T) {
	t.Parallel()
	var p Principal
	p.SetGrants([]Grant{{ReadOnly, []string{"@north", "depot"}}, {Operator, []string{"@south"}}})
	in := p.Within(map[string][]string{"north": {"plant-*"}})
	if got := in.Grants(); len(got) != 1 || got[0].Role != ReadOnly || !slices.Equal(got[0].Sites, []string{"plant-*", "depot"}) {
		t.Errorf("%+v", got)
	}
	need := Need{ReadFleet, OneSite, "plant-1"}
	if in.Allows(need) != nil || in.Allows(Need{WriteDeployments, OneSite, "plant-1"}) == nil || in.Allows(Need{ReadFleet, OneSite, "south"}) == nil {
		t.Errorf("what %+v allows", in.Grants())
	}
	if err := p.Allows(need); protocol.KindOf(err) != protocol.Denied {
		t.Errorf("groups that nobody has looked up allow something: %v", err)
	}
	only := Principal{Name: "ci", Role: Admin, Sites: []string{"@none"}}
	if got := only.Within(nil); got.Role != "" || got.Allows(Need{Authenticated, Picked, ""}) == nil {
		t.Errorf("a role for a group without sites is one for all: %+v", got)
	}
	all := Principal{Role: Admin}
	if got := all.Within(nil); got.Role != Admin || got.Allows(Need{WriteAccess, WholeFleet, ""}) != nil {
		t.Errorf("a role for all sites: %+v", got)
	}
}
