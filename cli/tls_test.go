package cli

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/configfile"
)

// TestAPIWithTLS talks to an API whose certificate the system does not know: it is refused, until its own is named;
// a context keeps that.
func TestAPIWithTLS(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/principal" {
			_, _ = w.Write([]byte(`{"name":"ann","role":"admin","expires":"2126-01-01T00:00:00Z"}`))
			return
		}
		_, _ = w.Write([]byte(`{"items":[]}`))
	}))
	defer server.Close()
	ca := filepath.Join(home, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(home, "other.pem")
	if err := os.WriteFile(other, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	plain := "http" + strings.TrimPrefix(server.URL, "https")
	for _, tt := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"unknown certificate", []string{"site", "list", "--url", server.URL}, exitError, "--ca or COLONY_CA"},
		{"unknown certificate of a stream", []string{"events", "--follow", "--url", server.URL}, exitError, "--ca or COLONY_CA"},
		{"its certificate", []string{"site", "list", "--url", server.URL, "--ca", ca}, exitOK, ""},
		{"by HTTP", []string{"site", "list", "--url", plain}, exitUsage, "name its address with https://"},
		{"no such file", []string{"site", "list", "--url", server.URL, "--ca", ca + "x"}, exitUsage, "no such file"},
		{"no certificate", []string{"site", "list", "--url", server.URL, "--ca", other}, exitUsage, "want a file with certificates in PEM"},
	} {
		stdout, stderr, code := runAt(t, tt.args...)
		if code != tt.code || !strings.Contains(stderr, tt.says) {
			t.Errorf("%s: exit code %d, want %d; said %q, want %q\n%s", tt.name, code, tt.code, stderr, tt.says, stdout)
		}
	}

	token := filepath.Join(home, "token")
	if err := os.WriteFile(token, []byte("a.b.c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := runAt(t, "login", "--url", server.URL, "--ca", ca, "--token-file", token, "--context", "hall"); code != exitOK {
		t.Fatalf("login: %d %s", code, stderr)
	}
	for _, args := range [][]string{{"site", "list"}, {"site", "list", "--url", server.URL}} {
		if _, stderr, code := runAt(t, args...); code != exitOK {
			t.Errorf("%v with the context: %d %s", args, code, stderr)
		}
	}
	var kept struct {
		Current  string
		Contexts map[string]map[string]string
	}
	if err := configfile.Load(filepath.Join(home, "colony", "contexts.yaml"), &kept); err != nil {
		t.Fatal(err)
	}
	if got := kept.Contexts["hall"]["ca"]; !strings.Contains(got, "BEGIN CERTIFICATE") {
		t.Errorf("ca of the context = %q", got)
	}
	t.Setenv("COLONY_CA", other)
	if _, stderr, code := runAt(t, "site", "list"); code != exitUsage || !strings.Contains(stderr, "COLONY_CA") {
		t.Errorf("COLONY_CA that is no certificate: %d %s", code, stderr)
	}
}
