package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/tlstest"
)

// TestCertificateOfAPI judges what the API is served with.
func TestCertificateOfAPI(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	chain, key := filepath.Join(dir, "api.pem"), filepath.Join(dir, "api.key")
	tls := co.AccessOptions{Required: true, Certificate: chain, Key: key}
	for _, tt := range []struct {
		name   string
		http   string
		access co.AccessOptions
		end    time.Duration // of the certificate
		want   doctor.Status
		says   string
	}{
		{"no tokens", "0.0.0.0:8080", co.AccessOptions{}, 0, doctor.OK, "without TLS"},
		{"tokens on the loopback", "127.0.0.1:8080", co.AccessOptions{Required: true}, 0, doctor.OK, "without TLS"},
		{"tokens on the network", "0.0.0.0:8080", co.AccessOptions{Required: true}, 0, doctor.Warn, "tokens go over the network in clear"},
		{"no such file", "0.0.0.0:8080", co.AccessOptions{Certificate: chain + "x", Key: key}, time.Hour, doctor.Fail, "cannot be used"},
		{"ended", "0.0.0.0:8080", tls, -time.Minute, doctor.Fail, "(127.0.0.1) ended at"},
		{"ends soon", "0.0.0.0:8080", tls, soon - time.Hour, doctor.Warn, "(127.0.0.1) ends at"},
		{"lasts", "0.0.0.0:8080", tls, soon + time.Hour, doctor.OK, "(127.0.0.1) ends at"},
	} {
		if tt.end != 0 {
			tlstest.Write(t, chain, key, now.Add(tt.end))
		}
		got := judgeCertificate(co.Options{HTTP: tt.http, Access: tt.access}, now)
		if got.Status != tt.want || !strings.Contains(got.Message, tt.says) {
			t.Errorf("%s: %v %q, want %v %q", tt.name, got.Status, got.Message, tt.want, tt.says)
		}
	}
}

// TestPartsByTLS asks a CO that serves its API by TLS, with its own certificate and with another one.
func TestPartsByTLS(t *testing.T) {
	t.Parallel()
	o, _ := aCO(t)
	dir := t.TempDir()
	o.Access.Certificate, o.Access.Key = filepath.Join(dir, "api.pem"), filepath.Join(dir, "api.key")
	tlstest.Write(t, o.Access.Certificate, o.Access.Key, time.Now().Add(time.Hour))
	c, err := co.New(o)
	must(t, err)
	testpart.Start(t, c)
	testpart.Eventually(t, "the CO is ready", func() bool {
		_, err := ask(t.Context(), o, "/readyz")
		return err == nil
	})
	served, err := os.ReadFile(o.Access.Certificate)
	must(t, err)
	elsewhere := o
	elsewhere.Access.Certificate = filepath.Join(dir, "other.pem")
	tlstest.Write(t, elsewhere.Access.Certificate, filepath.Join(dir, "other.key"), time.Now().Add(time.Hour))
	if _, err := ask(t.Context(), elsewhere, "/readyz"); err == nil || !strings.Contains(err.Error(), "another certificate") {
		t.Errorf("with another certificate: %v", err)
	}
	must(t, os.WriteFile(elsewhere.Access.Certificate, served[:10], 0o600))
	if _, err := ask(t.Context(), elsewhere, "/readyz"); err == nil || !strings.Contains(err.Error(), "want a certificate in PEM") {
		t.Errorf("with half a certificate: %v", err)
	}
}
