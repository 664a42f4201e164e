package desired

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/protocol"
)

// A cutter is a link to a server that is cut each time that it has carried so many
// bytes down.
type cutter struct {
	addr  string
	each  atomic.Int64 // 0: the link is away
	cuts  atomic.Int64
	bytes atomic.Int64
}

func newCutter(t *testing.T, target string, each int64) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{addr: l.Addr().String()}
	c.each.Store(each)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { c.carry(near, target) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return c
}

func (c *cutter) carry(near net.Conn, target string) {
	defer near.Close()
	each := c.each.Load()
	if each == 0 {
		return
	}
	far, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer far.Close()
	up := make(chan struct{})
	go func() {
		defer close(up)
		_, _ = io.Copy(far, near)
		_ = far.Close()
	}()
	n, _ := io.CopyN(near, far, each)
	c.bytes.Add(n)
	if n == each {
		c.cuts.Add(1)
	}
	_ = near.Close()
	<-up
}

// blobs serves by digest.
func blobs(t *testing.T, all ...[]byte) *url.URL {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, b := range all {
			if d := string(protocol.DigestOf(b)); strings.HasSuffix(r.URL.Path, "/specs/"+d) {
				w.Header().Set("Etag", `"`+d+`"`)
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL + "/specs/")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func noKeepAlive(t *testing.T) *http.Client {
	tr := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// TestFetchThroughCuts fetches a megabyte over a link that is cut after every 50 kB,
// is away for a while, and over a restart of the LO.
func TestFetchThroughCuts(t *testing.T) {
	t.Parallel()
	body := make([]byte, 1_000_000)
	_, _ = rand.Read(body)
	base := blobs(t, body)
	link := newCutter(t, base.Host, 50_000)
	far := *base
	far.Host = link.addr
	dir := t.TempDir()
	digest, size := protocol.DigestOf(body), uint64(len(body))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for link.cuts.Load() < 5 {
			select {
			case <-t.Context().Done():
				return
			case <-time.After(time.Millisecond):
			}
		}
		link.each.Store(0)
		cancel()
	}()
	if _, err := HTTP(noKeepAlive(t), &far, disk.OS, dir)(ctx, Want{Digest: digest, Size: size}); err == nil {
		t.Fatal("fetched over a link that was cut")
	}
	info, err := os.Stat(filepath.Join(dir, strings.TrimPrefix(string(digest), "sha256:")))
	if err != nil {
		t.Fatalf("what arrived is not kept: %v", err)
	}
	if info.Size() <= 50_000 { // the cuts may have taken some of it, but not all that came before the last one
		t.Fatalf("%d bytes are kept, want more than came between two cuts", info.Size())
	}
	if _, err := HTTP(noKeepAlive(t), &far, disk.OS, dir)(t.Context(), Want{Digest: digest, Size: size}); protocol.KindOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), "of 1000000 bytes are here") {
		t.Errorf("without a link: %v", err)
	}
	link.each.Store(50_000)
	got, err := HTTP(noKeepAlive(t), &far, disk.OS, dir)(t.Context(), Want{Digest: digest, Size: size})
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	t.Logf("%d bytes over the link for %d, cut %d times", link.bytes.Load(), size, link.cuts.Load())
	if link.bytes.Load() > int64(size)*11/10 {
		t.Errorf("%d bytes for %d: something came twice", link.bytes.Load(), size)
	}
	before := link.bytes.Load()
	if _, err := HTTP(noKeepAlive(t), &far, disk.OS, dir)(t.Context(), Want{Digest: digest, Size: size}); err != nil || link.bytes.Load() != before {
		t.Errorf("what is here was fetched again: %v", err)
	}
}

// TestDamagedDownload begins a download with bytes that are not its own.
func TestDamagedDownload(t *testing.T) {
	t.Parallel()
	body := bytes.Repeat([]byte("right "), 1000)
	base, dir := blobs(t, body), t.TempDir()
	digest := protocol.DigestOf(body)
	path := filepath.Join(dir, strings.TrimPrefix(string(digest), "sha256:"))
	for _, n := range []int{10, len(body), len(body) + 10} {
		if err := os.WriteFile(path, bytes.Repeat([]byte("x"), n), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := HTTP(noKeepAlive(t), base, disk.OS, dir)(t.Context(), Want{Digest: digest, Size: uint64(len(body))})
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("begun with %d wrong bytes: %d bytes, %v", n, len(got), err)
		}
		_ = os.Remove(path)
	}
}

// TestStateByDigest adopts a state that its message only names.
func TestStateByDigest(t *testing.T) {
	t.Parallel()
	web, db := entry("web", "1"), entry("db", "1")
	thinWeb, thinDB := web, db
	thinWeb.Spec, thinDB.Spec = nil, nil
	thinWeb.Signature = []byte("sig")
	m := state(3, thinDB, thinWeb)
	body := protocol.Marshal(&m)
	other := state(4, thinDB)
	wrong := protocol.Marshal(&other)
	base := blobs(t, body, wrong, web.Spec, db.Spec)
	dir := t.TempDir()
	fetches := 0
	get := HTTP(noKeepAlive(t), base, disk.OS, PartialDir(dir))
	fetch := func(ctx context.Context, w Want) ([]byte, error) {
		fetches++
		return get(ctx, w)
	}
	s := open(t, dir, fetch)
	named := func(generation uint64, body []byte) protocol.SiteDesired {
		m := state(generation)
		m.Digest, m.Size = protocol.DigestOf(body), uint64(len(body))
		return m
	}
	adopted, err := offer(t, s, named(3, body))
	if !adopted || err != nil {
		t.Fatalf("adopted %t, %v", adopted, err)
	}
	got, _ := s.Current()
	spec, _ := s.Spec(web.Digest)
	if len(got.Deployments) != 2 || got.Position.Generation != 3 || string(spec.Signature) != "sig" {
		t.Errorf("in force: %+v", got)
	}
	if _, err := os.Stat(PartialDir(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("downloads are left: %v", err)
	}
	// The same on the next connection, also after a restart, costs nothing.
	fetches = 0
	for range 2 {
		if adopted, err := offer(t, s, named(3, body)); adopted || err != nil {
			t.Errorf("the same again: adopted %t, %v", adopted, err)
		}
		s = open(t, dir, fetch)
	}
	if adopted, err := offer(t, s, state(3, thinDB, thinWeb)); adopted || err != nil {
		t.Errorf("the same, whole: adopted %t, %v", adopted, err)
	}
	if fetches != 0 {
		t.Errorf("%d fetches for what is held", fetches)
	}
	for name, c := range map[string]struct {
		m    protocol.SiteDesired
		kind protocol.Kind
	}{
		"another content":       {named(3, protocol.Marshal(state(3))), protocol.Unavailable},
		"another position":      {named(3, wrong), protocol.Invalid},
		"another generation":    {named(5, wrong), protocol.Invalid},
		"a body that is away":   {named(6, []byte("?")), protocol.Unavailable},
		"a digest that is none": {protocol.SiteDesired{V: 1, Site: "s1", Position: protocol.Position{Epoch: 1, Generation: 7}, Digest: "x"}, protocol.Invalid},
	} {
		if adopted, err := offer(t, s, c.m); adopted || protocol.KindOf(err) != c.kind {
			t.Errorf("%s: adopted %t, %v; want kind %s", name, adopted, err, c.kind)
		}
	}
	// Only what is new is fetched.
	fetches = 0
	next := named(4, wrong)
	if adopted, err := offer(t, s, next); !adopted || err != nil || fetches != 1 {
		t.Errorf("without web: adopted %t, %v, %d fetches", adopted, err, fetches)
	}
}

// TestRetryAtOnce has a link that comes back end the wait.
func TestRetryAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := NewMQTT(quiet)
		source.Retry() // of nothing
		source.Put([]byte("1"))
		tries := 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- source.Run(ctx, func(context.Context, []byte) error {
				if tries++; tries < 10 {
					return errors.New("not yet")
				}
				return nil
			})
		}()
		<-time.After(100 * time.Second)
		synctest.Wait()
		if tries < 6 || tries > 8 {
			t.Errorf("%d tries in 100 s", tries)
		}
		began, before := time.Now(), tries
		source.Retry()
		synctest.Wait()
		if tries != before+1 || time.Since(began) > 0 {
			t.Errorf("%d tries more, %s after the link came back", tries-before, time.Since(began))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestNewerEndsAnOffer has a newer state end an offer of an older one that is still
// being fetched, and the same one not.
func TestNewerEndsAnOffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := NewMQTT(quiet)
		var began, ended []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- source.Run(ctx, func(ctx context.Context, payload []byte) error {
				began = append(began, string(payload))
				if string(payload) != "1" {
					return nil
				}
				<-ctx.Done()
				ended = append(ended, string(payload))
				return ctx.Err()
			})
		}()
		source.Put([]byte("1"))
		synctest.Wait()
		source.Put([]byte("1"))
		synctest.Wait()
		if len(began) != 1 || len(ended) != 0 {
			t.Errorf("began %v, ended %v: the same state is no newer one", began, ended)
		}
		source.Put([]byte("2"))
		synctest.Wait()
		if strings.Join(began, " ") != "1 2" || len(ended) != 1 {
			t.Errorf("began %v, ended %v: want the newer one at once", began, ended)
		}
		<-time.After(time.Hour)
		if len(began) != 2 {
			t.Errorf("began %v: what is superseded was offered again", began)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
