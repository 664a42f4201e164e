package target_test

import (
	"testing"

	"github.com/colonyfleet/colony/co/registry/target"
	"github.com/colonyfleet/colony/protocol"
)

func TestParse(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	hosts := target.New(map[string]string{"registry.colony": "127.0.0.1:8080", "safe.colony": "https://co.example:8443"}, []string{"plant.example:5000"})
	for _, c := range []struct {
		ref, dialled, scheme, repository, host string
		own                                    bool
	}{
		{"registry.colony/web:1", "127.0.0.1:8080/web:1", "http", "registry.colony/web", "registry.colony", true},
		{"oci://registry.colony/web" + digest, "127.0.0.1:8080/web" + digest, "http", "registry.colony/web", "registry.colony", true},
		{"safe.colony/web:1", "co.example:8443/web:1", "https", "safe.colony/web", "safe.colony", true},
		{"plant.example:5000/a/b:1", "plant.example:5000/a/b:1", "http", "plant.example:5000/a/b", "plant.example:5000", false},
		{"quay.io/web:1", "quay.io/web:1", "https", "quay.io/web", "quay.io", false},
		{"nginx", "index.docker.io/library/nginx:latest", "https", "docker.io/library/nginx", "docker.io", false},
	} {
		got, err := hosts.Parse(c.ref)
		if err != nil {
			t.Errorf("%s: %v", c.ref, err)
			continue
		}
		if name := got.Dialled.Name(); name != c.dialled {
			t.Errorf("%s: dialled as %s, want %s", c.ref, name, c.dialled)
		}
		if scheme := got.Dialled.Context().Scheme(); scheme != c.scheme {
			t.Errorf("%s: scheme %s, want %s", c.ref, scheme, c.scheme)
		}
		if got.Repository() != c.repository {
			t.Errorf("%s: repository %s, want %s", c.ref, got.Repository(), c.repository)
		}
		if got.Host() != c.host {
			t.Errorf("%s: host %s, want %s", c.ref, got.Host(), c.host)
		}
		if got.Own != c.own {
			t.Errorf("%s: own %t, want %t", c.ref, got.Own, c.own)
		}
	}
	if got := hosts.Written("127.0.0.1:8080"); got != "registry.colony" {
		t.Errorf("the host of 127.0.0.1:8080 is %s, want registry.colony", got)
	}
	if got := hosts.Written("quay.io"); got != "quay.io" {
		t.Errorf("the host of quay.io is %s, want itself", got)
	}
	if _, err := hosts.Parse("registry.colony/Web:1"); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("upper case in a repository: %v, want an error of kind Invalid", err)
	}
}
