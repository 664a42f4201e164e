package login

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/signin"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/internal/oidctest"
)

// meanwhile is a transport that does something once an answer to a renewal has come, and keeps that.
type meanwhile struct {
	do      func()
	renewed signin.Session
}

func (m *meanwhile) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || !strings.HasSuffix(r.URL.Path, "/token") {
		return resp, err
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body = io.NopCloser(bytes.NewReader(b))
	var says struct {
		Refresh string `json:"refresh_token"`
	}
	m.do()
	err = errors.Join(err, json.Unmarshal(b, &says))
	m.renewed.Refresh = says.Refresh
	return resp, err
}

// TestRenewalMeanwhile has other commands change the context while one renews its sign-in, and hold the file of contexts.
// It is not parallel: the directory of contexts is a variable of the process.
func TestRenewalMeanwhile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	idp := oidctest.Start(t, oidctest.Options{Accounts: map[string]oidctest.Claims{"u-ann": {"groups": []string{"ops"}}}})
	signIn := func() Context {
		t.Helper()
		text, s, err := signin.In(t.Context(), signin.Options{
			How: access.SignIn{Issuer: idp.Issuer, ClientID: oidctest.ClientID, Scopes: []string{"openid", "groups", "offline_access"}},
			CO:  "http://co.example", HTTP: http.DefaultClient, Out: io.Discard, Way: signin.Browser,
			Open: func(address string) { go idp.Approve(address, "u-ann") },
		})
		if err != nil {
			t.Fatal(err)
		}
		return Context{URL: "http://co.example", Token: text, Session: &s}
	}
	keep := func(c Context) {
		if err := update(func(all *Contexts) error {
			all.Current, all.Contexts["co"] = "co", c
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	env := &command.Env{Out: io.Discard, Err: io.Discard, Timeout: time.Minute}
	other := signIn()
	for name, c := range map[string]struct {
		do   func()
		want string // the token that counts afterwards; "": none, and "renewed"
		err  error
	}{
		"a logout": {do: func() {
			cmd := Out(env)
			cmd.SetArgs(nil)
			if err := cmd.ExecuteContext(context.Background()); err != nil {
				t.Error(err)
			}
		}, err: signin.ErrSignedOut},
		"another sign-in": {do: func() { keep(other) }, want: other.Token},
		"the file is held": {do: func() {
			lock, err := filelock.Acquire(filepath.Join(dir, "colony", "contexts.yaml.lock"))
			if err != nil {
				t.Error(err)
				return
			}
			time.AfterFunc(2*time.Second, func() { _ = lock.Close() }) // longer than Acquire waits
		}, want: "renewed"},
	} {
		was := signIn()
		was.Session.Ends = time.Now().Add(-time.Second)
		keep(was)
		during := &meanwhile{do: c.do, renewed: *was.Session}
		r := &renewer{name: "co", c: was, http: &http.Client{Transport: during}}
		got, err := r.token(t.Context())
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
		all, lerr := load()
		if lerr != nil {
			t.Fatal(lerr)
		}
		now := all.Contexts["co"]
		want := c.want
		if want == "renewed" {
			want = now.Token
			if now.Session.Refresh != during.renewed.Refresh {
				t.Errorf("%s: the renewed sign-in was not kept", name)
			}
		} else if _, _, err := signin.Renew(t.Context(), http.DefaultClient, during.renewed); !errors.Is(err, signin.ErrSignedOut) {
			t.Errorf("%s: what nobody keeps lives on at the provider: %v", name, err)
		}
		if now.Token != want || got != want {
			t.Errorf("%s: the context has token %.20s…, the command shows %.20s…, want %.20s…", name, now.Token, got, want)
		}
	}
}
