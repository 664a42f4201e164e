package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestContexts logs in to two COs, and follows which one is asked, and with which token.
func TestContexts(t *testing.T) { // not parallel: it sets variables of the process
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("COLONY_URL", "")
	var shown string
	var mu sync.Mutex
	serve := func(name string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			shown = name + " " + r.Header.Get("Authorization")
			mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			switch {
			case r.Header.Get("Authorization") == "Bearer bad":
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = w.Write([]byte(`{"title":"Unauthorized","detail":"get another one"}`))
			case r.URL.Path == "/api/v1/principal":
				_, _ = w.Write([]byte(`{"name":"ann","role":"operator","token":"x","expires":"2030-01-01T00:00:00Z"}`))
			default:
				_, _ = w.Write([]byte(`{"items":[]}`))
			}
		}))
		t.Cleanup(s.Close)
		return s
	}
	one, two := serve("one"), serve("two")
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte("t1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	colony := func(code int, words string, args ...string) {
		t.Helper()
		shown = ""
		out, errs, got := runAt(t, args...)
		if got != code || !strings.Contains(out+errs, words) {
			t.Errorf("colony %s: exit code %d, want %d; %q is not in %q %q", strings.Join(args, " "), got, code, words, out, errs)
		}
	}
	asked := func(want string) {
		t.Helper()
		if shown != want {
			t.Errorf("asked %q, want %q", shown, want)
		}
	}
	colony(exitUsage, "no such file", "login", "--url", one.URL, "--token-file", secret+"none")
	colony(exitOK, "as ann (operator)", "login", "--url", one.URL, "--token-file", secret, "--context", "first")
	if err := os.WriteFile(secret, []byte("t2"), 0o600); err != nil {
		t.Fatal(err)
	}
	colony(exitOK, "context second", "login", "--url", two.URL+"/", "--token-file", secret, "--context", "second")
	colony(exitOK, "", "site", "list")
	asked("two Bearer t2")
	colony(exitOK, "", "site", "list", "--url", one.URL)
	asked("one Bearer t1")
	colony(exitOK, "second", "context", "list")
	colony(exitOK, "first is the current context", "context", "use", "first")
	colony(exitOK, "", "site", "list")
	asked("one Bearer t1")
	colony(exitUsage, "no context", "context", "use", "third")
	t.Setenv("COLONY_URL", two.URL)
	colony(exitOK, "", "site", "list")
	asked("two Bearer t2")
	t.Setenv("COLONY_TOKEN", "t3")
	colony(exitOK, "", "site", "list")
	asked("two Bearer t3")
	t.Setenv("COLONY_TOKEN", "bad")
	colony(exitError, "get another one", "site", "list")
	t.Setenv("COLONY_TOKEN", "")
	three := serve("three")
	colony(exitOK, "", "site", "list", "--url", three.URL)
	asked("three ") // a token goes to its own CO alone
	t.Setenv("COLONY_URL", "")
	colony(exitOK, "removed", "context", "remove", "first")
	to := httptest.NewServer(http.RedirectHandler(two.URL, http.StatusTemporaryRedirect))
	t.Cleanup(to.Close)
	t.Setenv("COLONY_TOKEN", "t4")
	colony(exitError, "the API is at "+two.URL, "site", "list", "--url", to.URL)
	asked("") // not where it leads
	t.Setenv("COLONY_TOKEN", "")
	colony(exitUnavailable, "does not answer", "site", "list", "--url", "http://127.0.0.1:1")
	file := filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "colony", "contexts.yaml")
	if err := os.WriteFile(file, []byte("current: lost\ncontexts: {a: {url: '"+one.URL+"', token: ta}, b: {url: '"+one.URL+"', token: tb}, c: {url: '"+two.URL+"', token: tc}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	colony(exitError, `"lost"`, "site", "list")
	colony(exitOK, "c ", "context", "list")
	colony(exitOK, "c is the current context", "context", "use", "c")
	colony(exitUsage, "the contexts a, b are all of", "site", "list", "--url", one.URL)
	asked("")
	colony(exitOK, "current context", "context", "use", "a")
	colony(exitOK, "", "site", "list", "--url", one.URL)
	asked("one Bearer ta")
	var logins sync.WaitGroup
	for i := range 8 {
		logins.Go(func() {
			if _, errs, code := runAt(t, "login", "--url", one.URL, "--token-file", secret, "--context", fmt.Sprint("at-once-", i)); code != exitOK {
				t.Errorf("login: %s", errs)
			}
		})
	}
	logins.Wait()
	list, _, _ := runAt(t, "context", "list")
	if got := strings.Count(list, "at-once-"); got != 8 {
		t.Errorf("%d contexts of 8 logins at once: %s", got, list)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	colony(exitError, "others may read", "site", "list")
}
