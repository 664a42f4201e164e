package registryauth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	f, err := Read(write(t, `{"auths": {
		"r.example:5000": {"auth": "YW5uOnNlOmNyZXQ="},
		"https://index.docker.io/v1/": {"username": "bob", "password": "p"},
		"token.example": {"identitytoken": "t"},
		"bad.example": {"auth": "!"}, "odd.example": {"auth": "YW5u"},
		"kept.example": {}
	}, "credsStore": "secretservice", "credHelpers": {"aws.example": "ecr-login"}}`))
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]struct{ user, password, err string }{
		"r.example:5000":  {"ann", "se:cret", ""},
		"docker.io":       {"bob", "p", ""},
		"index.docker.io": {"bob", "p", ""},
		"token.example":   {"", "t", ""},
		"other.example":   {"", "", ""},
		"bad.example":     {"", "", `auths["bad.example"].auth: want the base64`},
		"odd.example":     {"", "", "no colon"},
		"kept.example":    {"", "", "docker-credential-secretservice, which is not run"},
		"aws.example":     {"", "", "docker-credential-ecr-login, which is not run"},
	} {
		user, password, err := f.Credentials(host)
		if user != want.user || password != want.password || (err == nil) != (want.err == "") || err != nil && !strings.Contains(err.Error(), want.err) {
			t.Errorf("%s: %q %q %v, want %+v", host, user, password, err, want)
		}
	}
	if user, password, err := (File{}).Credentials("r.example"); user+password != "" || err != nil {
		t.Errorf("the zero value: %q %q %v", user, password, err)
	}
	if _, err := Read(write(t, "auths: {}")); err == nil || !strings.Contains(err.Error(), "want JSON with auths") {
		t.Errorf("YAML: %v", err)
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there was read")
	}
}

func TestDefault(t *testing.T) {
	session, docker := t.TempDir(), t.TempDir()
	t.Setenv("REGISTRY_AUTH_FILE", "")
	t.Setenv("XDG_RUNTIME_DIR", session)
	t.Setenv("DOCKER_CONFIG", docker)
	if got := Default(); got != "" {
		t.Errorf("without any file: %q", got)
	}
	for _, path := range []string{filepath.Join(docker, "config.json"), filepath.Join(session, "containers", "auth.json")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Default(); got != path {
			t.Errorf("Default() = %q, want %q", got, path)
		}
	}
	t.Setenv("REGISTRY_AUTH_FILE", "/named")
	if got := Default(); got != "/named" {
		t.Errorf("with REGISTRY_AUTH_FILE: %q", got)
	}
}
