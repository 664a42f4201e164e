package cache

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An upstream is a registry that holds blobs and one manifest under the tag 1.0.
type upstream struct {
	*httptest.Server
	mu       sync.Mutex        // protects blobs
	blobs    map[string][]byte // by path below /v2/
	requests atomic.Int64
	cut      atomic.Pointer[cut] // of an answer to come; nil: none
	gate     chan struct{}       // if not nil, answers wait for it
	away     atomic.Bool         // it answers, but has trouble
	leave    atomic.Bool         // away once it was cut
	from     atomic.Int64        // where the last answer began
}

// A cut ends the next answer about a blob after so many bytes. Another request may be on its
// way, of a client that has given up: it is not cut.
type cut struct {
	blob  protocol.Digest
	after int64
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{blobs: map[string][]byte{}}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.requests.Add(1)
		if u.gate != nil {
			<-u.gate
		}
		u.mu.Lock()
		body, ok := u.blobs[strings.TrimPrefix(r.URL.Path, "/v2/")]
		u.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		if u.away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		if c := u.cut.Load(); c != nil && strings.HasSuffix(r.URL.Path, string(c.blob)) && u.cut.CompareAndSwap(c, nil) {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			u.away.Store(u.leave.Load()) // before the client can see the bytes, and go on
			_, _ = w.Write(body[:c.after])
			panic(http.ErrAbortHandler)
		}
		var from int64
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		u.from.Store(from)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) set(path string, body []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.blobs[path] = body
}

func (u *upstream) add(name string, body []byte) protocol.Digest {
	d := protocol.DigestOf(body)
	u.set(name+"/blobs/"+string(d), body)
	u.set(name+"/manifests/"+string(d), body)
	return d
}

// client returns one for registries, over the system's network.
func client() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = time.Minute
	t.DialContext = (&net.Dialer{Timeout: longestPause}).DialContext
	t.DisableCompression = true // a digest is that of the bytes as sent
	return &http.Client{Transport: t}
}

func open(t *testing.T, dir string, u *upstream, max int64) (*Cache, *httptest.Server) {
	t.Helper()
	c, err := New(Options{Dir: dir, Default: u.URL, Client: client(), MaxBytes: max})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(c)
	t.Cleanup(func() {
		s.Close()
		_ = c.Close()
	})
	return c, s
}

func get(t *testing.T, s *httptest.Server, path string, header ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(header) == 2 {
		req.Header.Set(header[0], header[1])
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, b
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func TestServesWithoutUpstream(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	blob := noise(100_000)
	d := u.add("app", blob)
	u.set("app/manifests/1.0", []byte(`{"schemaVersion":2}`))
	dir := t.TempDir()
	_, s := open(t, dir, u, 0)
	path := "/v2/app/blobs/" + string(d) + "?ns=registry.colony"
	resp, got := get(t, s, path)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %s, want 200", resp.Status)
	}
	if !bytes.Equal(got, blob) {
		t.Fatalf("a body of %d bytes that is not the blob of %d bytes", len(got), len(blob))
	}
	if name := resp.Header.Get("Docker-Content-Digest"); name != string(d) {
		t.Fatalf("Docker-Content-Digest %q, want %s", name, d)
	}
	if resp, _ := get(t, s, "/v2/app/manifests/1.0"); resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	u.Close() // the WAN is away

	// Another process on the same directory serves what it holds.
	_, s = open(t, dir, u, 0)
	if resp, got := get(t, s, path); resp.StatusCode != http.StatusOK || !bytes.Equal(got, blob) {
		t.Errorf("%s, %d bytes", resp.Status, len(got))
	}
	if resp, got := get(t, s, path, "Range", "bytes=99990-"); resp.StatusCode != http.StatusPartialContent || !bytes.Equal(got, blob[99990:]) {
		t.Errorf("%s, %d bytes", resp.Status, len(got))
	}
	if resp, got := get(t, s, "/v2/app/manifests/1.0"); resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/vnd.oci.image.manifest.v1+json" {
		t.Errorf("%s %s", resp.Status, got)
	}
	missing := protocol.DigestOf([]byte("other"))
	if resp, got := get(t, s, "/v2/app/blobs/"+string(missing)); resp.StatusCode != http.StatusBadGateway || !strings.Contains(string(got), "not reachable") {
		t.Errorf("%s %s", resp.Status, got)
	}
}

func TestOneDownloadForAll(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.gate = make(chan struct{})
	blob := noise(1 << 20)
	d := u.add("app", blob)
	_, s := open(t, t.TempDir(), u, 0)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if resp, got := get(t, s, "/v2/app/blobs/"+string(d)); resp.StatusCode != http.StatusOK || !bytes.Equal(got, blob) {
				t.Errorf("%s, %d bytes", resp.Status, len(got))
			}
		})
	}
	close(u.gate)
	wg.Wait()
	if n := u.requests.Load(); n != 1 {
		t.Errorf("%d requests upstream, want 1", n)
	}
}

// TestResumes breaks a download in the middle: it resumes by itself, and its clients do
// not notice.
func TestResumes(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	blob := noise(500_000)
	d := u.add("app", blob)
	u.cut.Store(&cut{d, 300_000})
	_, s := open(t, t.TempDir(), u, 0)
	if resp, got := get(t, s, "/v2/app/blobs/"+string(d)); resp.StatusCode != http.StatusOK || !bytes.Equal(got, blob) {
		t.Errorf("%s, %d bytes", resp.Status, len(got))
	}
	if n := u.requests.Load(); n != 2 {
		t.Errorf("%d requests upstream, want 2", n)
	}
}

// TestResumesOverARestart stops the cache in the middle of a download.
func TestResumesOverARestart(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	blob := noise(500_000)
	d := u.add("app", blob)
	u.leave.Store(true)
	dir := t.TempDir()
	abandon(t, dir, u, d, 300_000, 0)
	u.away.Store(false)
	_, s := open(t, dir, u, 0)
	resp, got := get(t, s, "/v2/app/blobs/"+string(d))
	if resp.StatusCode != http.StatusOK || !bytes.Equal(got, blob) {
		t.Errorf("%s, %d bytes", resp.Status, len(got))
	}
	if from := u.from.Load(); from != 300_000 {
		t.Errorf("the rest was asked for from byte %d on, want 300000", from)
	}
}

// abandon breaks a download after so many bytes and stops the cache while its upstream is away. Its
// client sees its beginning, and never a whole answer.
func abandon(t *testing.T, dir string, u *upstream, d protocol.Digest, after, max int64) {
	t.Helper()
	c, err := New(Options{Dir: dir, Default: u.URL, Client: client(), MaxBytes: max})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(c)
	defer s.Close()
	u.away.Store(false)
	u.cut.Store(&cut{d, after})
	resp, err := s.Client().Get(s.URL + "/v2/app/blobs/" + string(d))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.CopyN(io.Discard, resp.Body, after); resp.StatusCode != http.StatusOK || err != nil {
		t.Errorf("%s, %d of the %d bytes that arrived, %v", resp.Status, n, after, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("a broken download ended as if it were whole, after %d bytes more", n)
	}
}

func TestWrongBytesAreNotServed(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	d := protocol.DigestOf([]byte("right"))
	u.set("app/blobs/"+string(d), []byte("wrong"))
	c, s := open(t, t.TempDir(), u, 0)
	resp, err := s.Client().Get(s.URL + "/v2/app/blobs/" + string(d))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	// As they arrived, but for the last, without which they are of no use.
	if got, err := io.ReadAll(resp.Body); resp.StatusCode == http.StatusOK && (err == nil || len(got) > 4) {
		t.Errorf("%s %s, %v", resp.Status, got, err)
	}
	if c.has(d) {
		t.Error("wrong bytes were stored")
	}
	u.set("app/blobs/"+string(d), []byte("right"))
	if resp, got := get(t, s, "/v2/app/blobs/"+string(d)); resp.StatusCode != http.StatusOK || string(got) != "right" {
		t.Errorf("%s %s", resp.Status, got)
	}
}

func TestEvictsTheOldest(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	var digests []protocol.Digest
	for range 4 {
		digests = append(digests, u.add("app", noise(1000)))
	}
	c, s := open(t, t.TempDir(), u, 2500)
	for i, d := range digests {
		get(t, s, "/v2/app/blobs/"+string(d))
		past := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(c.blobPath(d), past, past); err != nil {
			t.Fatal(err)
		}
	}
	if c.Stats().Bytes > 2500 {
		t.Errorf("%d bytes kept, the limit is 2500", c.Stats().Bytes)
	}
	if c.has(digests[0]) || !c.has(digests[3]) {
		t.Error("the oldest was kept, or the newest was not")
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	_, s := open(t, t.TempDir(), u, 0)
	for path, want := range map[string]int{
		"/v2/":                          http.StatusOK,
		"/v2/app/manifests/none":        http.StatusNotFound,
		"/v2/../etc/passwd":             http.StatusNotFound,
		"/v2/app/blobs/sha256:00":       http.StatusUnprocessableEntity,
		"/v2/app/tags/list":             http.StatusNotFound,
		"/v2/app/manifests/1?ns=a/b%00": http.StatusNotFound,
	} {
		if resp, body := get(t, s, path); resp.StatusCode != want {
			t.Errorf("%s: %s %s, want %d", path, resp.Status, body, want)
		}
	}
	resp, err := s.Client().Post(s.URL+"/v2/app/blobs/uploads/", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a push was answered with %s", resp.Status)
	}
	if _, err := New(Options{Dir: t.TempDir(), Default: "registry"}); err == nil {
		t.Error("a registry without a scheme was accepted")
	}
}

// TestAbandonedDownloadsAreBounded breaks downloads that no client continues.
func TestAbandonedDownloadsAreBounded(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	dir := t.TempDir()
	u.leave.Store(true)
	for range 5 {
		abandon(t, dir, u, u.add("app", noise(12_000)), 9_000, 80_000)
	}
	u.away.Store(false)
	_, s := open(t, dir, u, 80_000)
	if resp, _ := get(t, s, "/v2/app/blobs/"+string(protocol.DigestOf([]byte("absent")))); resp.StatusCode != http.StatusNotFound {
		t.Fatalf("a blob that is not there: %s", resp.Status)
	}
	entries, err := os.ReadDir(dir + "/partial")
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if size += info.Size(); info.Size() == 0 {
			t.Error("an empty partial file is left")
		}
	}
	if size == 0 || size > 20_000 {
		t.Errorf("%d bytes of abandoned downloads, want at most 20000, and the latest", size)
	}
}

// TestThroughALinkThatIsCut pulls 20 MB over a link that is cut after each megabyte,
// from the CO's side of it.
func TestThroughALinkThatIsCut(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	blob := noise(20 << 20)
	d := u.add("app", blob)
	target := strings.TrimPrefix(u.URL, "http://")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var carried atomic.Int64
	var links sync.WaitGroup
	links.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			links.Go(func() {
				defer near.Close()
				far, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer far.Close()
				links.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() })
				n, _ := io.CopyN(near, far, 1<<20)
				carried.Add(n)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); links.Wait() })
	c, err := New(Options{Dir: t.TempDir(), Default: "http://" + l.Addr().String(), Client: client()})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(c)
	t.Cleanup(func() { s.Close(); _ = c.Close() })
	for _, part := range []string{"", "bytes=5000000-"} {
		resp, got := get(t, s, "/v2/app/blobs/"+string(d), "Range", part)
		want := blob
		if part != "" {
			want = blob[5_000_000:]
		}
		if resp.StatusCode/100 != 2 || !bytes.Equal(got, want) {
			t.Errorf("%q: %s, %d bytes", part, resp.Status, len(got))
		}
	}
	t.Logf("%d bytes over the link for %d, in %d requests", carried.Load(), len(blob), u.requests.Load())
	if n := carried.Load(); n > 21<<20 || u.requests.Load() < 20 {
		t.Errorf("%d bytes in %d requests for %d", n, u.requests.Load(), len(blob))
	}
}

// A stuckClient does not read its answer until it is released.
type stuckClient struct {
	header           http.Header
	reached, release chan struct{}
	once             sync.Once
}

func (c *stuckClient) Header() http.Header { return c.header }
func (c *stuckClient) WriteHeader(int)     {}
func (c *stuckClient) Write([]byte) (int, error) {
	c.once.Do(func() { close(c.reached) })
	<-c.release
	return 0, io.ErrClosedPipe
}

// TestStuckClients has one client of each route that does not read its answer. The
// others are served, what the site holds and what it has to fetch.
func TestStuckClients(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	held, fetched, next := u.add("app", noise(1<<20)), u.add("app", noise(1<<20)), u.add("app", noise(1000))
	u.set("app/manifests/1.0", []byte(`{"schemaVersion":2}`))
	c, s := open(t, t.TempDir(), u, 0)
	get(t, s, "/v2/app/blobs/"+string(held))
	for _, path := range []string{
		"/v2/app/blobs/" + string(held), "/v2/app/blobs/" + string(fetched), "/v2/app/manifests/1.0", "/v2/app/manifests/" + string(held),
		"/v2/app/manifests/none", "/none",
	} {
		stuck := &stuckClient{header: http.Header{}, reached: make(chan struct{}), release: make(chan struct{})}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.ServeHTTP(stuck, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		}()
		select {
		case <-stuck.reached:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: nothing came to the client", path)
		}
		for _, other := range []string{"blobs/" + string(held), "blobs/" + string(fetched), "manifests/1.0", "blobs/" + string(next)} {
			if resp, _ := get(t, s, "/v2/app/"+other); resp.StatusCode != http.StatusOK {
				t.Errorf("%s while a client of %s is stuck: %s", other, path, resp.Status)
			}
		}
		close(stuck.release)
		<-ended
	}
}
