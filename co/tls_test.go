package co_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/tlstest"
)

// TestAPIByTLS serves API, registry and metrics by TLS, with another certificate once the files are others; nothing is
// served in clear.
func TestAPIByTLS(t *testing.T) {
	t.Parallel()
	o := identified(t)
	o.Identity = co.IdentityOptions{}
	dir := t.TempDir()
	o.Access.Certificate, o.Access.Key = filepath.Join(dir, "api.pem"), filepath.Join(dir, "api.key")
	if c, err := co.New(o); err != nil {
		t.Fatal(err)
	} else if err := c.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "access.certificate") {
		t.Fatalf("a CO without the files of its certificate starts: %v", err)
	}
	first := tlstest.Write(t, o.Access.Certificate, o.Access.Key, time.Now().Add(time.Hour))
	c := startCO(t, o)
	get := func(scheme, path string, roots *x509.CertPool) (string, error) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}}
		resp, err := client.Get(scheme + "://" + c.HTTPAddr() + path)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp.Status + " " + string(b), err
	}
	for _, path := range []string{"/api/v1/sites", "/v2/", "/metrics"} {
		if got, err := get("https", path, first); err != nil || !strings.HasPrefix(got, "200") {
			t.Errorf("%s: %s %v", path, got, err)
		}
		if got, err := get("http", path, nil); err != nil || !strings.HasPrefix(got, "400") {
			t.Errorf("%s in clear: %s %v, want 400", path, got, err)
		}
	}
	second := tlstest.Write(t, o.Access.Certificate, o.Access.Key, time.Now().Add(time.Hour))
	testpart.Eventually(t, "the new certificate is shown", func() bool {
		_, err := get("https", "/healthz", second)
		return err == nil
	})
	if _, err := get("https", "/healthz", first); !errors.As(err, new(*tls.CertificateVerificationError)) {
		t.Errorf("with the former root: %v", err)
	}
}

// TestOptionsOfTLS has a CO refuse what cannot work.
func TestOptionsOfTLS(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*co.Options){
		"go together":            func(o *co.Options) { o.Access.Certificate = "/etc/api.pem" },
		"access.key \"api.key\"": func(o *co.Options) { o.Access.Certificate, o.Access.Key = "/etc/api.pem", "api.key" },
		"without identity.http": func(o *co.Options) {
			o.Access.Certificate, o.Access.Key = "/etc/api.pem", "/etc/api.key"
			o.Identity = co.IdentityOptions{Enrol: "127.0.0.1:0", MQTT: "127.0.0.1:0"}
		},
	} {
		o := identified(t)
		o.Identity = co.IdentityOptions{}
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}
