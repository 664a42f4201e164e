package co_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/tlstest"
)

// TestOwnRegistry imports an application whose archive and image are in the CO's own registry, and deploys it: where the
// registry is served by TLS with a certificate of another name, and where it wants a token for pulls, too.
func TestOwnRegistry(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*co.Options){
		"in clear": func(*co.Options) {},
		"by TLS": func(o *co.Options) {
			o.Access.Certificate, o.Access.Key = filepath.Join(o.StateDir, "api.pem"), filepath.Join(o.StateDir, "api.key")
			tlstest.Write(t, o.Access.Certificate, o.Access.Key, time.Now().Add(time.Hour))
		},
		"where sites fetch elsewhere": func(o *co.Options) {
			o.Identity = co.IdentityOptions{Enrol: "127.0.0.1:0", MQTT: "127.0.0.1:0", HTTP: "127.0.0.1:0"}
			rootOf(t, *o)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			b.pushSample()
			// A CO that is stopped while it makes the first commit of the deployments repo may leave the lock of git's push there.
			testpart.Within(t, time.Minute, "the CO has a deployments repo", func() error {
				resp, err := http.Get("http://" + b.co.HTTPAddr() + "/readyz")
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					return errors.New(resp.Status)
				}
				return nil
			})
			b.coStop()
			o := b.options
			o.Access.Required, o.Listeners, o.Registerer = true, nil, nil
			change(&o)
			b = &bench{t: t, co: startCO(t, o), options: o}
			_, admin := b.tokenOf("root", access.Admin, time.Hour)
			source, err := filepath.Abs("../examples/registry")
			if err != nil {
				t.Fatal(err)
			}
			scheme := "http"
			if o.Access.Certificate != "" {
				scheme = "https"
			}
			// The certificate of the test is of no authority; what is tested is the CO's own way.
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // see above
			defer client.CloseIdleConnections()
			post := func(path string, body map[string]any) (int, string) {
				t.Helper()
				content, err := json.Marshal(body)
				if err != nil {
					t.Fatal(err)
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, scheme+"://"+b.co.HTTPAddr()+path, strings.NewReader(string(content)))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Authorization", "Bearer "+admin)
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				said, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp.StatusCode, string(said)
			}
			if status, said := post("/api/v1/apps", map[string]any{"source": source + "/hello-1.0.0"}); status >= 300 || !strings.Contains(said, `"version":"1.0.0"`) || strings.Contains(said, "pull") {
				t.Errorf("import: %d %s", status, said)
			}
			if status, said := post("/api/v1/sites", map[string]any{"id": "quay"}); status != http.StatusCreated {
				t.Errorf("%d %s", status, said)
			}
			if status, said := post("/api/v1/deployments", map[string]any{"site": "quay", "app": "hello", "version": "1.0.0"}); status >= 300 {
				t.Errorf("deploy: %d %s", status, said)
			}
		})
	}
}
