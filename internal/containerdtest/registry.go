package containerdtest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	_ "embed" // the source of the test program
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

//go:embed testdata/toolbox/main.go
var toolboxSource []byte

// Toolbox builds the static program of the test images: see its verbs in
// testdata/toolbox.
func Toolbox(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "toolbox")
	if err := os.WriteFile(source, toolboxSource, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the test program: %v\n%s", err, out)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A Registry serves images over plain HTTP. Its methods may be called
// concurrently.
type Registry struct {
	Host string // host:port

	mu    sync.Mutex
	blobs map[string]blob // by digest
	fault func(w http.ResponseWriter, r *http.Request) bool
	seen  []string
}

type blob struct {
	mediaType string
	content   []byte
}

// NewRegistry starts a registry that ends with the test.
func NewRegistry(t testing.TB) *Registry {
	t.Helper()
	r := &Registry{blobs: map[string]blob{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.Host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// An Image says what is in an image beside the program /toolbox.
type Image struct {
	Program    []byte
	Entrypoint []string // nil: /toolbox
	Cmd        []string
	Env        []string
	User       string
	Dir        string            // working directory
	Volumes    []string          // what a Dockerfile says with VOLUME
	Health     []string          // the command of HEALTHCHECK, once a second
	Files      map[string]string // by path without the leading slash; one ending in / is a directory
	Arch       string            // empty: this machine's
}

// Add makes an image and returns its ref, host/name@digest.
func (r *Registry) Add(t testing.TB, name string, img Image) string {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	put := func(name, content string, mode int64) {
		h := &tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Uid, h.Gid = tar.TypeDir, 1000, 1000
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	put("toolbox", string(img.Program), 0o755)
	for name, content := range img.Files {
		put(name, content, 0o755)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if img.Entrypoint == nil {
		img.Entrypoint = []string{"/toolbox"}
	}
	if img.Arch == "" {
		img.Arch = runtime.GOARCH
	}
	volumes := map[string]any{}
	for _, path := range img.Volumes {
		volumes[path] = map[string]any{}
	}
	layer := buf.Bytes()
	settings := map[string]any{
		"Entrypoint": img.Entrypoint, "Cmd": img.Cmd, "Env": img.Env, "User": img.User, "WorkingDir": img.Dir,
		"Volumes": volumes,
	}
	if img.Health != nil {
		settings["Healthcheck"] = map[string]any{"Test": append([]string{"CMD"}, img.Health...), "Interval": time.Second, "Retries": 2}
	}
	config := encode(t, map[string]any{
		"architecture": img.Arch, "os": "linux", "config": settings,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	const oci = "application/vnd.oci.image."
	part := func(mediaType string, b []byte) map[string]any {
		r.put(mediaType, b)
		return map[string]any{"mediaType": mediaType, "digest": digest(b), "size": len(b)}
	}
	manifest := encode(t, map[string]any{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json",
		"config": part(oci+"config.v1+json", config),
		"layers": []any{part(oci+"layer.v1.tar", layer)},
	})
	r.put(oci+"manifest.v1+json", manifest)
	return fmt.Sprintf("%s/%s@%s", r.Host, name, digest(manifest))
}

// Fault has f answer requests in place of the registry where it returns true.
// Nil ends that.
func (r *Registry) Fault(f func(w http.ResponseWriter, r *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = f
}

// Requests returns the URLs asked for so far.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.seen...)
}

func (r *Registry) put(mediaType string, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blobs[digest(b)] = blob{mediaType, b}
}

// ServeHTTP serves manifests and blobs by digest, unless a fault does.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.seen = append(r.seen, req.Method+" "+req.URL.String())
	fault := r.fault
	r.mu.Unlock()
	if fault == nil || !fault(w, req) {
		r.Serve(w, req)
	}
}

// Serve answers as the registry does without a fault.
func (r *Registry) Serve(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/v2/" { // which says that this is a registry
		return
	}
	r.mu.Lock()
	b, ok := r.blobs[req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:]]
	r.mu.Unlock()
	if !ok {
		http.Error(w, `{"errors":[{"code":"NOT_FOUND"}]}`, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", b.mediaType)
	w.Header().Set("Docker-Content-Digest", digest(b.content))
	w.Header().Set("Content-Length", fmt.Sprint(len(b.content)))
	if req.Method != http.MethodHead {
		_, _ = w.Write(b.content) // a client that left is its own business
	}
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
