package lo

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/configfile"
)

// certificate writes a certificate for 127.0.0.1 and its key, and returns what trusts it.
func certificate(t *testing.T, chain, key string) *x509.CertPool {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	pemChain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pemChain)
	for path, b := range map[string][]byte{chain: pemChain, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pool
}

// The listeners of a configuration file serve the site's broker, each with its rules.
func TestListeners(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	chain, key, socket := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "mqtt.sock")
	pool := certificate(t, chain, key)
	file := filepath.Join(dir, "lo.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
listeners:
  - {name: tls, network: tls, address: "127.0.0.1:0", certificate: %[1]s, key: %[2]s, users: ["mes@s1"], from: [127.0.0.0/8]}
  - {name: wss, network: ws, address: "127.0.0.1:0", certificate: %[1]s, key: %[2]s, origins: ["https://hmi.example"]}
  - {name: local, network: unix, address: %[3]s, mode: "0660"}
`, chain, key, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	o := localOptions(t, newFakeCO(t), filepath.Join(dir, "state"), "127.0.0.1:0")
	if err := configfile.Load(file, &o); err != nil {
		t.Fatal(err)
	}
	l := startLO(t, o)
	connects := func(url, user string, within time.Duration) bool {
		up := make(chan struct{}, 1)
		c, err := client.New(client.Options{
			URLs: []string{url}, ClientID: user, Username: user, Logger: logger(t), TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
			OnUp: func(context.Context, string) { up <- struct{}{} },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := c.Stop(ctx); err != nil {
				t.Error(err)
			}
		}()
		select {
		case <-up:
			return true
		case <-time.After(within):
			return false
		}
	}
	for url, user := range map[string]string{
		"tls://" + l.broker.Addr("tls"): "mes@s1", "wss://" + l.broker.Addr("wss"): "scada@s1", "unix://" + socket: "hist@s1", "tcp://" + l.MQTTAddr(): "other@s1",
	} {
		if !connects(url, user, patience) {
			t.Errorf("%s does not connect to %s", user, url)
		}
	}
	if connects("tls://"+l.broker.Addr("tls"), "scada@s1", 2*time.Second) {
		t.Error("a user connects that the listener does not name")
	}
	bad := o
	bad.Logger = o.Logger
	bad.Listeners[0].Name, bad.Listeners[1].Key = mqttListener, ""
	if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), "listener mqtt") || !strings.Contains(err.Error(), "listener wss: certificate and key") {
		t.Errorf("%v, want an error with both listeners", err)
	}
}
