package access

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

func TestNeedOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		route, path string
		reach       Reach
		site        protocol.SiteID
	}{
		{"GET /api/v1/sites/{site}", "/api/v1/sites/plant", OneSite, "plant"},
		{"GET /api/v1/sites/{site}/link", "/api/v1/sites/pl%61nt/link", OneSite, "plant"},
		{"DELETE /api/v1/nodes/{site}/{node}/volumes/{deployment}", "/api/v1/nodes/a/b/volumes/c", OneSite, "a"},
		{"GET /api/v1/sites/{site}", "/api/v1/sites/a%2Fb", OneSite, "a/b"},
		{"GET /api/v1/sites/{site}", "/api/v1/sites/a/b", WholeFleet, ""}, // not of the pattern
		{"GET /api/v1/sites", "/api/v1/sites", Picked, ""},
		{"POST /api/v1/deployments", "/api/v1/deployments", Picked, ""},
		{"GET /openapi.json", "/openapi.json", Picked, ""},
		{"", "/nothing", Picked, ""},
		{"GET /metrics", "/metrics", WholeFleet, ""},
		{"POST /api/v1/tokens", "/api/v1/tokens", WholeFleet, ""},
		{"GET /api/v1/specs/{digest}", "/api/v1/specs/x", WholeFleet, ""},
		{"GET /api/v1/nothing", "/api/v1/nothing", WholeFleet, ""},
	} {
		u, err := url.Parse("http://co.example" + tt.path)
		if err != nil {
			t.Fatal(err)
		}
		got := NeedOf(ReadFleet, tt.route, u)
		if want := (Need{ReadFleet, tt.reach, tt.site}); got != want {
			t.Errorf("%s at %s: %+v, want %+v", tt.route, tt.path, got, want)
		}
	}
	for method, want := range map[string]Reach{"GET": Picked, "HEAD": Picked, "PUT": WholeFleet, "DELETE": WholeFleet} {
		if got := (Sites{}).RegistryNeed(method, "/v2/a/manifests/1"); got.Reach != want {
			t.Errorf("%s at the registry reaches %d, want %d", method, got.Reach, want)
		}
	}
}

func TestAllows(t *testing.T) {
	t.Parallel()
	north := Principal{Name: "ann", Role: Operator, Sites: []string{"north", "plant-*"}}
	several := Principal{Name: "eve"}
	several.SetGrants([]Grant{{Role: ReadOnly}, {Operator, []string{"plant-*"}}, {Admin, []string{"north"}}})
	for _, tt := range []struct {
		p     Principal
		need  Need
		words string // of the error; "": allowed
	}{
		{Principal{Name: "root", Role: Admin}, Need{WriteAccess, WholeFleet, ""}, ""},
		{Principal{Name: "root", Role: Admin}, Need{WriteMachines, OneSite, "south"}, ""},
		{north, Need{WriteDeployments, OneSite, "north"}, ""},
		{north, Need{WriteDeployments, OneSite, "plant-7"}, ""},
		{north, Need{WriteDeployments, OneSite, "plant"}, `north, plant-*, and not for site "plant"`},
		{north, Need{ReadFleet, OneSite, ""}, `and not for site ""`},
		{north, Need{ReadFleet, Picked, ""}, ""},
		{north, Need{WriteApps, WholeFleet, ""}, "needs one for the whole fleet"},
		{north, Need{WriteMachines, OneSite, "north"}, "has the role operator"},
		{Principal{Name: "x", Role: Admin, Sites: []string{"NORTH"}}, Need{ReadFleet, Picked, ""}, "cannot be read"},
		{Principal{Name: "x"}, Need{Authenticated, Picked, ""}, "ask an administrator"},
		{several, Need{ReadFleet, WholeFleet, ""}, ""},
		{several, Need{WriteDeployments, OneSite, "plant-7"}, ""},
		{several, Need{WriteDeployments, OneSite, "north"}, ""},
		{several, Need{WriteDeployments, OneSite, "south"}, `north, plant-*, and not for site "south"`},
		{several, Need{WriteMachines, OneSite, "north"}, ""},
		{several, Need{WriteMachines, OneSite, "plant-7"}, `holds for north, and not`},
		{several, Need{WriteAccess, WholeFleet, ""}, "needs one for the whole fleet"},
	} {
		err := tt.p.Allows(tt.need)
		if tt.words == "" && err != nil || tt.words != "" && (protocol.KindOf(err) != protocol.Denied || !strings.Contains(err.Error(), tt.words)) {
			t.Errorf("%s of %v, %+v: %v, want %q", tt.p.Name, tt.p.Sites, tt.need, err, tt.words)
		}
	}
	ctx := With(context.Background(), north, WriteDeployments, nil)
	if err := Check(ctx, "plant-1"); err != nil {
		t.Error(err)
	}
	if err := Check(ctx, "south"); protocol.KindOf(err) != protocol.Denied {
		t.Errorf("a site that is not among those of the token: %v", err)
	}
	if got := SitesOf(ctx).String(); got != "north, plant-*" {
		t.Errorf("the sites of the request are %s", got)
	}
	if ctx := With(context.Background(), several, WriteDeployments, nil); May(ctx, WriteMachines, "plant-7") || !May(ctx, WriteMachines, "north") {
		t.Error("what a site needs besides is decided by another site's role")
	}
	if !May(context.Background(), WriteMachines, "north") {
		t.Error("where nobody is asked who they are, something is refused")
	}
	if none := (Principal{}); !none.Same(Principal{Name: "x"}) || none.Same(several) || several.Same(Principal{Role: Admin, Sites: []string{"north"}}) || several.Role != Admin {
		t.Error("which grants are the same")
	}
	if open := context.Background(); Check(open, "south") != nil || !SitesOf(open).All() {
		t.Error("where nobody is asked who they are, a site is refused")
	}
}
