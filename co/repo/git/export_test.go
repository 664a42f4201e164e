package git

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// TestExportUsesNothingOfItsProcess fetches from a remote by ssh while the process has
// an agent and configuration of its own.
func TestExportUsesNothingOfItsProcess(t *testing.T) {
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	script := "#!/bin/sh\n{ echo \"$@\"; env; } > " + asked + "\nexit 1\n"
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte(script), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, name := range []string{"SSH_AUTH_SOCK", "SSH_ASKPASS", "GIT_ASKPASS", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_CONFIG_VALUE_0"} {
		t.Setenv(name, "/secret/of/the/co")
	}
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "credential.helper")
	if _, err := Export(t.Context(), Options{}, "ssh://git@git.example/apps", "", t.TempDir()); err == nil {
		t.Fatal("it was exported")
	}
	b, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "/secret/of/the/co") {
		t.Errorf("ssh was given what is the process's own:\n%s", b)
	}
	args, _, _ := strings.Cut(string(b), "\n")
	for _, want := range []string{"-F /dev/null", "-oPubkeyAuthentication=no", "-oIdentityAgent=none", "-oBatchMode=yes"} {
		if !strings.Contains(args, want) {
			t.Errorf("ssh was run with %q, want %s", args, want)
		}
	}
	if _, err := Export(t.Context(), Options{SSHCommand: filepath.Join(dir, "ssh") + " -i /key/named/for/it"}, "git@git.example:apps", "", t.TempDir()); err == nil {
		t.Fatal("it was exported")
	}
	if b, err = os.ReadFile(asked); err != nil || !strings.Contains(string(b), "-i /key/named/for/it") {
		t.Errorf("the command that is named for the remote was not used: %v\n%s", err, b)
	}
}

// TestExportFollowsNobody has a remote that leads to another server, and one that asks
// for credentials that stand in the user's files.
func TestExportFollowsNobody(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".netrc"), []byte("default login ann password secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	var reached, authorised atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer other.Close()
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			authorised.Add(1)
		}
		if strings.HasPrefix(r.URL.Path, "/private") {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, other.URL+r.URL.Path+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
	}))
	defer remote.Close()
	for _, path := range []string{"/apps", "/private"} {
		if _, err := Export(t.Context(), Options{}, remote.URL+path, "", t.TempDir()); protocol.KindOf(err) != protocol.Unavailable {
			t.Errorf("%s: %v, want unavailable", path, err)
		}
	}
	if reached.Load() != 0 || authorised.Load() != 0 {
		t.Errorf("%d requests to the other server, %d with credentials", reached.Load(), authorised.Load())
	}
}
