package co_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/client/clienttest"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/metricstest"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// identified returns the options of a CO that enrols machines.
func identified(t *testing.T) co.Options {
	t.Helper()
	dir := t.TempDir()
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT, o.Git.Remote = filepath.Join(dir, "co"), pgtest.New(t), "127.0.0.1:0", "127.0.0.1:0", filepath.Join(dir, "remote.git")
	o.Identity = co.IdentityOptions{Enrol: "127.0.0.1:0", MQTT: "127.0.0.1:0"}
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	if err := git.InitBare(t.Context(), o.Git.Remote, "main"); err != nil {
		t.Fatal(err)
	}
	return o
}

// rootOf makes the root of a CO before the CO does.
func rootOf(t *testing.T, o co.Options) *identity.Authority {
	t.Helper()
	files, err := store.Open(nil, store.Dir(o.StateDir))
	if err != nil {
		t.Fatal(err)
	}
	root, _, err := files.InitRoot(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// startCO starts a CO, and stops it with the test.
func startCO(t *testing.T, o co.Options) *co.CO {
	t.Helper()
	c, err := co.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

// siteToken makes the join token of a site by the API.
func siteToken(t *testing.T, c *co.CO, site string) identity.Token {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.HTTPAddr()+"/api/v1/sites/"+site+"/join-tokens", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("join token: %s %s %v", resp.Status, raw, err)
	}
	var out struct{ Token string }
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	token, err := identity.ParseToken(out.Token)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func key(t *testing.T) *identity.Credential {
	t.Helper()
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return &identity.Credential{Key: k}
}

// TestEnrolment enrols an LO at a running CO with a token of its API, renews its certificate,
// and has a second machine refused that uses the same token.
func TestEnrolment(t *testing.T) {
	t.Parallel()
	o := identified(t)
	root := rootOf(t, o)
	c := startCO(t, o)
	token := siteToken(t, c, "plant1")
	lo := func(site string) enrol.Machine {
		return enrol.Machine{
			Name: identity.OfLO(protocol.SiteID(site)), Server: identity.OfCO(), Addresses: []string{c.EnrolAddr()},
			Key: key(t).Key, Authority: key(t).Key, Clock: identity.NewClock(time.Now, identity.Floor{}, nil),
		}
	}
	m := lo("plant1")
	if _, err := enrol.Join(t.Context(), lo("plant2"), token); identity.CodeOf(err) != identity.WrongSite {
		t.Errorf("the token at another site: %v", err)
	}
	got, err := enrol.Join(t.Context(), m, token)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Machine.Root.Equal(root.Root()) {
		t.Error("the certificate is of another root")
	}
	h := identity.NewHolder(m.Clock)
	h.Set(got.Machine)
	connects(t, c, h, "plant1", true)
	connects(t, c, h, "plant2", false)
	connects(t, c, nil, "plant1", false)
	if _, err := enrol.Renew(t.Context(), m, h); err != nil {
		t.Errorf("renewal: %v", err)
	}
	if _, err := enrol.Join(t.Context(), lo("plant1"), token); identity.CodeOf(err) != identity.TokenExhausted {
		t.Errorf("the token again, by another machine: %v", err)
	}
	resp, err := http.Get("http://" + c.HTTPAddr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	metricstest.Check(t, metrics, "colony_co_", "colony_broker_")
	for _, line := range []string{
		`colony_co_enrolments_refused_total{code="token_exhausted"} 1`, `colony_co_enrolments_refused_total{code="wrong_site"} 1`,
		`colony_co_certificates_issued_total 4`,
	} {
		if !strings.Contains(string(metrics), line) {
			t.Errorf("metrics have no %s", line)
		}
	}
}

// connects checks whether a client gets in as a site: by TLS with a certificate, or by the
// plain listener without one.
func connects(t *testing.T, c *co.CO, h *identity.Holder, site protocol.SiteID, want bool) {
	t.Helper()
	o := client.Options{
		URLs: []string{"tcp://" + c.MQTTAddr()}, ClientID: string(site), Username: string(site),
		Subscriptions: []client.Subscription{{Filter: topic.ForSite(topic.SiteDesired, site), QoS: 1}},
	}
	if h != nil {
		o.URLs, o.TLS = []string{"tls://" + c.MachineAddr()}, h.ClientTLS(identity.OfCO())
	}
	if err := clienttest.Attempt(t, o); (err == nil) != want {
		t.Errorf("as site %s: %v, want it to connect: %v", site, err, want)
	}
}

// TestNoRoot checks that a CO that is to enrol machines does not make a root by itself: the
// machines of a lost one would be locked out without a word.
func TestNoRoot(t *testing.T) {
	t.Parallel()
	c, err := co.New(identified(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err == nil || !strings.Contains(fmt.Sprint(err), "colony ca init") {
		t.Errorf("started without a root: %v", err)
	}
}
