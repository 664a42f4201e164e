package access

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/doctable"
	"github.com/colonyfleet/colony/protocol"
)

// TestTable has the table of operations in the documentation, and each permission in one role.
func TestTable(t *testing.T) {
	t.Parallel()
	all := Operations()
	var b strings.Builder
	b.WriteString("| role | permission | operations |\n|---|---|---|\n")
	held := map[Permission]bool{}
	for _, r := range Roles() {
		for _, p := range permissions[r] {
			if held[p] {
				t.Errorf("%s is in two roles", p)
			}
			held[p] = true
			fmt.Fprintf(&b, "| %s | `%s` | %s |\n", r, p, "`"+strings.Join(all[p], "`, `")+"`")
			if len(all[p]) == 0 {
				t.Errorf("nothing needs %s", p)
			}
		}
	}
	for p := range all {
		if p != Open && !held[p] {
			t.Errorf("no role has %s", p)
		}
	}
	doctable.Table{Doc: "../../docs/access.md", Name: "roles", Content: b.String(), Command: "UPDATE=1 go test ./co/access"}.Check(t, os.Getenv("UPDATE") != "")
}

func TestRoles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		role Role
		has  []Permission
		not  []Permission
	}{
		{ReadOnly, []Permission{Open, Authenticated, ReadFleet, ReadData}, []Permission{WriteDeployments, WriteAccess, nobody}},
		{Operator, []Permission{Open, Authenticated, ReadFleet, WriteDeployments, DecideProposals}, []Permission{WriteSites, WriteMachines, WriteAccess, nobody}},
		{Admin, []Permission{Open, Authenticated, ReadData, WriteApps, WriteMachines, WriteAccess}, []Permission{nobody}},
		{"", []Permission{Open}, []Permission{Authenticated, ReadFleet}},
		{"root", []Permission{Open}, []Permission{Authenticated, ReadFleet}},
	} {
		for _, p := range tt.has {
			if !tt.role.Has(p) {
				t.Errorf("%q lacks %q", tt.role, p)
			}
		}
		for _, p := range tt.not {
			if tt.role.Has(p) {
				t.Errorf("%q has %q", tt.role, p)
			}
		}
	}
	if _, err := Custom(nil).Parse("root"); protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), "read-only, operator, admin") {
		t.Errorf("role root: %v", err)
	}
}

func TestNeeds(t *testing.T) {
	t.Parallel()
	for route, want := range map[string]Permission{
		"GET /healthz": Open, "": Authenticated, "GET /openapi.json": ReadFleet, "GET /openapi-3.0.yaml": ReadFleet, "GET /schemas/{schema}": ReadFleet,
		"GET /api/v1/nothing": nobody, "POST /healthz": nobody, "GET /api/v1/sites/{site}": ReadFleet, "DELETE /api/v1/sites/{site}": WriteSites,
	} {
		if got := Needs(route); got != want {
			t.Errorf("%q needs %q, want %q", route, got, want)
		}
	}
	if open, apart := (Sites{}).Needs(specs), (Sites{Prove: true}).Needs(specs); open != Open || apart != ReadFleet {
		t.Errorf("specifications need %q, and %q where sites prove who they are", open, apart)
	}
	for _, tt := range []struct {
		method, path string
		want, prove  Permission
	}{
		{"GET", "/v2/", Authenticated, Authenticated}, {"GET", "/v2/a/manifests/1", Open, ReadFleet}, {"HEAD", "/v2/a/blobs/x", Open, ReadFleet}, {"POST", "/v2/a/blobs/uploads/", WriteApps, WriteApps}, {"DELETE", "/v2/a/manifests/1", WriteApps, WriteApps}, {"BREW", "/v2/", WriteApps, WriteApps},
	} {
		for _, sites := range []Sites{{}, {Prove: true}} {
			want := tt.want
			if sites.Prove {
				want = tt.prove
			}
			if got := sites.RegistryNeeds(tt.method, tt.path); got != want {
				t.Errorf("%s %s needs %q, want %q; sites prove who they are: %v", tt.method, tt.path, got, want, sites.Prove)
			}
		}
	}
}

func TestNewToken(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	v, err := NewToken(Request{Name: "ann@plant", Role: "operator", Sites: []string{"plant-*", "north", "north"}, Life: time.Hour}, "console", now)
	if diff := cmp.Diff([]string{"north", "plant-*"}, v.Sites); diff != "" {
		t.Errorf("sites (-want +got):\n%s", diff)
	}
	if want := "token " + v.ID + " of ann@plant (operator of north, plant-*)"; v.String() != want {
		t.Errorf("shown as %q, want %q", v, want)
	}
	if err != nil || v.Role != Operator || !v.Holds(now) || v.Holds(now.Add(time.Hour)) || !v.CreatedAt.Equal(now.Truncate(time.Second)) {
		t.Errorf("%+v, %v", v, err)
	}
	v.RevokedAt = &now
	if v.Holds(now) {
		t.Error("a revoked token counts")
	}
	for _, tt := range []struct {
		name, role string
		sites      []string
		life       time.Duration
		words      string
	}{
		{"", "admin", nil, time.Hour, "name"},
		{"console", "admin", nil, time.Hour, "own machine"},
		{"-a", "admin", nil, time.Hour, "name"},
		{strings.Repeat("a", 65), "admin", nil, time.Hour, "name"},
		{"a\n", "admin", nil, time.Hour, "name"},
		{"a", "Admin", nil, time.Hour, "role"},
		{"a", "admin", []string{"plant", "Plant"}, time.Hour, `site "Plant"`},
		{"a", "admin", []string{}, time.Hour, "no site"},
		{"a", "admin", nil, time.Second, "life"},
		{"a", "admin", nil, MaxLife + 1, "life"},
	} {
		if _, err := NewToken(Request{Name: tt.name, Role: tt.role, Sites: tt.sites, Life: tt.life}, "x", now); protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

func TestStamp(t *testing.T) {
	t.Parallel()
	if got := Stamp(context.Background(), "Deploy x"); got != "Deploy x" {
		t.Errorf("%q", got)
	}
	if got := Stamp(With(context.Background(), Principal{Name: "ann"}, Authenticated, nil), "Deploy x\n"); got != "Deploy x\n\nColony-Principal: ann" {
		t.Errorf("%q", got)
	}
}
