package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// patience is how long a test waits for what should come at once.
const patience = 30 * time.Second

var errGone = errors.New("the client is gone")

// A stuckClient neither reads nor sends until it is released.
type stuckClient struct {
	header  http.Header
	reached chan struct{}
	release chan struct{}
	once    sync.Once
}

func newStuckClient() *stuckClient {
	return &stuckClient{header: http.Header{}, reached: make(chan struct{}), release: make(chan struct{})}
}

func (c *stuckClient) hang() (int, error) {
	c.once.Do(func() { close(c.reached) })
	<-c.release
	return 0, errGone
}

func (c *stuckClient) Header() http.Header       { return c.header }
func (c *stuckClient) WriteHeader(int)           {}
func (c *stuckClient) Write([]byte) (int, error) { return c.hang() }
func (c *stuckClient) Read([]byte) (int, error)  { return c.hang() }

// TestStuckClients has one client of each route that does not read its answer, or does
// not send its body. Everybody else can pull and push meanwhile.
func TestStuckClients(t *testing.T) {
	t.Parallel()
	const media = "application/vnd.oci.image.manifest.v1+json"
	d := protocol.DigestOf([]byte("blob"))
	tests := map[string]struct {
		method, path string
		sends        bool // it is the body that does not come
	}{
		"version":            {"GET", "", false},
		"catalog":            {"GET", "_catalog", false},
		"tags":               {"GET", "a/tags/list", false},
		"manifest":           {"GET", "a/manifests/1", false},
		"manifest refused":   {"GET", "a/manifests/9", false},
		"referrers":          {"GET", "a/referrers/" + string(d), false},
		"blob":               {"GET", "a/blobs/" + string(d), false},
		"blob refused":       {"DELETE", "a/blobs/sha256:0", false},
		"delete refused":     {"DELETE", "a/manifests/9", false},
		"push of a manifest": {"PUT", "a/manifests/2", true},
		"whole blob":         {"POST", "a/blobs/uploads/?digest=" + string(d), true},
		"part of a blob":     {"PATCH", "a/blobs/uploads/UPLOAD", true},
		"end of a blob":      {"PUT", "a/blobs/uploads/UPLOAD?digest=" + string(d), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, address := handler(t, t.TempDir(), Limits{})
			pushBlob(t, address, "a", []byte("blob"))
			pushManifest(t, address, "a", d)
			path := tt.path
			if strings.Contains(path, "UPLOAD") {
				_, head, _ := do(t, "POST", "http://"+address+"/v2/a/blobs/uploads/", nil)
				path = strings.Replace(path, "UPLOAD", head.Get("Docker-Upload-Uuid"), 1)
			}
			stuck := newStuckClient()
			var body io.Reader = http.NoBody
			if tt.sends {
				body = stuck
			}
			r := httptest.NewRequestWithContext(t.Context(), tt.method, "/v2/"+path, body)
			r.Header.Set("Content-Type", media)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				h.ServeHTTP(stuck, r)
			}()
			defer func() { close(stuck.release); <-ended }()
			select {
			case <-stuck.reached:
			case <-time.After(patience):
				t.Fatal("the request did not come to its client")
			}
			others(t, address)
			cleaned := make(chan error, 1)
			go func() { cleaned <- h.Clean(t.Context(), time.Now()) }()
			select {
			case err := <-cleaned:
				must(t, err)
			case <-time.After(patience):
				t.Error("the garbage collection waits for the client")
			}
		})
	}
}

// others pulls and pushes as other clients do.
func others(t *testing.T, address string) {
	t.Helper()
	d := protocol.DigestOf([]byte("blob"))
	manifest := fmt.Sprintf(`{"schemaVersion":2,"layers":[{"mediaType":"x","digest":%q,"size":1}]}`, d)
	for _, step := range []struct {
		method, path, body string
		status             int
	}{
		{"PUT", "a/manifests/1", manifest, http.StatusCreated}, // waits for readers
		{"GET", "a/manifests/1", "", http.StatusOK},            // waits for a writer that waits
		{"GET", "a/blobs/" + string(d), "", http.StatusOK},
		{"POST", "b/blobs/uploads/?digest=" + string(d), "blob", http.StatusCreated},
		{"GET", "a/tags/list", "", http.StatusOK},
		{"GET", "a/referrers/" + string(d), "", http.StatusOK},
		{"DELETE", "b/blobs/" + string(d), "", http.StatusAccepted},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		req, err := http.NewRequestWithContext(ctx, step.method, "http://"+address+"/v2/"+step.path, strings.NewReader(step.body))
		must(t, err)
		req.Close = true
		req.Header.Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		resp, err := http.DefaultClient.Do(req)
		cancel()
		if err != nil {
			t.Fatalf("%s %s while a client is stuck: %v", step.method, step.path, err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != step.status {
			t.Errorf("%s %s while a client is stuck: %s, want %d", step.method, step.path, resp.Status, step.status)
		}
	}
}
