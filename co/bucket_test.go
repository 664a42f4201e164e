package co_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/registry/storage/objects"
	"github.com/colonyfleet/colony/internal/s3test"
)

// TestReplicasOfOneBucket pushes images to a CO whose registry is in object storage, and pulls them from
// another one with the same bucket and database. While the storage is away both say so, and serve again after it.
func TestReplicasOfOneBucket(t *testing.T) {
	t.Parallel()
	storage := s3test.Start(t)
	storage.Bucket("fleet")
	first := start(t, func(o *co.Options) {
		o.RegistryObjects = objects.Location{Endpoint: storage.URL, Bucket: "fleet", Prefix: "registry", CredentialFile: storage.CredentialFile}
	})
	o := first.options
	o.StateDir, o.Listeners, o.Registerer = t.TempDir(), nil, nil
	second := startCO(t, o)
	first.pushSample()
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + second.HTTPAddr() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	const manifest = "/v2/samples/hello/manifests/1.0.0"
	if code, body := get("/v2/_catalog"); code != http.StatusOK || !strings.Contains(body, `["samples/compose/hello","samples/hello"]`) {
		t.Errorf("the catalog of the other CO: %d %s", code, body)
	}
	if code, body := get(manifest); code != http.StatusOK || !strings.Contains(body, "layers") {
		t.Errorf("the manifest at the other CO: %d %s", code, body)
	}
	storage.Kill()
	if code, body := get(manifest); code != http.StatusServiceUnavailable || !strings.Contains(body, "try again later") || strings.Contains(body, storage.URL) {
		t.Errorf("while the storage is away: %d %s", code, body)
	}
	storage.Again()
	if code, body := get(manifest); code != http.StatusOK {
		t.Errorf("after it: %d %s", code, body)
	}
}
