package desired

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/dictionary"
)

// A fakeCO answers requests for content by digest as the CO does, also with differences, and counts what it sends.
type fakeCO struct {
	base *url.URL
	has  map[protocol.Digest][]byte
	// answer takes the place of the difference that a request gets; nil: it gets the right one.
	answer func(w http.ResponseWriter, difference []byte)

	requests, differences, bytes int
}

func startCO(t *testing.T, all ...[]byte) *fakeCO {
	t.Helper()
	co := &fakeCO{has: map[protocol.Digest][]byte{}}
	for _, b := range all {
		co.has[protocol.DigestOf(b)] = b
	}
	server := httptest.NewServer(co)
	t.Cleanup(server.Close)
	var err error
	if co.base, err = url.Parse(server.URL + "/specs/"); err != nil {
		t.Fatal(err)
	}
	return co
}

func (c *fakeCO) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.requests++
	digest := protocol.Digest(strings.TrimPrefix(r.URL.Path, "/specs/"))
	b, ok := c.has[digest]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if have, ok := dictionary.Offered(r.Header); ok && c.has[have] != nil {
		difference := dictionary.Encode(b, c.has[have])
		c.differences++
		c.bytes += len(difference)
		w.Header().Set("Content-Encoding", dictionary.Coding)
		if c.answer != nil {
			c.answer(w, difference)
			return
		}
		_, _ = w.Write(difference)
		return
	}
	c.bytes += len(b)
	w.Header().Set("Etag", `"`+string(digest)+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}

// TestDifference fetches content of which the LO has something that is like it.
func TestDifference(t *testing.T) {
	t.Parallel()
	old := bytes.Repeat([]byte("a state of the site, "), 2000)
	now := append(bytes.Clone(old), "and one more deployment"...)
	for name, tt := range map[string]struct {
		known                 bool // to the CO: old
		answer                func(w http.ResponseWriter, difference []byte)
		partial               int // bytes of now that an earlier run left
		requests, differences int
		most                  int // bytes sent; 0: not asked
	}{
		"is enough":              {known: true, requests: 1, differences: 1, most: 200},
		"not known to the CO":    {requests: 1, most: len(now)},
		"the rest of a download": {known: true, partial: len(now) - 10, requests: 1},
		"cut":                    {known: true, answer: func(w http.ResponseWriter, d []byte) { _, _ = w.Write(d[:len(d)-3]) }, requests: 2, differences: 1},
		"of something else": {known: true, answer: func(w http.ResponseWriter, _ []byte) {
			_, _ = w.Write(dictionary.Encode(append(bytes.Clone(old), '!'), old))
		}, requests: 2, differences: 1},
		"to something else":    {known: true, answer: func(w http.ResponseWriter, _ []byte) { _, _ = w.Write(dictionary.Encode(now, now[:30_000])) }, requests: 2, differences: 1},
		"larger than was said": {known: true, answer: func(w http.ResponseWriter, _ []byte) { _, _ = w.Write(make([]byte, len(now)+5)) }, requests: 2, differences: 1},
		"connection that is shut": {known: true, answer: func(w http.ResponseWriter, d []byte) {
			_, _ = w.Write(d[:20])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, requests: 2, differences: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			co, dir := startCO(t, now), t.TempDir()
			if tt.known {
				co.has[protocol.DigestOf(old)] = old
			}
			co.answer = tt.answer
			digest := protocol.DigestOf(now)
			if tt.partial > 0 {
				if err := os.WriteFile(filepath.Join(dir, strings.TrimPrefix(string(digest), "sha256:")), now[:tt.partial], 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := HTTP(noKeepAlive(t), co.base, disk.OS, dir)(t.Context(), Want{digest, uint64(len(now)), old})
			if err != nil || !bytes.Equal(got, now) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			if co.requests != tt.requests || co.differences != tt.differences || tt.most > 0 && co.bytes > tt.most {
				t.Errorf("%d requests, %d differences, %d bytes; want %d, %d, up to %d", co.requests, co.differences, co.bytes, tt.requests, tt.differences, tt.most)
			}
		})
	}
}

// TestDifferenceThatNobodyAskedFor ends, and does not go on for ever.
func TestDifferenceThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Content-Encoding", dictionary.Coding)
		_, _ = w.Write([]byte("x"))
	}))
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = HTTP(noKeepAlive(t), base, disk.OS, t.TempDir())(t.Context(), Want{protocol.DigestOf([]byte("a")), 1, []byte("b")})
	if protocol.KindOf(err) != protocol.Unavailable || requests != 2 {
		t.Errorf("%d requests, %v; want 2, unavailable", requests, err)
	}
}

// TestChangeOfOneOfAHundred wants a change of one deployment of a site with a hundred to cost what it is, and not the list.
func TestChangeOfOneOfAHundred(t *testing.T) {
	t.Parallel()
	co := startCO(t)
	put := func(b []byte) protocol.Digest {
		co.has[protocol.DigestOf(b)] = b
		return protocol.DigestOf(b)
	}
	s := open(t, t.TempDir(), HTTP(noKeepAlive(t), co.base, disk.OS, t.TempDir()))
	var entries []protocol.SiteEntry
	for i := range 100 {
		name := protocol.DeploymentName(fmt.Sprintf("line-%d", i))
		var env []string
		for j := range 40 { // of which a new version changes one
			env = append(env, fmt.Sprintf("SETTING_%d=%s", j, protocol.DigestOf([]byte{byte(i), byte(j)})))
		}
		b := protocol.Marshal(&protocol.DeploymentSpec{V: 1, ID: "i", Deployment: name, App: "app", AppVersion: "1", Components: []protocol.Component{{Name: "c", Containers: []protocol.Container{{Name: "c", Env: env}}}}})
		signature := []byte(protocol.DigestOf(b)[7:]) // as long as one of Ed25519 in hex
		entries = append(entries, protocol.SiteEntry{Deployment: name, Digest: put(b), Size: uint64(len(b)), Signature: signature, Position: protocol.Position{Epoch: 1, Generation: uint64(i + 1)}})
	}
	change := func(generation uint64) (size, body int) {
		m := state(generation, entries...)
		encoded := protocol.Marshal(&m)
		named := state(generation)
		named.Digest, named.Size = put(encoded), uint64(len(encoded))
		before := co.bytes
		if adopted, err := offer(t, s, named); !adopted || err != nil {
			t.Fatalf("generation %d: adopted %t, %v", generation, adopted, err)
		}
		return co.bytes - before, len(encoded)
	}
	change(100)
	var spec protocol.DeploymentSpec
	if err := protocol.Unmarshal(co.has[entries[50].Digest], &spec); err != nil {
		t.Fatal(err)
	}
	spec.AppVersion, spec.Components[0].Containers[0].Env[7] = "2", "SETTING_7=5"
	b := protocol.Marshal(&spec)
	entries[50].Digest, entries[50].Size, entries[50].Position = put(b), uint64(len(b)), protocol.Position{Epoch: 1, Generation: 101}
	got, state := change(101)
	t.Logf("%d bytes for a change, whose state has %d and whose specification %d", got, state, len(b))
	if got > 600 { // 100 for the new digest and position, 100 for the new version, and the heads
		t.Errorf("a change of one deployment of a hundred took %d bytes; the state has %d and the specification %d", got, state, len(b))
	}
	if m, _ := s.Current(); len(m.Deployments) != 100 || m.Position.Generation != 101 {
		t.Errorf("in force: %d deployments at %s", len(m.Deployments), m.Position)
	}
}
