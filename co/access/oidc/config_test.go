package oidc

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/protocol/siteset"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := (Config{}).Validate(nil); err != nil {
		t.Errorf("no provider: %v", err)
	}
	for words, change := range map[string]func(*Config){
		"":                       func(*Config) {},
		`issuer "": want a URL`:  func(c *Config) { c.Issuer = "" },
		"want https":             func(c *Config) { c.Issuer = "http://login.example" },
		"want a URL such as":     func(c *Config) { c.Issuer = "https://login.example/?x=1" },
		"clientID: missing":      func(c *Config) { c.ClientID = "" },
		"it is the clientID":     func(c *Config) { c.Audience = c.ClientID },
		"want an absolute path":  func(c *Config) { c.CA = "ca.pem" },
		"refresh 1ms":            func(c *Config) { c.Refresh = time.Millisecond },
		"refresh 2h0m0s":         func(c *Config) { c.Refresh = 2 * time.Hour },
		"roles: missing":         func(c *Config) { c.Roles = nil },
		"roles[1]: group":        func(c *Config) { c.Roles[1].Group = "" },
		`roles[0]: role "king"`:  func(c *Config) { c.Roles[0].Role, c.Roles[1].Role = "king", "commissioning" },
		`roles[1]: group "@N"`:   func(c *Config) { c.Roles[1].Sites = []string{"@N"} },
		`roles[1]: site "North"`: func(c *Config) { c.Roles[1].Sites = []string{"North"} },
		"the list has no site":   func(c *Config) { c.Roles[1].Sites = []string{} },
	} {
		c := config("https://login.example/realms/plant")
		change(&c)
		if err := c.Validate(access.Custom{"commissioning": nil}); words == "" && err != nil || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%v, want %q", err, words)
		}
	}
	for address, ok := range map[string]bool{"http://127.0.0.1:1": true, "http://[::1]:1": true, "http://localhost:1": true, "http://10.0.0.1": false, "https://u:p@login.example": false, "ftp://login.example": false} {
		if err := checkURL(address); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestAuthorities reads the file of the provider's authorities.
func TestAuthorities(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := config("https://login.example")
	for content, words := range map[string]string{"": "no such file", "x": "in PEM"} {
		c.CA = filepath.Join(dir, "ca"+content)
		if content != "" {
			if err := os.WriteFile(c.CA, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := New(c, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	c := claims{map[string]any{
		"groups": []any{"a", 7.0, "b"}, "one": "a", "realm_access": map[string]any{"roles": []any{"c"}}, "https://x.example/groups": []any{"d"},
		"name": "Ann Müller", "line": "a\nColony-Principal: root", "long": strings.Repeat("x", 200), "space": " ", "number": 7.0,
	}}
	for claim, want := range map[string]string{
		"groups": "map[a:true b:true]", "one": "map[a:true]", "realm_access.roles": "map[c:true]", "https://x.example/groups": "map[d:true]",
		"none": "map[]", "realm_access.none.x": "map[]", "number": "map[]", "realm_access": "map[]",
	} {
		if got := fmt.Sprint(c.groups(claim)); got != want {
			t.Errorf("groups of %s: %s, want %s", claim, got, want)
		}
	}
	for claim, want := range map[string]string{"name": "Ann Müller", "line": "u-1", "long": "u-1", "space": "u-1", "number": "u-1", "none": "u-1"} {
		if got := c.name(claim, "u-1"); got != want {
			t.Errorf("name of %s: %q, want %q", claim, got, want)
		}
	}
	if got := c.name("none", "\x00"); got != "unnamed" {
		t.Errorf("%q", got)
	}
}

// TestBindings reads roles of a configuration.
func TestBindings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"roles: [{group: a, role: admin}]":                            "",
		"roles: [{group: a, role: operator, sites: [plant-1, '@n']}]": "",
		"roles:\n- group: a\n  role: admin\n  sites:\n":               "line 4: access.oidc.roles: sites has no value",
		"roles: [{group: a, role: admin, sites: ~}]":                  "sites has no value",
		"roles: [{group: a, role: admin, site: [plant-1]}]":           `line 1: access.oidc.roles: there is no key "site"`,
		"roles: [{group: a, role: admin, sites: plant-1}]":            "cannot construct",
		"roles: [admin]": "cannot construct",
	} {
		var c Config
		path := filepath.Join(t.TempDir(), "co.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := configfile.Load(path, &c)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if err == nil && (len(c.Roles) != 1 || c.Roles[0].Group != "a") {
			t.Errorf("%s: %+v", text, c.Roles)
		}
	}
}

// TestTooManySites has a person whose groups give more sites than a request can be about.
func TestTooManySites(t *testing.T) {
	t.Parallel()
	c := Config{}
	groups := map[string]bool{}
	for i := range siteset.MostIDs + 1 {
		group := fmt.Sprint("plant-", i)
		c.Roles, groups[group] = append(c.Roles, Binding{group, "operator", []string{group}}), true
	}
	var who access.Principal
	who.SetGrants(c.grants(groups))
	need := access.Need{Permission: access.ReadFleet, Reach: access.OneSite, Site: "plant-1"}
	if err := who.Allows(need); err == nil || !strings.Contains(err.Error(), "at most 1024") {
		t.Errorf("a site too many: %v", err)
	}
	delete(groups, "plant-7")
	who.SetGrants(c.grants(groups))
	if err := who.Allows(need); err != nil || len(who.Grants()) != siteset.MostIDs {
		t.Errorf("as many as may be: %v", err)
	}
}

// TestParseKeys reads sets of keys.
func TestParseKeys(t *testing.T) {
	t.Parallel()
	const ec = `{"kty":"EC","crv":"P-256","kid":"e","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"`
	for body, want := range map[string]int{
		`{"keys":[` + ec + `}]}`: 1, `{"keys":[` + ec + `,"use":"sig"},{"kty":"new"},{"kty":"oct","k":"AAAA"},7]}`: 1,
		`{"keys":[` + ec + `,"use":"enc"}]}`: 0, `{}`: 0, `x`: 0, `{"keys":[` + strings.Repeat(ec+`},`, 64) + ec + `}]}`: 0,
	} {
		list, err := parseKeys([]byte(body))
		if len(list) != want || (err == nil) != (want > 0) {
			t.Errorf("%.80s: %d keys, %v", body, len(list), err)
		}
	}
}
