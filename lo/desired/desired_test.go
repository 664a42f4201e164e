package desired

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

var quiet = slog.New(slog.DiscardHandler)

func none(context.Context, Want) ([]byte, error) {
	return nil, protocol.Errorf(protocol.Unavailable, "no CO")
}

func open(t *testing.T, dir string, fetch Fetch) *Store {
	t.Helper()
	s, err := Open(Options{Disk: disk.OS, Dir: dir, Site: "s1", Fetch: fetch, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func entry(name protocol.DeploymentName, version string) protocol.SiteEntry {
	b := protocol.Marshal(&protocol.DeploymentSpec{V: 1, ID: "i", Deployment: name, App: "app", AppVersion: version})
	return protocol.SiteEntry{Deployment: name, Digest: protocol.DigestOf(b), Size: uint64(len(b)), Spec: b}
}

func state(generation uint64, entries ...protocol.SiteEntry) protocol.SiteDesired {
	return protocol.SiteDesired{V: 1, Site: "s1", Position: protocol.Position{Epoch: 1, Generation: generation}, Deployments: entries}
}

func offer(t *testing.T, s *Store, m protocol.SiteDesired) (bool, error) {
	t.Helper()
	return s.Offer(t.Context(), protocol.Marshal(&m))
}

func TestPositions(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), none)
	web := entry("web", "1")
	restored := state(1)
	restored.Position.Epoch++
	unplaced := state(9)
	unplaced.Position = protocol.Position{}
	foreign := state(9)
	foreign.Site = "s2"
	signed := web
	signed.Signature = []byte("sig")
	for i, c := range []struct {
		m       protocol.SiteDesired
		adopted bool
		kind    protocol.Kind
	}{
		{state(5, web), true, ""},
		{state(5, web), false, ""},
		{state(4), false, protocol.Conflict},
		{unplaced, false, protocol.Invalid},
		{state(5), false, protocol.Conflict},
		{foreign, false, protocol.Invalid},
		{state(6, web, web), false, protocol.Invalid},
		{state(6, protocol.SiteEntry{Deployment: "web", Digest: web.Digest, Spec: []byte("other")}), true, ""}, // held by digest already
		{state(7, signed), true, ""},
		{restored, true, ""},
		{state(8, web), false, protocol.Conflict},
	} {
		adopted, err := offer(t, s, c.m)
		if adopted != c.adopted || (err != nil) != (c.kind != "") || err != nil && protocol.KindOf(err) != c.kind {
			t.Errorf("offer %d: adopted %t, %v; want %t, kind %q", i, adopted, err, c.adopted, c.kind)
		}
		if i == 8 {
			if spec, _ := s.Spec(web.Digest); string(spec.Signature) != "sig" {
				t.Error("a new signature of a held spec was not adopted")
			}
		}
	}
}

// TestWhatNodesRan has the CO say at the position in force what the nodes ran: it is no
// part of the state, and is not there after a restart.
func TestWhatNodesRan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, none)
	m := state(5, entry("web", "1"))
	if adopted, err := offer(t, s, m); !adopted || err != nil {
		t.Fatalf("adopted %t, %v", adopted, err)
	}
	m.Running = []protocol.NodeRunning{{Node: "n1", Deployments: []protocol.DeploymentName{"web"}}}
	if adopted, err := offer(t, s, m); !adopted || err != nil {
		t.Errorf("with what nodes ran: adopted %t, %v; want it taken up", adopted, err)
	}
	if got, _ := s.Current(); len(got.Running) != 1 {
		t.Errorf("in force: running %v, want that of n1", got.Running)
	}
	if got, ok := open(t, dir, none).Current(); !ok || got.Running != nil {
		t.Errorf("after a restart: held %t, running %v; want it held without", ok, got.Running)
	}
	m.Running[0].Node = "No Node"
	if _, err := offer(t, s, m); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("a node that is none: %v, want it invalid", err)
	}
	m = state(6)
	m.Removals = []protocol.Removal{{Deployment: "../x"}}
	if _, err := offer(t, s, m); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("a removal of no name: %v, want it invalid", err)
	}
	m = state(6, entry("web", "1"))
	m.Removals = []protocol.Removal{{Deployment: "web"}}
	if _, err := offer(t, s, m); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("a name in both lists: %v, want it invalid", err)
	}
}

func TestWrongSpecs(t *testing.T) {
	t.Parallel()
	good := entry("web", "1")
	swapped := entry("db", "1")
	swapped.Deployment = "web"
	for name, e := range map[string]protocol.SiteEntry{
		"other bytes":          {Deployment: "web", Digest: good.Digest, Spec: []byte("x")},
		"no spec":              {Deployment: "web", Digest: protocol.DigestOf([]byte("x")), Spec: []byte("x")},
		"another's deployment": swapped,
		"no digest":            {Deployment: "web", Spec: good.Spec},
		"no name":              {Deployment: "No Name", Digest: good.Digest, Spec: good.Spec},
	} {
		s := open(t, t.TempDir(), none)
		if adopted, err := offer(t, s, state(1, e)); adopted || protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%s: adopted %t, %v", name, adopted, err)
		}
		if _, ok := s.Current(); ok {
			t.Errorf("%s: it is in force", name)
		}
	}
}

func TestSurvivesRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, none)
	web, db := entry("web", "1"), entry("db", "1")
	web.Signature = []byte("sig")
	if _, err := offer(t, s, state(3, db, web)); err != nil {
		t.Fatal(err)
	}
	want, _ := s.Current()
	s = open(t, dir, none)
	got, ok := s.Current()
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("after a restart: held %t (-want +got):\n%s", ok, diff)
	}
	spec, ok := s.Spec(web.Digest)
	if !ok || string(spec.Bytes) != string(web.Spec) || string(spec.Signature) != "sig" || spec.Decoded.AppVersion != "1" {
		t.Errorf("spec after a restart: %t %+v", ok, spec)
	}
	if adopted, err := offer(t, s, state(3, db, web)); adopted || err != nil {
		t.Errorf("the retained message again: adopted %t, %v", adopted, err)
	}
}

func TestDamageCountsAsMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, none)
	web := entry("web", "1")
	if _, err := offer(t, s, state(3, web)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.specFile(web.Digest).Path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, none)
	if _, ok := s.Current(); ok {
		t.Error("a desired state without its spec is in force")
	}
	if adopted, err := offer(t, s, state(3, web)); !adopted || err != nil {
		t.Errorf("the retained message does not repair it: %t, %v", adopted, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "desired.cbor"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := open(t, dir, none).Current(); ok {
		t.Error("a damaged desired state is in force")
	}
}

func TestFetch(t *testing.T) {
	t.Parallel()
	web := entry("web", "1")
	answer := http.StatusServiceUnavailable
	body := web.Spec
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/specs/"+string(web.Digest)) {
			t.Errorf("path %s", r.URL.Path)
		}
		w.WriteHeader(answer)
		if _, err := w.Write(body); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	base, err := url.Parse(server.URL + "/specs/")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, t.TempDir(), HTTP(server.Client(), base, disk.OS, t.TempDir()))
	thin := web
	thin.Spec = nil
	if _, err := offer(t, s, state(1, thin)); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("CO away: %v", err)
	}
	answer, body = http.StatusOK, append([]byte{}, append(web.Spec, 'x')...)
	if _, err := offer(t, s, state(1, thin)); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("too many bytes: %v", err)
	}
	body = append([]byte{1}, web.Spec[1:]...)
	if _, err := offer(t, s, state(1, thin)); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("other bytes: %v", err)
	}
	body = web.Spec
	if adopted, err := offer(t, s, state(1, thin)); !adopted || err != nil {
		t.Errorf("adopted %t, %v", adopted, err)
	}
}

func TestKeep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, none)
	one, two, three := entry("web", "1"), entry("web", "2"), entry("web", "3")
	for i, e := range []protocol.SiteEntry{one, two, three} {
		if _, err := offer(t, s, state(uint64(i+1), e)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Keep([]protocol.Digest{one.Digest}); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, none)
	for e, want := range map[protocol.Digest]bool{one.Digest: true, two.Digest: false, three.Digest: true} {
		if _, ok := s.Spec(e); ok != want {
			t.Errorf("spec %s held %t, want %t", e.Short(), ok, want)
		}
	}
}

// TestImages names the images of the versions that are stored, also of one that is not in force; of
// a site that never had a desired state they are unknown.
func TestImages(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), none)
	if images, known := s.Images(); known || len(images) != 0 {
		t.Errorf("without a desired state: %v, known %t", images, known)
	}
	for i, images := range [][]string{{"r/a@1", "r/b@1"}, {"r/b@1"}} {
		spec := protocol.DeploymentSpec{V: 1, ID: "i", Deployment: "web", App: "app", AppVersion: images[0]}
		for _, image := range images {
			spec.Components = append(spec.Components, protocol.Component{Name: image, Containers: []protocol.Container{{Name: "x", Image: image}}})
		}
		b := protocol.Marshal(&spec)
		if _, err := offer(t, s, state(uint64(i+1), protocol.SiteEntry{Deployment: "web", Digest: protocol.DigestOf(b), Size: uint64(len(b)), Spec: b})); err != nil {
			t.Fatal(err)
		}
	}
	if images, known := s.Images(); !known || !slices.Equal(images, []string{"r/a@1", "r/b@1"}) {
		t.Errorf("images %v, known %t", images, known)
	}
}

func TestMQTTOffersTheLatestUntilAccepted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := NewMQTT(quiet)
		source.Put([]byte("1"))
		source.Put([]byte("2"))
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		fail := 2
		done := make(chan error)
		go func() {
			done <- source.Run(ctx, func(_ context.Context, payload []byte) error {
				got = append(got, string(payload))
				if fail > 0 {
					fail--
					return errors.New("not yet")
				}
				return nil
			})
		}()
		for range 2 {
			<-time.After(2 * firstRetry)
			synctest.Wait()
		}
		source.Put([]byte("3"))
		<-time.After(lastRetry)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"2", "2", "2", "3"}, got); diff != "" {
			t.Errorf("offered (-want +got):\n%s", diff)
		}
	})
}

// TestEveryBit flips bits of the stored desired state and of its spec, and puts one
// file over another: the state is the one that was stored or none, what is
// damaged is reported, and the CO's state is adopted again.
func TestEveryBit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, none)
	web := entry("web", "1")
	web.Signature = []byte("signature")
	stored := state(5, web)
	if _, err := offer(t, s, stored); err != nil {
		t.Fatal(err)
	}
	want, _ := s.Current()
	files := map[string][]byte{}
	for _, f := range []statefile.File{s.file(), s.specFile(web.Digest), s.signatureFile(web.Digest)} {
		b, err := os.ReadFile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Path] = b
	}
	check := func(what, path string, b []byte) {
		t.Helper()
		for name, whole := range files {
			if name == path {
				whole = b
			}
			if err := os.WriteFile(name, whole, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := open(t, dir, none)
		if got, ok := s.Current(); ok && !cmp.Equal(got, want) || len(s.Damage()) != 1 {
			t.Fatalf("%s of %s: held %t, %+v; damaged: %v", what, path, ok, got, s.Damage())
		}
		if spec, ok := s.Spec(web.Digest); ok && (!slices.Equal(spec.Bytes, web.Spec) || len(spec.Signature) > 0 && string(spec.Signature) != "signature") {
			t.Fatalf("%s of %s: other spec", what, path)
		}
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	for path, whole := range files {
		for bit := 0; bit < 8*len(whole); bit += step {
			b := slices.Clone(whole)
			b[bit/8] ^= 1 << (bit % 8)
			check(fmt.Sprintf("bit %d", bit), path, b)
		}
		for other, b := range files {
			if other != path {
				check("swap", path, b)
			}
		}
		check("cut", path, whole[:len(whole)/2])
		check("zeros", path, make([]byte, len(whole)))
		s := open(t, dir, none)
		if _, err := offer(t, s, stored); err != nil {
			t.Errorf("the right state is refused after damage: %v", err)
		}
		if got, ok := s.Current(); !ok || !cmp.Equal(got, want) {
			t.Errorf("after damage and an offer: %t, %+v", ok, got)
		}
	}
}

// A signature whose spec is damaged, or was removed before it, stays no longer than until the next start, and is
// read before: a damage of it is reported. What is not of the store is reported and left alone.
func TestFilesThatNobodyReads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		spoil   func(spec, signature string) error
		damaged int
	}{
		{"the spec is damaged", func(spec, _ string) error { return os.WriteFile(spec, []byte("rot"), 0o600) }, 1},
		{"the spec is away", func(spec, _ string) error { return os.Remove(spec) }, 0},
		{"the spec is away and the signature damaged", func(spec, signature string) error {
			return errors.Join(os.Remove(spec), os.WriteFile(signature, []byte("rot"), 0o600))
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			signed := entry("web", "1")
			signed.Signature = []byte("sig")
			if _, err := offer(t, open(t, dir, none), state(5, signed)); err != nil {
				t.Fatal(err)
			}
			spec := filepath.Join(dir, "specs", strings.TrimPrefix(string(signed.Digest), "sha256:"))
			foreign := filepath.Join(dir, "specs", "note.txt")
			if err := errors.Join(c.spoil(spec, spec+".sig"), os.WriteFile(foreign, []byte("x"), 0o600)); err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			s, err := Open(Options{Disk: disk.OS, Dir: dir, Site: "s1", Fetch: none, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Damage()) != c.damaged {
				t.Errorf("damaged: %v, want %d", s.Damage(), c.damaged)
			}
			if _, err := os.Stat(spec + ".sig"); !os.IsNotExist(err) {
				t.Errorf("the signature is still there: %v", err)
			}
			if _, err := os.Stat(foreign); err != nil || !strings.Contains(log.String(), foreign) {
				t.Errorf("the file of somebody else: %v; the log does not name it: %s", err, log.String())
			}
			if adopted, err := offer(t, s, state(5, signed)); !adopted || err != nil {
				t.Fatalf("the state again: adopted %t, %v", adopted, err)
			}
			again := open(t, dir, none)
			if got, ok := again.Spec(signed.Digest); !ok || string(got.Signature) != "sig" || len(again.Damage()) != 0 {
				t.Errorf("held %t, signature %q, damaged %v", ok, got.Signature, again.Damage())
			}
		})
	}
}
