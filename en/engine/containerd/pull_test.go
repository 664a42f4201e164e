package containerd

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/registryhosts"
	"github.com/colonyfleet/colony/protocol"
)

func TestPullFaults(t *testing.T) {
	t.Parallel()
	r := setup(t)
	_, digest, _ := strings.Cut(r.image, "@")
	corrupt := func(w http.ResponseWriter, req *http.Request) {
		rec := httptest.NewRecorder()
		r.registry.Serve(rec, req)
		b := rec.Body.Bytes()
		b[len(b)/2] ^= 1
		_, _ = w.Write(b) // a client that left is its own business
	}
	answer := func(status int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(status); return true }
	}
	for _, test := range []struct {
		name, ref string
		fault     func(http.ResponseWriter, *http.Request) bool
		code      protocol.Code
	}{
		{"no digest", r.registry.Host + "/tools:latest", nil, protocol.ImageNotFound},
		{"unauthorized", r.image, answer(http.StatusUnauthorized), protocol.ImageUnauthorized},
		{"forbidden", r.image, answer(http.StatusForbidden), protocol.ImageUnauthorized},
		{"no registry", "127.0.0.1:1/tools@" + digest, nil, protocol.RegistryUnavailable},
		{"bad gateway", r.image, answer(http.StatusBadGateway), protocol.RegistryUnavailable},
		{"too many requests", r.image, answer(http.StatusTooManyRequests), protocol.RegistryUnavailable},
		{"other bytes", r.image, func(w http.ResponseWriter, req *http.Request) bool {
			if req.Method == http.MethodHead || !strings.Contains(req.URL.Path, "/blobs/") {
				return false
			}
			corrupt(w, req)
			return true
		}, protocol.DigestMismatch},
		{"connection breaks", r.image, func(w http.ResponseWriter, req *http.Request) bool {
			if req.Method == http.MethodHead || !strings.Contains(req.URL.Path, "/blobs/") {
				return false
			}
			w.Header().Set("Content-Length", "200")
			_, _ = w.Write([]byte("torn")) // ends before what it promised
			return true
		}, protocol.RegistryUnavailable},
		{"other platform", r.registry.Add(t, "other", containerdtest.Image{Program: []byte("x"), Arch: "mips"}), nil, protocol.Incompatible},
	} {
		r.registry.Fault(test.fault)
		err := r.Pull(t.Context(), test.ref, nil)
		if err == nil || engine.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.ref) {
			t.Errorf("%s: error %v (%s), want %s that names the image", test.name, err, engine.CodeOf(err), test.code)
		}
	}
	r.registry.Fault(nil)
	if err := r.Pull(t.Context(), r.image, nil); err != nil {
		t.Errorf("after the faults: %v", err)
	}
}

// A pull that was cut off in the middle of a layer goes on later, and the disk
// being full is an error of its own.
func TestPullOnFullDisk(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := filepath.Join(r.daemon.Dir, "c", "root", "io.containerd.content.v1.content")
	if err := syscall.Mount("tmpfs", content, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"ingest", "blobs"} {
		if err := syscall.Mkdir(filepath.Join(content, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := r.Pull(t.Context(), r.image, nil)
	if err == nil || engine.CodeOf(err) != protocol.NoSpace {
		t.Errorf("error %v (%s), want no_space", err, engine.CodeOf(err))
	}
	if err := syscall.Mount("", content, "", syscall.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	if err := r.Pull(t.Context(), r.image, nil); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

// With a mirror every image comes from there, whatever its host, and the mirror
// learns the host.
func TestMirror(t *testing.T) {
	t.Parallel()
	r := setup(t)
	name := strings.TrimPrefix(r.image, r.registry.Host)
	r.images.Registries = registryhosts.New(registryhosts.Options{Mirror: "http://" + r.registry.Host, MirrorOnly: true, Stall: time.Minute})
	if err := r.Pull(t.Context(), "registry.example.com"+name, nil); err != nil {
		t.Fatal(err)
	}
	all := r.registry.Requests()
	if len(all) == 0 || !strings.Contains(all[0], "ns=registry.example.com") {
		t.Errorf("requests %q, want them to name the host", all)
	}
	if err := r.Start(t.Context(), func() engine.Container {
		c := r.container("wait")
		c.Spec.Image = "registry.example.com" + name
		return c
	}()); err != nil {
		t.Error(err)
	}
}
