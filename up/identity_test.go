package up

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/identity/store"
)

// openStore opens the directory of a machine's identity.
func openStore(t *testing.T, dir string) *store.Store {
	t.Helper()
	files, err := store.Open(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// certify stores a certificate by a root, which begins at a time, and that of the authority of an LO.
func certify(t *testing.T, files *store.Store, n identity.Name, root *identity.Authority, at time.Time) {
	t.Helper()
	key, err := files.Key(store.Machine)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := root.Issue(n, key.Public(), at)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Save(store.Machine, &identity.Credential{Key: key, Chain: chain, Root: root.Root()}); err != nil {
		t.Fatal(err)
	}
	if n.Tier != identity.LO {
		return
	}
	if key, err = files.Key(store.Issuer); err != nil {
		t.Fatal(err)
	}
	cert, err := root.IssueSite(n.Site, key.Public(), at)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Save(store.Issuer, &identity.Credential{Key: key, Chain: []*x509.Certificate{cert}, Root: root.Root()}); err != nil {
		t.Fatal(err)
	}
}

// TestRootIsMadeOnce makes the root in a state directory that has none, keeps it, and makes no
// other one where it was lost.
func TestRootIsMadeOnce(t *testing.T) {
	t.Parallel()
	s := &supervisor{opts: DefaultOptions(), dir: &stateDir{path: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	if _, err := s.root(); err == nil {
		t.Error("there is a root in an empty directory")
	}
	if err := s.prepareRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, err := s.root()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.prepareRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, err := s.root(); err != nil || !again.Equal(first) {
		t.Errorf("the second start has another root (%v)", err)
	}
	dir := store.Dir(s.dir.sub("co"))
	files := openStore(t, dir)
	a, err := files.OpenRoot()
	if err != nil {
		t.Fatal(err)
	}
	certify(t, files, identity.OfCO(), a, time.Now())
	for _, name := range []string{"root.crt", "root.key"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, "a root that was lost", s.prepareRoot(t.Context()), "bring it back with colony ca import --config "+s.configPath("co"))
}

// TestRevokedMachines has the CO know the keys of the site and of its node as revoked, or as removed.
func TestRevokedMachines(t *testing.T) {
	t.Parallel()
	known := map[string]fleet.RevokedKey{}
	o := against(t, func(w http.ResponseWriter, r *http.Request) {
		k, ok := known[strings.TrimPrefix(r.URL.Path, "/api/v1/revoked-keys/")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(k)
	})
	o.Site, o.Node = "plant", "gw-1"
	s := &supervisor{opts: o, dir: &stateDir{path: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	keyOf := func(m machine) string {
		t.Helper()
		k, err := openStore(t, m.dir).Key(store.Machine)
		if err != nil {
			t.Fatal(err)
		}
		sum := identity.KeySum(k.Public())
		return hex.EncodeToString(sum[:])
	}
	if err := s.checkKeys(t.Context()); err != nil {
		t.Errorf("keys that were not revoked: %v", err)
	}
	lo, node, at := keyOf(s.theLO()), keyOf(s.theEN()), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	known[lo], known[node] = fleet.RevokedKey{Revoked: at}, fleet.RevokedKey{Revoked: at}
	err := s.checkKeys(t.Context())
	wantError(t, "a revoked site", err, "the key of the LO of site plant was revoked at 2026-01-02T03:04:05Z", "rm -r "+s.theLO().dir)
	wantError(t, "a revoked node", err, "the key of node plant/gw-1 was revoked", "rm -r "+s.theEN().dir)
	if keyOf(s.theLO()) != lo || keyOf(s.theEN()) != node || len(s.anew) != 0 {
		t.Error("a machine that was revoked has another key")
	}
	known[lo], known[node] = fleet.RevokedKey{Revoked: at, Removed: true}, fleet.RevokedKey{Revoked: at, Removed: true}
	if err := s.checkKeys(t.Context()); err != nil {
		t.Errorf("machines that were removed: %v", err)
	}
	if keyOf(s.theLO()) == lo || keyOf(s.theEN()) == node || len(s.anew) != 2 {
		t.Errorf("machines that were removed have their former keys; anew: %v", s.anew)
	}
	for _, m := range []machine{s.theLO(), s.theEN()} {
		if err := os.WriteFile(filepath.Join(m.dir, "machine.key"), []byte("-----BEGIN"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.checkKeys(t.Context()); err != nil {
		t.Errorf("machines whose keys are damaged, which enrol anew: %v", err)
	}
	if found := openStore(t, s.theLO().dir).Repair(store.Machine); len(found) != 1 {
		t.Errorf("the LO finds %v damaged, want its key, to report it", found)
	}
	refused := identity.Refuse(identity.NameTaken, "another gateway is enrolled")
	if err := openStore(t, s.theLO().dir).SaveRefusal(refused); err != nil {
		t.Fatal(err)
	}
	if err := s.prepareRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	root, err := openStore(t, store.Dir(s.dir.sub("co"))).OpenRoot()
	if err != nil {
		t.Fatal(err)
	}
	certify(t, openStore(t, s.theLO().dir), identity.OfLO("plant"), root, time.Now())
	offline := func(context.Context) error { return errors.New("it is offline") }
	wantError(t, "a machine that is refused", s.online(s.theLO(), offline)(t.Context()), "it is offline", "the LO of site plant was refused: name_taken")
}

// TestTokenWhereItIsNeeded has a join token made for a machine that has no certificate which
// will do, and for no other.
func TestTokenWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	asked := ""
	o := against(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Seconds int
			Replace bool
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Seconds != 3600 || !body.Replace {
			t.Errorf("request %+v, %v", body, err)
		}
		asked += r.URL.Path + " "
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"token": "id.secret.fingerprint"}`))
	})
	o.Site, o.Node = "plant", "gw-1"
	s := &supervisor{opts: o, dir: &stateDir{path: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	root, _, err := openStore(t, store.Dir(s.dir.sub("co"))).InitRoot(time.Now().Add(-2 * identity.LeafLife))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.prepareRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := s.dir.sub("lo", "identity")
	token, files := filepath.Join(dir, "token"), openStore(t, dir)
	want := func(what string, made bool) {
		t.Helper()
		asked = ""
		if err := s.admit(t.Context(), s.theLO()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		info, err := os.Stat(token)
		if got := asked == "/api/v1/sites/plant/join-tokens "; got != made || (err == nil) != made || made && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: asked for %q, token %v, %v; want one made: %t", what, asked, info, err, made)
		}
		_ = os.Remove(token)
	}
	lo, now := identity.OfLO("plant"), time.Now()
	known := func(context.Context) error { return nil }
	want("no certificate", true)
	if err := s.online(s.theLO(), known)(t.Context()); err == nil {
		t.Error("a machine that the CO remembers as online counts, and it has no certificate")
	}
	certify(t, files, lo, root, now)
	if err := s.online(s.theLO(), known)(t.Context()); err != nil {
		t.Error(err)
	}
	want("a certificate", false)
	writing := filepath.Join(dir, ".tmp-machine.crt-a")
	if err := os.WriteFile(writing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.online(s.theLO(), known)(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(writing); err != nil {
		t.Errorf("the LO writes a file, and a look at its certificate removed that: %v", err)
	}
	certify(t, files, lo, root, now.Add(-identity.LeafLife*3/4))
	want("a certificate that is to be renewed", false)
	certify(t, files, lo, root, now.Add(-identity.LeafLife*9/10))
	want("a certificate that is overdue for renewal", true)
	certify(t, files, identity.OfLO("other"), root, now)
	want("the certificate of another site", true)
	certify(t, files, lo, identitytest.Root(t, now), now)
	want("a certificate of another root", true)
	if _, err := files.Load(store.Machine); err == nil {
		t.Error("the certificate of another root is still there: the LO trusts that root and no other")
	}
	certify(t, files, lo, root, now)
	if err := os.WriteFile(filepath.Join(dir, "issuer.key"), []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("a damaged authority of the site", true)

	asked = ""
	if err := s.admit(t.Context(), s.theEN()); err != nil || !strings.HasSuffix(asked, "/sites/plant/node-tokens ") {
		t.Errorf("the node: asked for %q, %v", asked, err)
	}
	if raw, err := os.ReadFile(s.dir.sub("en", "identity", "token")); err != nil || string(raw) != "id.secret.fingerprint\n" {
		t.Errorf("token of the node: %q, %v", raw, err)
	}
}
