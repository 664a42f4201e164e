package access

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// A Role is a set of permissions.
type Role string

// The roles that are always there. Each has the permissions of those before it.
const (
	ReadOnly Role = "read-only" // may read the fleet
	Operator Role = "operator"  // may also change deployments, applications and rules, and command nodes
	Admin    Role = "admin"     // may do everything, tokens and machines included
)

// Roles are all roles that are always there, the one with the fewest permissions first.
func Roles() []Role { return []Role{ReadOnly, Operator, Admin} }

var permissions = map[Role][]Permission{
	ReadOnly: {Authenticated, ReadFleet, ReadData},
	Operator: {WriteDeployments, WriteCommands, ReadLogs, Collect, WriteApps, WriteRules, DecideProposals},
	Admin:    {WriteSites, WriteMachines, WriteAccess, ReadAudit, OpenSessions, ReadSessions},
}

// Has reports whether a role has a permission. A role that is not one of Roles has none.
func (r Role) Has(p Permission) bool {
	if p == Open {
		return true
	}
	for _, each := range Roles() {
		if !slices.Contains(Roles(), r) {
			return false
		}
		if slices.Contains(permissions[each], p) {
			return true
		}
		if each == r {
			return false
		}
	}
	return false
}

// A RoleConfig is a role of the CO's configuration.
type RoleConfig struct {
	Name        string       `yaml:"name"`
	Permissions []Permission `yaml:"permissions"` // that the role has
}

// Custom are roles besides those that are always there, each with its permissions. Nil is none. It is not changed once it is made.
type Custom map[Role][]Permission

const (
	mostRoles = 64
	roleWants = "want 1 to 32 lower-case letters, digits, and - between them"
)

var roleForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// NewCustom returns the roles of a configuration. The error names all faults, each with its key there.
func NewCustom(list []RoleConfig) (Custom, error) {
	var errs []error
	c := Custom{}
	if len(list) > mostRoles {
		errs = append(errs, fmt.Errorf("access.roles: %d roles: want at most %d", len(list), mostRoles))
	}
	all := assignable()
	for i, r := range list {
		name := Role(r.Name)
		switch _, twice := c[name]; {
		case !roleForm.MatchString(r.Name):
			errs = append(errs, fmt.Errorf("access.roles[%d].name %q: %s", i, r.Name, roleWants))
		case slices.Contains(Roles(), name):
			errs = append(errs, fmt.Errorf("access.roles[%d].name %q: that role is always there, and cannot be changed", i, r.Name))
		case twice:
			errs = append(errs, fmt.Errorf("access.roles[%d].name %q: it is in the list twice", i, r.Name))
		case len(r.Permissions) == 0:
			errs = append(errs, fmt.Errorf("access.roles[%d].permissions: missing; want at least one", i))
		}
		for _, p := range r.Permissions {
			if !slices.Contains(all, p) {
				errs = append(errs, fmt.Errorf("access.roles[%d].permissions: %q: want some of %s", i, p, joined(all)))
			}
		}
		c[name] = append([]Permission{Authenticated}, r.Permissions...)
	}
	return c, errors.Join(errs...)
}

// assignable are the permissions that a configuration may give, sorted.
func assignable() (all []Permission) {
	for _, list := range permissions {
		for _, p := range list {
			if p != Authenticated {
				all = append(all, p)
			}
		}
	}
	slices.Sort(all)
	return all
}

// Parse returns the role of a name; the error is of kind Invalid and names the roles.
func (c Custom) Parse(name string) (Role, error) {
	all := append(Roles(), slices.SortedFunc(maps.Keys(c), cmp.Compare[Role])...)
	if r := Role(name); slices.Contains(all, r) {
		return r, nil
	}
	return "", protocol.Errorf(protocol.Invalid, "role %q: want one of %s", name, joined(all))
}

func joined[T ~string](list []T) string {
	var b strings.Builder
	for i, each := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(each))
	}
	return b.String()
}

// WithRoles returns p with what the roles of a configuration have.
func (p Principal) WithRoles(c Custom) Principal {
	p.custom = c
	return p
}

// has reports whether a role that p holds has a permission.
func (p Principal) has(r Role, need Permission) bool {
	return r.Has(need) || slices.Contains(p.custom[r], need)
}

// unknown reports whether a role is none.
func (p Principal) unknown(r Role) bool {
	return !slices.Contains(Roles(), r) && p.custom[r] == nil
}
