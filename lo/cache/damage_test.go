package cache

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// reports are what a cache said of its disk.
type reports struct {
	mu  sync.Mutex
	all []*statefile.Damage
}

func (r *reports) add(d *statefile.Damage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, d)
}

// roles returns the roles of what was reported, and forgets them.
func (r *reports) roles() (roles []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.all {
		roles = append(roles, d.Role)
	}
	r.all = nil
	return roles
}

// serve opens a cache with options and serves it.
func serve(t *testing.T, u *upstream, o Options) (*Cache, *httptest.Server) {
	t.Helper()
	o.Default, o.Client = u.URL, client()
	c, err := New(o)
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

// TestDamagedBlob damages what the cache holds: no client gets it whole, it is reported once, and
// got again from the registry.
func TestDamagedBlob(t *testing.T) {
	t.Parallel()
	small, large := noise(100_000), noise(maxManifest+100_000)
	for name, one := range map[string]struct {
		body   []byte
		what   string
		header []string
	}{
		"a small blob":         {body: small, what: "blobs"},
		"a manifest":           {body: []byte(`{"schemaVersion":2}`), what: "manifests"},
		"a part of a blob":     {body: large, what: "blobs", header: []string{"Range", "bytes=10-19"}},
		"a blob that is large": {body: large, what: "blobs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, said := newUpstream(t), &reports{}
			d := u.add("app", one.body)
			c, s := serve(t, u, Options{Dir: t.TempDir(), Damaged: said.add})
			path := "/v2/app/" + one.what + "/" + string(d)
			get(t, s, path)
			testpart.Damage(t, c.blobPath(d))
			want := one.body
			if one.header != nil {
				want = want[10:20]
			}
			resp, err := s.Client().Do(request(t, s, path, one.header))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if len(one.body) > maxManifest && one.header == nil {
				if err == nil || len(got) >= len(want) {
					t.Errorf("a damaged blob was served whole: %d bytes, %v", len(got), err)
				}
			} else if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s, %d bytes, %v; want the right ones", resp.Status, len(got), err)
			}
			if roles := said.roles(); len(roles) != 1 || roles[0] != BlobRole {
				t.Errorf("reported %q, want %s once", roles, BlobRole)
			}
			if resp, got := get(t, s, path, one.header...); resp.StatusCode >= 300 || !bytes.Equal(got, want) {
				t.Errorf("the next answer: %s, %d bytes", resp.Status, len(got))
			}
			if c.Stats().Bytes != int64(len(one.body)) {
				t.Errorf("the cache holds %d bytes, want %d", c.Stats().Bytes, len(one.body))
			}
			if roles := said.roles(); roles != nil {
				t.Errorf("reported %q again", roles)
			}
		})
	}
}

func request(t *testing.T, s *httptest.Server, path string, header []string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(header) == 2 {
		r.Header.Set(header[0], header[1])
	}
	return r
}

// TestDamagedNames damages what the cache knows of manifests beside their bytes.
func TestDamagedNames(t *testing.T) {
	t.Parallel()
	u, said := newUpstream(t), &reports{}
	body := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json"}`)
	u.set("app/manifests/1.0", body)
	dir := t.TempDir()
	c, s := serve(t, u, Options{Dir: dir, Damaged: said.add})
	get(t, s, "/v2/app/manifests/1.0")
	d := protocol.DigestOf(body)
	testpart.Damage(t, c.typeFile(d).Path)
	resp, got := get(t, s, "/v2/app/manifests/1.0")
	if media := resp.Header.Get("Content-Type"); media != "application/vnd.docker.distribution.manifest.v2+json" || !bytes.Equal(got, body) {
		t.Errorf("a manifest with a damaged type: %s %s", resp.Status, media)
	}
	if roles := said.roles(); len(roles) != 1 || roles[0] != "lo/image/type" {
		t.Errorf("reported %q", roles)
	}
	testpart.Damage(t, c.tagFile("", "app/manifests/1.0").Path)
	u.away.Store(true)
	if resp, _ := get(t, s, "/v2/app/manifests/1.0"); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("a damaged tag without a registry: %s", resp.Status)
	}
	if roles := said.roles(); len(roles) != 1 || roles[0] != "lo/image/tag" {
		t.Errorf("reported %q", roles)
	}
	u.away.Store(false)
	if resp, _ := get(t, s, "/v2/app/manifests/1.0"); resp.StatusCode != http.StatusOK {
		t.Errorf("with the registry: %s", resp.Status)
	}
}

// TestPlainNames reads the files of before they had headers.
func TestPlainNames(t *testing.T) {
	t.Parallel()
	u, said := newUpstream(t), &reports{}
	body := []byte(`{"schemaVersion":2}`)
	u.set("app/manifests/1.0", body)
	c, s := serve(t, u, Options{Dir: t.TempDir(), Damaged: said.add})
	get(t, s, "/v2/app/manifests/1.0")
	d := protocol.DigestOf(body)
	for path, content := range map[string]string{c.typeFile(d).Path: "application/x.test", c.tagFile("", "app/manifests/1.0").Path: string(d)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u.away.Store(true)
	if resp, got := get(t, s, "/v2/app/manifests/1.0"); resp.StatusCode != http.StatusOK || !bytes.Equal(got, body) || resp.Header.Get("Content-Type") != "application/x.test" {
		t.Errorf("%s, %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	if roles := said.roles(); roles != nil {
		t.Errorf("reported %q", roles)
	}
}

// TestLeavesRoom has a cache on a disk that is smaller than what the cache may hold: what
// others need stays free, and what was not used for the longest makes room.
func TestLeavesRoom(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	d := simdisk.New(1)
	d.Space(100_000)
	spare := int64(30_000)
	c, s := serve(t, u, Options{Dir: "/images", Disk: d, Spare: func() int64 { return spare }})
	var digests []protocol.Digest
	for i := range 5 {
		digest := u.add("app", noise(20_000))
		digests = append(digests, digest)
		if resp, _ := get(t, s, "/v2/app/blobs/"+string(digest)); resp.StatusCode != http.StatusOK {
			t.Fatalf("blob %d: %s", i, resp.Status)
		}
		if free, err := d.Free("/images"); free < spare || err != nil {
			t.Fatalf("after blob %d: %d bytes are free, want %d, %v", i, free, spare, err)
		}
		if err := d.Chtimes(c.blobPath(digest), time.Unix(int64(i+1), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if c.has(digests[0]) || !c.has(digests[4]) {
		t.Error("the oldest was kept, or the newest was not")
	}
	held := c.Stats().Bytes
	resp, body := get(t, s, "/v2/app/blobs/"+string(u.add("app", noise(80_000))))
	if resp.StatusCode == http.StatusOK {
		t.Errorf("a blob for which there is no room: %s, %d bytes", resp.Status, len(body))
	} else if !bytes.Contains(body, []byte("must stay free")) || !bytes.Contains(body, []byte(`"code":"NO_SPACE"`)) {
		t.Errorf("the refusal does not say why: %s", body)
	}
	if c.Stats().Bytes != held {
		t.Errorf("a blob for which there is no room removed %d bytes of others", held-c.Stats().Bytes)
	}
	spare = 0
	if resp, _ := get(t, s, "/v2/app/blobs/"+string(u.add("app", noise(80_000)))); resp.StatusCode != http.StatusOK {
		t.Errorf("with room again: %s", resp.Status)
	}
}

// TestCleansUp removes what a crash left of a write.
func TestCleansUp(t *testing.T) {
	t.Parallel()
	u, dir := newUpstream(t), t.TempDir()
	serve(t, u, Options{Dir: dir})
	left := filepath.Join(dir, "tags", ".tmp-x-1")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	serve(t, u, Options{Dir: dir})
	if _, err := disk.OS.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
