package auditapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"testing"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/audit"
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

// TestRefusalsArePersons checks that a client with the name of another does not use up the rows of
// that one.
func TestRefusalsArePersons(t *testing.T) {
	t.Parallel()
	rows := map[string]int{}
	rec := NewRecorder(RecorderOptions{Logger: slog.New(slog.DiscardHandler), Operation: func(*http.Request) string { return "DELETE /x" }, Add: func(_ context.Context, r audit.Row) error {
		rows[r.Subject]++
		return nil
	}})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "/api/v1/sites/plant", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 * refusalBurst {
		rec.Refused(r, access.Principal{Name: "oidc:vic", Issuer: "https://login.example", Subject: "eve"}, http.StatusForbidden, "no role")
	}
	rec.Refused(r, access.Principal{Name: "oidc:vic", Issuer: "https://login.example", Subject: "vic"}, http.StatusForbidden, "no role")
	if rows["vic"] != 1 || rows["eve"] > refusalBurst+1 {
		t.Errorf("rows by subject: %v, want one of vic and %d of eve", rows, refusalBurst)
	}
}
