package compiler

import (
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/margo/v1rc3"
)

// by returns a variable with a default, or with none.
func by(name string, value ...string) v1rc3.Variable {
	v := v1rc3.Variable{Name: name, Parameter: name}
	if len(value) > 0 {
		v.Default = &value[0]
	}
	return v
}

// A component is judged with the defaults of its parameters, too: what they break is refused,
// and what only lacks a value is a warning.
func TestDefaultsAreJudged(t *testing.T) {
	t.Parallel()
	sampled := func(name, sample string) v1rc3.Variable {
		return v1rc3.Variable{Name: name, Parameter: name, Required: true, Sample: &sample}
	}
	for _, c := range []struct {
		name, compose string
		variables     []v1rc3.Variable
		problem, warn string
		unfit         []string
	}{
		{"good", "services:\n  a:\n    image: 'i:${V}'\n    restart: '${R}'\n", []v1rc3.Variable{by("R", "always"), by("V", "1")}, "", "", nil},
		{
			"bad", "services:\n  a:\n    image: i\n    restart: '${R}'\n",
			[]v1rc3.Variable{by("R", "sometimes")},
			`line 4: services.a.restart: "sometimes": want no, always, on-failure, on-failure:<count> or unless-stopped; so it is with the default "sometimes" of R: change it, or leave the value out, so that a deployment must give it`, "",
			[]string{"R"},
		},
		{"bad image", "services:\n  a:\n    image: '${I}'\n", []v1rc3.Variable{by("I", "A b")}, `line 3: services.a.image: "A b" is no name of an image`, "", []string{"I"}},
		{
			"empty", "services:\n  a:\n    image: i\n    volumes: ['${DIR}:/data']\n",
			[]v1rc3.Variable{by("DIR", "")},
			"", "so it is where a deployment gives no value for DIR: it must, or give a default",
			[]string{"DIR"},
		},
		{
			"none", "services:\n  a:\n    image: i\n    hostname: '${H:?say it}'\n",
			[]v1rc3.Variable{by("H")},
			"", "line 4: services.a.hostname: required variable H is missing a value: say it",
			[]string{"H"},
		},
		{"none, and .env of none", "services:\n  a:\n    image: i\n    environment: {A: '${H}'}\n", []v1rc3.Variable{by("H")}, "", "", nil},
		{
			"twice", "services:\n  a:\n    image: i\n    ports: ['${P}:80', '8080:81']\n",
			[]v1rc3.Variable{by("P", "8080")},
			"line 4: services.a.ports[1]: port 8080 of the node is published twice", "",
			[]string{"P"},
		},
		{"required", "services:\n  a:\n    image: i\n    restart: '${R}'\n", open("R"), "", "", nil},
		{
			"sample", "services:\n  a:\n    image: i\n    restart: '${R}'\n",
			[]v1rc3.Variable{sampled("R", "often")},
			"", `line 4: services.a.restart: "often": want no, always, on-failure, on-failure:<count> or unless-stopped; so it is where a deployment says "often" of R, which the schema allows`, nil,
		},
		{
			"profile", "services:\n  a: {image: i}\n  b:\n    image: i\n    profiles: [debug]\n    restart: often\n",
			[]v1rc3.Variable{by("COMPOSE_PROFILES", "")},
			"", `line 6: services.b.restart: "often": want no, always, on-failure, on-failure:<count> or unless-stopped; so it is where a deployment chooses the profile debug`, nil,
		},
		{
			"needs a profile", "services:\n  a: {image: i, depends_on: [b]}\n  b: {image: i, profiles: [x]}\n",
			[]v1rc3.Variable{by("COMPOSE_PROFILES", "")},
			"", "so it is where a deployment gives no value for COMPOSE_PROFILES: it must, or give a default",
			[]string{"COMPOSE_PROFILES"},
		},
		{"will choose a profile", "services:\n  a: {image: i, depends_on: [b]}\n  b: {image: i, profiles: [x]}\n", open("COMPOSE_PROFILES"), "", "", nil},
		{
			"profile by default", "services:\n  a: {image: i}\n  b:\n    image: i\n    profiles: [debug]\n    restart: '${R}'\n",
			[]v1rc3.Variable{by("COMPOSE_PROFILES", "debug"), by("R", "often")},
			`line 6: services.b.restart: "often": want`, "",
			[]string{"R"},
		},
		{
			"in a config", "services:\n  a:\n    image: i\n    configs: [c]\nconfigs: {c: {file: './${F}'}}\n",
			[]v1rc3.Variable{by("F", "none.conf")},
			`line 4: services.a.configs: c: the archive has no file "none.conf"; so it is with the default "none.conf" of F`, "",
			[]string{"F"},
		},
	} {
		tgz := composeArchive(t, c.compose, nil)
		_, warnings, err := CheckArchive("web", tgz, c.variables)
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %v, want %q", c.name, err, c.problem)
		}
		if all := strings.Join(warnings, "\n"); (all == "") != (c.warn == "") || !strings.Contains(all, c.warn) {
			t.Errorf("%s: warnings %q, want %q", c.name, warnings, c.warn)
		}
		if got := Unfit("web", tgz, c.variables); !slices.Equal(got, c.unfit) {
			t.Errorf("%s: unfit %q, want %q", c.name, got, c.unfit)
		}
	}
}

// Warnings come in the order of the lines, whatever finds them.
func TestWarningsAreSorted(t *testing.T) {
	t.Parallel()
	compose := "services:\n  a:\n    image: i\n    mem_limit: '${A}'\n    volumes: ['${A}:/x']\n    ulimits: {nofile: '${A}'}\n    networks: {default: {ipv6_address: 'fd00::1'}}\n"
	_, warnings, err := CheckArchive("web", composeArchive(t, compose, nil), []v1rc3.Variable{by("A", "")})
	if err != nil || len(warnings) != 4 || !slices.IsSorted(warnings) {
		t.Errorf("%v, warnings %q", err, warnings)
	}
}

// What components claim by the defaults of parameters is known at an import.
func TestDefaultsMayClash(t *testing.T) {
	t.Parallel()
	compose := "services:\n  a:\n    image: '${I}'\n    ports: ['${P}:80']\n"
	c, _, err := CheckArchive("web", composeArchive(t, compose, nil), []v1rc3.Variable{by("I", "i:1"), by("P", "8080")})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Containers[0]; len(got.Ports) != 1 || got.Ports[0].Host != 8080 || got.Image != "i:1" {
		t.Errorf("ports %v, image %q; want 8080, and that of the default", got.Ports, got.Image)
	}
}
