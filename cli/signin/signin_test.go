package signin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/internal/oidctest"
)

func options(idp *oidctest.Provider, out io.Writer, open func(string)) Options {
	return Options{
		How: access.SignIn{Issuer: idp.Issuer, ClientID: oidctest.ClientID, Scopes: []string{"openid", "profile", "groups", "offline_access"}},
		CO:  "http://co.example", HTTP: http.DefaultClient, Out: out, Open: open,
	}
}

// TestWays signs in both ways, renews, and signs out: what is left renews nothing any more.
func TestWays(t *testing.T) {
	t.Parallel()
	idp := oidctest.Start(t, oidctest.Options{Accounts: map[string]oidctest.Claims{"u-ann": {"groups": []string{"ops"}}}})
	for name, way := range map[string]Way{"any": Any, "device": Device, "browser": Browser} {
		var said strings.Builder
		pages := make(chan string, 1)
		o := options(idp, &said, func(address string) {
			go func() { pages <- idp.Approve(address, "u-ann") }()
		})
		o.Way = way
		text, s, err := In(t.Context(), o)
		if err != nil || strings.Count(text, ".") != 2 || s.Refresh == "" || time.Until(s.Ends) < 9*time.Minute || time.Until(s.Ends) > 10*time.Minute {
			t.Fatalf("%s: %v %+v", name, err, s)
		}
		if page := <-pages; way == Browser && !strings.Contains(page, "Signed in.") {
			t.Errorf("the page in the browser: %s", page)
		}
		if !strings.Contains(said.String(), "To sign in for http://co.example") {
			t.Errorf("%s: %s", name, said.String())
		}
		again, next, err := Renew(t.Context(), http.DefaultClient, s)
		if err != nil || again == text || next.Refresh == s.Refresh {
			t.Errorf("%s: renewed: %v %+v", name, err, next)
		}
		if err := Out(t.Context(), http.DefaultClient, next); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := Renew(t.Context(), http.DefaultClient, next); !errors.Is(err, ErrSignedOut) {
			t.Errorf("%s: renewed after the end: %v", name, err)
		}
	}
	if _, _, err := Renew(t.Context(), http.DefaultClient, Session{Issuer: idp.Issuer}); !errors.Is(err, ErrSignedOut) {
		t.Errorf("without a refresh token: %v", err)
	}
	if err := Out(t.Context(), http.DefaultClient, Session{}); err != nil {
		t.Error(err)
	}
}

// TestFailures has a provider that is away, that knows no such client, and a person that gives up.
func TestFailures(t *testing.T) {
	t.Parallel()
	idp := oidctest.Start(t, oidctest.Options{})
	o := options(idp, io.Discard, func(string) {})
	o.How.ClientID = "nobody"
	if _, _, err := In(t.Context(), o); err == nil || !strings.Contains(err.Error(), "invalid_client") {
		t.Errorf("an unknown client: %v", err)
	}
	o = options(idp, io.Discard, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, way := range []Way{Device, Browser} {
		o.Way, o.Open = way, func(string) { cancel() }
		if _, _, err := In(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted: %v", err)
		}
	}
	o.How.Issuer = idp.Issuer + "/none"
	if _, _, err := In(t.Context(), o); err == nil || !strings.Contains(err.Error(), "does not answer as one") {
		t.Errorf("no provider: %v", err)
	}
	if _, _, err := Renew(t.Context(), http.DefaultClient, Session{Issuer: "http://127.0.0.1:1", Refresh: "x"}); err == nil || errors.Is(err, ErrSignedOut) {
		t.Errorf("a provider that is away ends no sign-in: %v", err)
	}
}

// TestRead reads what browsers bring.
func TestRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		query, words string
		mine         bool
	}{
		{"state=s&code=c", "", true},
		{"state=s&code=c&iss=https%3A%2F%2Flogin.example", "", true},
		{"state=s&code=c&iss=https%3A%2F%2Fevil.example", "", false},
		{"state=x&code=c", "", false},
		{"code=c", "", false},
		{"state=s", "no code", true},
		{"state=s&error=access_denied", "refused in the browser", true},
		{"state=s&error=invalid_scope&error_description=which", "invalid_scope: which", true},
	} {
		a, mine := read(httptest.NewRequest(http.MethodGet, "/callback?"+tt.query, nil), "s", "https://login.example")
		if mine != tt.mine || tt.words == "" && a.err != nil || tt.words != "" && (a.err == nil || !strings.Contains(a.err.Error(), tt.words)) {
			t.Errorf("%s: %v %+v", tt.query, mine, a)
		}
	}
	if got := said(&oauth2.RetrieveError{ErrorCode: "expired_token"}); !strings.Contains(got.Error(), "colony login again") {
		t.Error(got)
	}
	if got := said(os.ErrClosed); !errors.Is(got, os.ErrClosed) {
		t.Error(got)
	}
}

// TestForeignAnswers has another page of the browser's call the loopback port: the sign-in goes on.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	idp := oidctest.Start(t, oidctest.Options{Accounts: map[string]oidctest.Claims{"u-ann": {}}})
	statuses := make(chan string, 1)
	o := options(idp, io.Discard, func(address string) {
		go func() {
			u, err := url.Parse(address)
			if err == nil {
				var resp *http.Response
				if resp, err = http.Get(u.Query().Get("redirect_uri") + "?code=stolen&state=guessed"); err == nil {
					statuses <- resp.Status
					err = resp.Body.Close()
				}
			}
			if err != nil {
				statuses <- fmt.Sprint(err)
			}
			idp.Approve(address, "u-ann")
		}()
	})
	o.Way = Browser
	if _, s, err := In(t.Context(), o); err != nil || s.Refresh == "" {
		t.Errorf("%v %+v", err, s)
	}
	if got := <-statuses; !strings.HasPrefix(got, "400") {
		t.Errorf("an answer with another state: %s", got)
	}
}
