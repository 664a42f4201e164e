package oidc

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/co/access"
)

// A Config says which provider vouches for people, and what their groups may do. The yaml keys are those of the CO's
// configuration file. The zero value is no provider.
type Config struct {
	// Issuer is the address of the provider, exactly as it names itself; below it is /.well-known/openid-configuration.
	Issuer string `yaml:"issuer,omitempty"`
	// ClientID is under which the command line is known to the provider, as a public client: ID tokens for it count.
	ClientID string `yaml:"clientID,omitempty"`
	// Audience is what JWT access tokens (RFC 9068) are for that count. Empty: none count.
	Audience string `yaml:"audience,omitempty"`
	// Scopes are what the command line asks for. Default: openid, profile, offline_access.
	Scopes []string `yaml:"scopes,omitempty"`
	// GroupsClaim has a person's groups: its name, or names with dots between them for one inside of others. Default: groups.
	GroupsClaim string `yaml:"groupsClaim,omitempty"`
	// NameClaim has the name under which the CO shows a person. Default: preferred_username.
	NameClaim string `yaml:"nameClaim,omitempty"`
	// CA is a PEM file with the authorities of the provider's certificate, besides those of the system. Empty: none.
	CA string `yaml:"ca,omitempty"`
	// Refresh is how often the provider's keys are read: one that it has withdrawn counts as long. Default: 5 minutes.
	Refresh time.Duration `yaml:"refresh,omitempty"`
	// Roles say what groups may do.
	Roles []Binding `yaml:"roles,omitempty"`
}

// A Binding gives a role to a group.
type Binding struct {
	Group string `yaml:"group"` // name of the group at the provider
	Role  string `yaml:"role"`  // a role that is always there, or of the configuration
	// Sites are those for which the role holds, as of access.ParseSites. Nil: all.
	Sites []string `yaml:"sites,omitempty"`
}

// UnmarshalYAML reads a Binding, and refuses an empty list of sites that is written as no value, which would be all sites.
func (b *Binding) UnmarshalYAML(n *yaml.Node) error {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Value != "group" && key.Value != "role" && key.Value != "sites":
			return fmt.Errorf("line %d: access.oidc.roles: there is no key %q: want group, role, sites", key.Line, key.Value)
		case key.Value == "sites" && value.ShortTag() == "!!null":
			return fmt.Errorf("line %d: access.oidc.roles: sites has no value: name sites, or leave it out for all", key.Line)
		}
	}
	type plain Binding
	return n.Decode((*plain)(b))
}

const (
	defaultRefresh = 5 * time.Minute
	minRefresh     = time.Second
	maxRefresh     = time.Hour
)

// Set reports whether there is a provider.
func (c Config) Set() bool {
	return c.Issuer != "" || c.ClientID != "" || c.Audience != "" || len(c.Scopes) > 0 || c.GroupsClaim != "" || c.NameClaim != "" || c.CA != "" || c.Refresh != 0 || len(c.Roles) > 0
}

// completed returns c with its defaults.
func (c Config) completed() Config {
	c.GroupsClaim, c.NameClaim, c.Refresh = cmp.Or(c.GroupsClaim, "groups"), cmp.Or(c.NameClaim, "preferred_username"), cmp.Or(c.Refresh, defaultRefresh)
	if len(c.Scopes) == 0 {
		c.Scopes = []string{"openid", "profile", "offline_access"}
	}
	return c
}

// Validate returns all faults, each with its key in the configuration of the CO, which has these roles besides those that are
// always there. A configuration that is not Set has none.
func (c Config) Validate(roles access.Custom) error {
	if !c.Set() {
		return nil
	}
	var errs []error
	if err := checkURL(c.Issuer); err != nil {
		errs = append(errs, fmt.Errorf("issuer %q: %w", c.Issuer, err))
	}
	if c.ClientID == "" {
		errs = append(errs, errors.New("clientID: missing; want the id of the client that the provider has for colony login"))
	}
	if c.Audience != "" && c.Audience == c.ClientID {
		errs = append(errs, errors.New("audience: it is the clientID, for which ID tokens are; want that of access tokens, or nothing"))
	}
	if c.CA != "" && !filepath.IsAbs(c.CA) {
		errs = append(errs, fmt.Errorf("ca %q: want an absolute path", c.CA))
	}
	if c.Refresh != 0 && (c.Refresh < minRefresh || c.Refresh > maxRefresh) {
		errs = append(errs, fmt.Errorf("refresh %s: want %s to %s", c.Refresh, minRefresh, maxRefresh))
	}
	if len(c.Roles) == 0 {
		errs = append(errs, errors.New("roles: missing; want at least one group with its role, as no person could do anything"))
	}
	for i, b := range c.Roles {
		if err := b.check(roles); err != nil {
			errs = append(errs, fmt.Errorf("roles[%d]: %w", i, err))
		}
	}
	for i, err := range errs {
		errs[i] = fmt.Errorf("access.oidc.%w", err)
	}
	return errors.Join(errs...)
}

func (b Binding) check(roles access.Custom) error {
	if b.Group == "" {
		return errors.New("group: missing")
	}
	if _, err := roles.Parse(b.Role); err != nil {
		return err
	}
	_, err := access.ParseSites(b.Sites)
	return err
}

// checkURL refuses addresses without TLS for the keys: an attacker on the way could replace the
// keys.
func checkURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return errors.New("want a URL such as https://login.example/realms/plant")
	}
	ip := net.ParseIP(u.Hostname())
	if local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); u.Scheme != "https" && !(u.Scheme == "http" && local) {
		return errors.New("want https: keys that come in clear prove nothing")
	}
	return nil
}

// grants are what the groups of a person give, each grant once.
func (c Config) grants(groups map[string]bool) []access.Grant {
	var out []access.Grant
	for _, b := range c.Roles {
		if !groups[b.Group] {
			continue
		}
		sites, err := access.ParseSites(b.Sites) // Validate has refused those that cannot be read
		if err != nil {
			continue
		}
		out = append(out, access.Grant{Role: access.Role(b.Role), Sites: sites})
	}
	return out
}
