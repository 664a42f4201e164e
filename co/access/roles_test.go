package access

import (
	"strings"
	"testing"
)

func TestNewCustom(t *testing.T) {
	t.Parallel()
	many := make([]RoleConfig, mostRoles+1)
	for _, c := range []struct {
		list []RoleConfig
		want string // in the error; "": none
	}{
		{nil, ""},
		{[]RoleConfig{{"commissioning", []Permission{ReadFleet, WriteMachines}}, {"auditor", []Permission{ReadAudit}}}, ""},
		{[]RoleConfig{{"", []Permission{ReadFleet}}}, `access.roles[0].name ""`},
		{[]RoleConfig{{"Auditor", []Permission{ReadFleet}}}, `access.roles[0].name "Auditor": want 1 to 32 lower-case`},
		{[]RoleConfig{{"admin", []Permission{ReadFleet}}}, "that role is always there"},
		{[]RoleConfig{{"a", []Permission{ReadFleet}}, {"a", []Permission{ReadData}}}, `access.roles[1].name "a": it is in the list twice`},
		{[]RoleConfig{{"a", nil}}, "access.roles[0].permissions: missing"},
		{[]RoleConfig{{"a", []Permission{"fleet:write"}}}, `access.roles[0].permissions: "fleet:write": want some of access:write, apps:write, audit:read`},
		{[]RoleConfig{{"a", []Permission{Open}}}, `permissions: ""`},
		{[]RoleConfig{{"a", []Permission{nobody}}}, `permissions: "nobody"`},
		{many, "access.roles: 65 roles: want at most 64"},
	} {
		_, err := NewCustom(c.list)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.list, err, c.want)
		}
	}
}

// TestCustomRoles has principals with roles of a configuration, beside one that is always there, and without.
func TestCustomRoles(t *testing.T) {
	t.Parallel()
	roles, err := NewCustom([]RoleConfig{{"commissioning", []Permission{ReadFleet, WriteMachines}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := roles.Parse("commissioning"); err != nil {
		t.Error(err)
	}
	if _, err := roles.Parse("king"); err == nil || !strings.HasSuffix(err.Error(), "want one of read-only, operator, admin, commissioning") {
		t.Error(err)
	}
	if _, err := Custom(nil).Parse("commissioning"); err == nil {
		t.Error("a role without a configuration")
	}
	one := Principal{Name: "ann", Role: "commissioning", Sites: []string{"plant-1"}}
	two := Principal{Name: "ann"}
	two.SetGrants([]Grant{{"commissioning", []string{"plant-1"}}, {ReadOnly, nil}})
	for _, c := range []struct {
		p    Principal
		need Need
		want string // in the error; "": it may
	}{
		{one.WithRoles(roles), Need{WriteMachines, OneSite, "plant-1"}, ""},
		{one.WithRoles(roles), Need{Authenticated, Picked, ""}, ""},
		{one.WithRoles(roles), Need{WriteMachines, OneSite, "plant-2"}, "not for site"},
		{one.WithRoles(roles), Need{WriteSites, OneSite, "plant-1"}, "has the role commissioning, which does not allow this: it needs sites:write"},
		{one, Need{WriteMachines, OneSite, "plant-1"}, "the role commissioning, which is not in the configuration"},
		{two.WithRoles(roles), Need{WriteMachines, OneSite, "plant-1"}, ""},
		{two.WithRoles(roles), Need{ReadFleet, OneSite, "plant-2"}, ""},
		{two.WithRoles(roles), Need{WriteMachines, OneSite, "plant-2"}, "not for site"},
	} {
		err := c.p.Allows(c.need)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v for %+v: %v, want %q", c.p.Grants(), c.need, err, c.want)
		}
	}
}
