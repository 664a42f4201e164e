package auditapi

import (
	"net/url"
	"testing"
)

func TestTarget(t *testing.T) {
	t.Parallel()
	for asked, want := range map[string]string{
		"/api/v1/sites/plant?force=true":       "/api/v1/sites/plant?force=true",
		"/api/v1/sites/%70lant?force=true":     "/api/v1/sites/plant?force=true",
		"/%61pi/v1/sites/pl%61nt/data%2drules": "/api/v1/sites/plant/data-rules",
		"/api/v1/sites/a%2fb":                  "/api/v1/sites/a%2Fb", // one part of the path
		"/api/v1/sites/a%20b%3f":               "/api/v1/sites/a%20b%3F",
		"/v2/a/manifests/sha256%3a00":          "/v2/a/manifests/sha256:00",
	} {
		u, err := url.ParseRequestURI(asked)
		if err != nil {
			t.Fatal(err)
		}
		if got := target(u); got != want {
			t.Errorf("%s: %s, want %s", asked, got, want)
		}
	}
}
