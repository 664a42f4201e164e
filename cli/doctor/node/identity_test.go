package node

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/revocation"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/tpmtest"
	"github.com/colonyfleet/colony/protocol"
)

// A place is the directory of a machine's identity, at a time.
type place struct {
	t     *testing.T
	proof Proof
	files *store.Store
	root  *identity.Authority
	now   time.Time
}

func newPlace(t *testing.T, n identity.Name) *place {
	t.Helper()
	p := &place{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	p.proof = Proof{Key: "co.enrol", Set: true, Dir: t.TempDir(), Name: n}
	if n.Tier != identity.CO {
		p.proof.TokenFile, p.proof.Token = filepath.Join(p.proof.Dir, "token"), "colony site add plant"
	}
	p.files = store.At(nil, p.proof.Dir)
	key, err := identity.NewKey()
	if err == nil {
		p.root, err = identity.NewRoot(key, p.now.Add(-time.Hour))
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// certify stores a certificate of a name that begins at a time.
func (p *place) certify(n identity.Name, at time.Time) {
	p.t.Helper()
	key, err := p.files.Key(store.Machine)
	if err != nil {
		p.t.Fatal(err)
	}
	chain, err := p.root.Issue(n, key.Public(), at)
	if err == nil {
		err = p.files.Save(store.Machine, &identity.Credential{Key: key, Chain: chain, Root: p.root.Root()})
	}
	if err != nil {
		p.t.Fatal(err)
	}
	if n.Tier == identity.LO {
		p.empower(n.Site, at)
	}
}

// empower stores the authority of a site that begins at a time.
func (p *place) empower(site protocol.SiteID, at time.Time) {
	p.t.Helper()
	key, err := p.files.Key(store.Issuer)
	if err != nil {
		p.t.Fatal(err)
	}
	cert, err := p.root.IssueSite(site, key.Public(), at)
	if err == nil {
		err = p.files.Save(store.Issuer, &identity.Credential{Key: key, Chain: []*x509.Certificate{cert}, Root: p.root.Root()})
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// want checks what is found: each is a status and a part of the message.
func (p *place) want(what string, all ...string) {
	p.t.Helper()
	var got []string
	for i, f := range p.proof.check(p.now) {
		text := string(f.Status) + " " + f.Message
		if i < len(all) && strings.HasPrefix(text, strings.SplitN(all[i], " ", 2)[0]+" ") && strings.Contains(text, strings.SplitN(all[i], " ", 2)[1]) {
			text = all[i]
		}
		got = append(got, text)
		if (f.Fix == "") != (f.Status == "ok") {
			p.t.Errorf("%s: finding %q has the fix %q", what, text, f.Fix)
		}
	}
	if diff := cmp.Diff(all, got); diff != "" {
		p.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (p *place) write(path, text string) {
	p.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// TestIdentityOfMachine judges an LO from before it is enrolled to after its certificate ended.
func TestIdentityOfMachine(t *testing.T) {
	t.Parallel()
	p := newPlace(t, identity.OfLO("plant"))
	p.proof.Set = false
	p.want("development mode", "warn development mode: no client")
	p.proof.Set = true
	p.want("neither certificate nor token", "fail no join token")
	p.write(p.proof.TokenFile, "nonsense")
	p.want("a token that is none", "fail no join token")
	p.write(p.proof.TokenFile, identity.NewToken(p.root.Root()).String()+"\n")
	p.want("a token", "warn no certificate yet")
	p.certify(identity.OfLO("plant"), p.now)
	p.want("a certificate", "ok the certificate of plant lasts until 2026-02-01")
	p.proof.Open = true
	p.want("nodes without certificates", "ok lasts until", "warn development mode: no node has a certificate")
	p.proof.Open = false
	p.now = p.now.Add(23 * 24 * time.Hour)
	p.want("in its last third", "ok lasts until")
	p.now = p.now.Add(2 * 24 * time.Hour)
	p.want("five days before its end", "warn ends at")
	p.now = p.now.Add(10 * 24 * time.Hour)
	p.want("after its end", "fail has ended at")
	p.certify(identity.OfLO("other"), p.now)
	p.want("that of another site", "fail the certificate is that of other: the configuration says plant")
	if got := p.proof.Secrets(); len(got) != 3 {
		t.Errorf("secrets %q: want both keys and the token", got)
	}
	p.write(filepath.Join(p.proof.Dir, "machine.crt"), "damaged")
	p.want("a damaged file", "fail certificates of")
}

// TestAuthorityOfSite judges an LO whose authority is missing, damaged, and there again.
func TestAuthorityOfSite(t *testing.T) {
	t.Parallel()
	p := newPlace(t, identity.OfLO("plant"))
	p.certify(identity.OfLO("plant"), p.now)
	p.want("all is there", "ok lasts until")
	key := filepath.Join(p.proof.Dir, "issuer.key")
	p.write(key, "damaged")
	p.want("a damaged key", "ok lasts until", "fail the authority of site plant is of no use")
	if fix := p.proof.check(p.now)[1].Fix; !strings.Contains(fix, "colony site add plant, and write it to "+p.proof.TokenFile) {
		t.Errorf("the fix is %q", fix)
	}
	p.files.Repair(store.Issuer)
	p.want("set aside", "ok lasts until", "warn the authority of site plant is missing")
	if fix := p.proof.check(p.now)[1].Fix; !strings.Contains(fix, "colony site add plant, and write it to "+p.proof.TokenFile) {
		t.Errorf("the fix is %q", fix)
	}
	p.empower("plant", p.now)
	p.want("certified anew", "ok lasts until")
}

// TestWaitingMachine judges a node that asks without a token, before and after it has a key.
func TestWaitingMachine(t *testing.T) {
	t.Parallel()
	p := newPlace(t, identity.OfNode("plant", "gw-1"))
	p.proof.Applies = true
	p.want("no key yet", "warn no certificate, no join token, and no key yet")
	k, err := p.files.Key(store.Machine)
	if err != nil {
		t.Fatal(err)
	}
	sum := identity.KeySum(k.Public())
	p.want("a key", fmt.Sprintf("warn it waits until its key %x is approved", sum))
	if err := p.files.SaveRefusal(identity.Refuse(identity.Pending, "it waits")); err != nil {
		t.Fatal(err)
	}
	p.want("a key that waits", fmt.Sprintf("warn it waits until its key %x is approved", sum))
	if err := p.files.SaveRefusal(identity.Refuse(identity.Rejected, "the key was rejected")); err != nil {
		t.Fatal(err)
	}
	p.want("a key that was rejected", "warn it waits until its key", "warn rejected: the key was rejected")
	p.write(p.proof.TokenFile, "nonsense")
	p.want("a token that is none", "fail no join token", "warn rejected: the key was rejected")
}

// TestRevokedMachine judges a node that was refused, and then one whose key is on the list of its site.
func TestRevokedMachine(t *testing.T) {
	t.Parallel()
	p := newPlace(t, identity.OfNode("plant", "gw-1"))
	p.certify(p.proof.Name, p.now)
	save := func(r *identity.Refusal) {
		t.Helper()
		if err := p.files.SaveRefusal(r); err != nil {
			t.Fatal(err)
		}
	}
	save(identity.Refuse(identity.TokenExpired, "its time is over"))
	p.want("refused with a token", "ok lasts until", "warn was refused when it asked for a certificate last: token_expired: its time is over")
	save(identity.Refuse(identity.Revoked, "the key was revoked"))
	p.want("refused as revoked", "ok lasts until", "fail revoked: the key was revoked")
	save(nil)
	p.want("no longer refused", "ok lasts until")

	list, err := revocation.Open(revocation.Options{Site: "plant", Disk: disk.OS, Dir: p.proof.Dir, Logger: slog.New(slog.DiscardHandler), Changed: func([]string) {}})
	if err != nil {
		t.Fatal(err)
	}
	set := func(number uint64, keys ...protocol.RevokedKey) {
		t.Helper()
		m := protocol.Revocations{V: protocol.Version, Site: "plant", Number: number, Keys: keys}
		if _, err := list.Set(protocol.Marshal(&protocol.SiteRevocations{V: protocol.Version, List: protocol.Marshal(&m)})); err != nil {
			t.Fatal(err)
		}
	}
	set(1_700_000_000_000)
	p.want("an empty list", "ok lasts until", "ok list 1700000000000 of revoked keys is in force: 0 keys, as the CO had them at 2023-11-14T22:13:20Z")
	k, err := p.files.Key(store.Machine)
	if err != nil {
		t.Fatal(err)
	}
	sum := identity.KeySum(k.Public())
	set(1_700_000_000_001, protocol.RevokedKey{Key: sum[:], EndMillis: 1_900_000_000_000})
	p.want("its own key", "ok lasts until", "ok 1 keys", "fail the key machine of gw-1.plant is on the list")
	p.write(filepath.Join(p.proof.Dir, "revocations.cbor"), "damaged")
	p.want("a damaged list", "ok lasts until", "warn the list of revoked keys:")
}

// TestIdentityOfLateClock finds a clock that is behind what a certificate has shown.
func TestIdentityOfLateClock(t *testing.T) {
	t.Parallel()
	p := newPlace(t, identity.OfNode("plant", "gw-1"))
	p.certify(p.proof.Name, p.now)
	c, err := p.files.Load(store.Machine)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.files.Clock(func() time.Time { return p.now }).Raise(c.Chain[0], c.Root); err != nil {
		t.Fatal(err)
	}
	p.want("a clock that is right", "ok lasts until")
	p.now = time.Unix(0, 0)
	p.want("1970", "ok lasts until", "warn the clock says 1970-01-01")
}

// TestIdentityOfCO judges the root of the fleet.
func TestIdentityOfCO(t *testing.T) {
	t.Parallel()
	p := newPlace(t, identity.OfCO())
	p.want("no root", "fail the root of the fleet is missing", "ok no certificate yet")
	var err error
	if p.root, _, err = p.files.InitRoot(p.now); err != nil {
		t.Fatal(err)
	}
	p.want("a root", "ok the root of the fleet lasts until 2045", "ok no certificate yet")
	p.certify(identity.OfCO(), p.now)
	p.want("a certificate", "ok the root of the fleet", "ok the certificate of co lasts")
	if err := os.Remove(filepath.Join(p.proof.Dir, "root.key")); err != nil {
		t.Fatal(err)
	}
	p.want("a root without its key", "fail root.key is not", "ok the certificate of co")
	p.proof.External = true
	p.want("an external broker", "ok external broker")
}

// TestTPM judges a machine whose configuration asks for a TPM: without one, with one, with a key of before, with
// a key in it, and after it was cleared.
func TestTPM(t *testing.T) {
	t.Parallel()
	p := newPlace(t, identity.OfLO("plant"))
	judged := func(what string, status doctor.Status, say string) {
		t.Helper()
		got := p.proof.check(p.now)[0]
		if got.Status != status || !strings.Contains(got.Message, say) || (got.Fix == "") != (status == doctor.OK) {
			t.Errorf("%s: %+v, want %q in it", what, got, say)
		}
	}
	p.proof.Keys = "tpm:" + filepath.Join(p.proof.Dir, "none")
	judged("no TPM", doctor.Fail, "has no TPM 2.0")
	device := tpmtest.Start(t)
	p.proof.Keys = "tpm:" + device.Path
	judged("no key yet", doctor.OK, "makes keys")
	if _, err := p.files.Key(store.Machine); err != nil {
		t.Fatal(err)
	}
	judged("a file", doctor.Warn, "is a file of before")
	if err := os.Remove(filepath.Join(p.proof.Dir, "machine.key")); err != nil {
		t.Fatal(err)
	}
	module := tpm.New(device.Path)
	if _, err := p.files.In(module).Key(store.Machine); err != nil {
		t.Fatal(err)
	}
	if err := module.Close(); err != nil {
		t.Error(err)
	}
	judged("a key in it", doctor.OK, "is in the TPM")
	device.Kill()
	if name, err := store.At(nil, p.proof.Dir).KeyName(store.Machine); err != nil || len(name) != 64 {
		t.Errorf("name of the key without the TPM: %q, %v", name, err)
	}
	judged("a TPM that is away", doctor.Fail, "socket of the TPM")
	device.Replace()
	device.Again()
	judged("another TPM", doctor.Fail, "it was cleared")
	p.proof.Keys = ""
	if got := p.proof.check(p.now)[0]; !strings.Contains(got.Message, "no certificate") {
		t.Errorf("without a TPM in the configuration: %+v", got)
	}
	if _, err := store.At(nil, p.proof.Dir).Key(store.Machine); err == nil || store.IsDamaged(err) || !strings.Contains(err.Error(), "set identity.key to tpm") {
		t.Errorf("a key of a TPM, where the configuration has none: %v", err)
	}
}
