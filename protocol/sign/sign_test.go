package sign

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/veraison/go-cose"

	"github.com/colonyfleet/colony/protocol"
)

// signer returns the Signer of a key that is always the same. It protects nothing.
func signer(t testing.TB, seed byte) *Signer {
	t.Helper()
	s, err := NewSigner(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// keySet returns a key set that root signed.
func keySet(t testing.TB, root *Signer, number uint64, keys ...*Signer) []byte {
	t.Helper()
	k := Keys{V: protocol.Version, Number: number}
	for _, s := range keys {
		k.Signing = append(k.Signing, s.Public())
	}
	statement, err := root.Sign(KeySet, protocol.Marshal(k))
	if err != nil {
		t.Fatal(err)
	}
	return statement
}

// trust returns what a receiver believes that has the root key and the key set 1 with one key.
func trust(t testing.TB, root, key *Signer) Trust {
	t.Helper()
	tr, err := NewTrust(root.Public())
	if err == nil {
		tr, err = tr.Follow(keySet(t, root, 1, key))
	}
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func site() protocol.SiteDesired {
	spec := protocol.Marshal(protocol.DeploymentSpec{V: 1, ID: "i", Deployment: "hello", App: "hello", AppVersion: "1.0.0"})
	return protocol.SiteDesired{
		V: 1, Site: "plant", Position: protocol.Position{Epoch: 1, Generation: 9},
		Deployments: []protocol.SiteEntry{
			{
				Deployment: "hello", Digest: protocol.DigestOf(spec), Size: uint64(len(spec)), Spec: spec,
				Placement: protocol.Placement{Selector: map[string]string{"line": "3"}}, Position: protocol.Position{Epoch: 1, Generation: 8},
			},
			{Deployment: "other", Digest: protocol.DigestOf(nil), Size: 9, Placement: protocol.Placement{Node: "gw-1"}, Position: protocol.Position{Epoch: 1, Generation: 9}},
		},
		Removals: []protocol.Removal{{Deployment: "old", Position: protocol.Position{Epoch: 1, Generation: 7}, Volumes: true}},
		Purges:   []protocol.Purge{{Node: "gw-1", Deployment: "older", Volume: "data", Position: protocol.Position{Epoch: 1, Generation: 6}}},
		Data:     []protocol.DataRule{{Name: "temps", Topics: []string{"line/+/temp"}}},
	}
}

// signed returns site, signed by a key.
func signed(t testing.TB, key *Signer) protocol.SiteDesired {
	t.Helper()
	m := site()
	if err := key.Site(&m, nil); err != nil {
		t.Fatal(err)
	}
	m.Content = "" // the tests change what it is over
	return m
}

func TestSite(t *testing.T) {
	t.Parallel()
	root, key := signer(t, 1), signer(t, 2)
	tr, sent := trust(t, root, key), signed(t, key)
	got, err := tr.Site(protocol.Marshal(sent))
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range got.Deployments {
		want := site().Deployments[i]
		want.Spec = nil
		entry, err := tr.Entry("plant", e.Signature)
		if diff := cmp.Diff(want, entry); err != nil || diff != "" {
			t.Errorf("entry %d: %v (-want +got):\n%s", i, err, diff)
		}
	}
	removal, err := tr.Tombstone("plant", got.Removals[0].Signature)
	if diff := cmp.Diff(site().Removals[0], removal); err != nil || diff != "" {
		t.Errorf("removal: %v (-want +got):\n%s", err, diff)
	}
	purge, err := tr.Purge("plant", got.Purges[0].Signature)
	if diff := cmp.Diff(site().Purges[0], purge); err != nil || diff != "" {
		t.Errorf("purge: %v (-want +got):\n%s", err, diff)
	}
	// What is signed is the same whether it was signed before or not, and by which key.
	original, resigned := site(), signed(t, key)
	if err := signer(t, 3).Site(&resigned, nil); err != nil {
		t.Fatal(err)
	}
	if original.ContentDigest() != sent.ContentDigest() || resigned.ContentDigest() != sent.ContentDigest() {
		t.Error("a signature changes the digest of what the message says")
	}
}

// TestSiteWithoutSpecs checks that the statements hold for a message that names the specs by
// digest: what the CO sends of a large state.
func TestSiteWithoutSpecs(t *testing.T) {
	t.Parallel()
	root, key := signer(t, 1), signer(t, 2)
	m := signed(t, key)
	for i := range m.Deployments {
		m.Deployments[i].Spec = nil
	}
	if _, err := trust(t, root, key).Site(protocol.Marshal(m)); err != nil {
		t.Error(err)
	}
}

// TestSiteOfALaterRelease checks that fields which this release does not know are covered,
// and handed on.
func TestSiteOfALaterRelease(t *testing.T) {
	t.Parallel()
	root, key := signer(t, 1), signer(t, 2)
	type entry struct {
		protocol.SiteEntry
		New string `cbor:"99,keyasint"`
	}
	plain := entry{SiteEntry: site().Deployments[1], New: "later"}
	type statement struct {
		Site  protocol.SiteID `cbor:"1,keyasint"`
		Entry entry           `cbor:"2,keyasint"`
	}
	payload := protocol.Marshal(statement{"plant", plain})
	var err error
	if plain.Signature, err = key.detached(Entry, payload); err != nil {
		t.Fatal(err)
	}
	message := func(value string, head []byte) []byte {
		e := plain
		e.New = value
		return protocol.Marshal(struct {
			V           uint16            `cbor:"0,keyasint"`
			Site        protocol.SiteID   `cbor:"1,keyasint"`
			Deployments []entry           `cbor:"5,keyasint"`
			Position    protocol.Position `cbor:"9,keyasint"`
			Head        []byte            `cbor:"16,keyasint,omitempty"`
			New         string            `cbor:"98,keyasint"`
		}{1, "plant", []entry{e}, protocol.Position{Epoch: 1, Generation: 9}, head, value})
	}
	digest, err := headDigest(message("later", nil))
	if err != nil {
		t.Fatal(err)
	}
	head, err := key.Sign(Head, protocol.Marshal(HeadStatement{"plant", protocol.Position{Epoch: 1, Generation: 9}, digest}))
	if err != nil {
		t.Fatal(err)
	}
	tr := trust(t, root, key)
	got, err := tr.Site(message("later", head))
	if err != nil {
		t.Fatalf("a message with fields of a later release is refused: %v", err)
	}
	handedOn, err := tr.Verify(Entry, got.Deployments[0].Signature)
	if err != nil || !bytes.Equal(handedOn, payload) {
		t.Errorf("handed on: %x, %v", handedOn, err)
	}
	if _, err := tr.Site(message("other", head)); ReasonOf(err) != Mismatch {
		t.Errorf("a changed field of a later release: %v", err)
	}
}

// TestRefusals changes a signed message in each way that an attacker between CO and site can.
func TestRefusals(t *testing.T) {
	t.Parallel()
	root, key, stranger := signer(t, 1), signer(t, 2), signer(t, 3)
	tr := trust(t, root, key)
	for name, tt := range map[string]struct {
		change func(m *protocol.SiteDesired)
		want   Reason
	}{
		"no head":              {func(m *protocol.SiteDesired) { m.Head = nil }, Unsigned},
		"no signature":         {func(m *protocol.SiteDesired) { m.Deployments[0].Signature = nil; rehead(t, key, m) }, Unsigned},
		"entry of no key":      {func(m *protocol.SiteDesired) { m.Deployments[0].Digest = protocol.DigestOf(nil) }, Mismatch},
		"placement changed":    {func(m *protocol.SiteDesired) { m.Deployments[0].Placement.Node = "gw-2"; rehead(t, key, m) }, BadSignature},
		"entry left out":       {func(m *protocol.SiteDesired) { m.Deployments = m.Deployments[1:] }, Mismatch},
		"everything left out":  {func(m *protocol.SiteDesired) { m.Deployments = nil }, Mismatch},
		"removal added":        {func(m *protocol.SiteDesired) { m.Removals = append(m.Removals, protocol.Removal{Deployment: "x"}) }, Mismatch},
		"removal with volumes": {func(m *protocol.SiteDesired) { m.Removals[0].Volumes = false; rehead(t, key, m) }, BadSignature},
		"purge of all volumes": {func(m *protocol.SiteDesired) { m.Purges[0].Volume = ""; rehead(t, key, m) }, BadSignature},
		"data rules changed":   {func(m *protocol.SiteDesired) { m.Data = nil }, Mismatch},
		"device added":         {func(m *protocol.SiteDesired) { m.Devices = []protocol.DeviceAccount{{User: "x"}} }, Mismatch},
		"later position":       {func(m *protocol.SiteDesired) { m.Position.Generation++ }, Mismatch},
		"other site":           {func(m *protocol.SiteDesired) { m.Site = "other" }, WrongSite},
		"signed by a stranger": {func(m *protocol.SiteDesired) { *m = signed(t, stranger) }, UnknownKey},
		"entry of a stranger": {func(m *protocol.SiteDesired) {
			m.Deployments[0].Signature = signed(t, stranger).Deployments[0].Signature
			rehead(t, key, m)
		}, UnknownKey},
		"signature of another": {func(m *protocol.SiteDesired) {
			m.Deployments[0].Signature = m.Deployments[1].Signature
			rehead(t, key, m)
		}, BadSignature},
		"statement of a kind": {func(m *protocol.SiteDesired) { m.Deployments[0].Signature = m.Removals[0].Signature; rehead(t, key, m) }, WrongKind},
		"head as an entry":    {func(m *protocol.SiteDesired) { m.Deployments[0].Signature = m.Head; rehead(t, key, m) }, Malformed},
		"no COSE":             {func(m *protocol.SiteDesired) { m.Head = []byte("x") }, Malformed},
		"head too large":      {func(m *protocol.SiteDesired) { m.Head = make([]byte, MaxStatement+1) }, Malformed},
		"head of another state": {func(m *protocol.SiteDesired) {
			o := site()
			o.Position.Generation++
			_ = key.Site(&o, nil)
			m.Head = o.Head
		}, Mismatch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := signed(t, key)
			tt.change(&m)
			_, err := tr.Site(protocol.Marshal(m))
			if ReasonOf(err) != tt.want || protocol.KindOf(err) != protocol.Invalid {
				t.Errorf("%v: want reason %s", err, tt.want)
			}
		})
	}
}

// rehead signs the head over m as it is.
func rehead(t testing.TB, key *Signer, m *protocol.SiteDesired) {
	t.Helper()
	m.Head = nil
	digest, err := headDigest(protocol.Marshal(m))
	if err != nil {
		t.Fatal(err)
	}
	if m.Head, err = key.Sign(Head, protocol.Marshal(HeadStatement{m.Site, m.Position, digest})); err != nil {
		t.Fatal(err)
	}
}

func TestOtherSite(t *testing.T) {
	t.Parallel()
	root, key := signer(t, 1), signer(t, 2)
	tr := trust(t, root, key)
	got, err := tr.Site(protocol.Marshal(signed(t, key)))
	if err != nil {
		t.Fatal(err)
	}
	_, entry := tr.Entry("elsewhere", got.Deployments[0].Signature)
	_, tombstone := tr.Tombstone("elsewhere", got.Removals[0].Signature)
	_, purge := tr.Purge("elsewhere", got.Purges[0].Signature)
	for _, err := range []error{entry, tombstone, purge} {
		if ReasonOf(err) != WrongSite {
			t.Errorf("a statement for another site: %v", err)
		}
	}
}

// TestHeaders checks that a statement is refused whose headers say more, or other things,
// than those of this package, although the key has signed it.
func TestHeaders(t *testing.T) {
	t.Parallel()
	root, key := signer(t, 1), signer(t, 2)
	tr := trust(t, root, key)
	whole := func() cose.ProtectedHeader {
		return cose.ProtectedHeader{cose.HeaderLabelAlgorithm: cose.AlgorithmEdDSA, cose.HeaderLabelContentType: string(Head), cose.HeaderLabelKeyID: KeyID(key.Public())}
	}
	for name, tt := range map[string]struct {
		change func(h *cose.Headers)
		want   Reason
	}{
		"as it is": {func(*cose.Headers) {}, ""},
		"critical header": {func(h *cose.Headers) {
			h.Protected[cose.HeaderLabelCritical] = []any{int64(99)}
			h.Protected[int64(99)] = 1
		}, Malformed},
		"unprotected header": {func(h *cose.Headers) { h.Unprotected = cose.UnprotectedHeader{int64(99): 1} }, Malformed},
		"no content type":    {func(h *cose.Headers) { delete(h.Protected, cose.HeaderLabelContentType); h.Protected[int64(99)] = 1 }, WrongKind},
		"long header": {func(h *cose.Headers) {
			h.Protected[cose.HeaderLabelContentType] = "a/" + strings.Repeat("a", maxHeader)
		}, Malformed},
	} {
		h := cose.Headers{Protected: whole()}
		tt.change(&h)
		statement, err := cose.Sign1(nil, key.signer, h, []byte{1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tr.Verify(Head, statement); ReasonOf(err) != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	root, a, b := signer(t, 1), signer(t, 2), signer(t, 3)
	first := trust(t, root, a)
	statement, err := b.Sign(Head, []byte{1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Verify(Head, statement); ReasonOf(err) != UnknownKey {
		t.Errorf("before the rotation: %v", err)
	}
	both, err := first.Follow(keySet(t, root, 2, a, b))
	if err != nil || both.Number() != 2 || !both.Trusts(a.Public()) || !both.Trusts(b.Public()) {
		t.Fatalf("with overlap: %v", err)
	}
	if _, err := both.Verify(Head, statement); err != nil {
		t.Errorf("after the rotation: %v", err)
	}
	second, err := both.Follow(keySet(t, root, 5, b)) // it slept through some
	if err != nil || second.Trusts(a.Public()) {
		t.Fatalf("after the overlap: %v", err)
	}
	if same, err := second.Follow(second.KeySet()); err != nil || same.Number() != 5 {
		t.Errorf("the same once more: %v", err)
	}
	long := make([]*Signer, MaxKeys+1)
	for i := range long {
		long[i] = a
	}
	for name, tt := range map[string]struct {
		statement []byte
		want      Reason
	}{
		"an earlier one":         {keySet(t, root, 2, a, b), Stale},
		"another of this number": {keySet(t, root, 5, a), Stale},
		"not by the root":        {keySet(t, b, 6, a), UnknownKey},
		"without keys":           {keySet(t, root, 6), Malformed},
		"with too many":          {keySet(t, root, 6, long...), Malformed},
		"another statement":      {must(root.Sign(Head, protocol.Marshal(Keys{V: 1, Number: 6, Signing: [][]byte{a.Public()}}))), WrongKind},
		"a short key":            {must(root.Sign(KeySet, protocol.Marshal(Keys{V: 1, Number: 6, Signing: [][]byte{{1}}}))), Malformed},
		"of a later version":     {must(root.Sign(KeySet, protocol.Marshal(Keys{V: 2, Number: 6, Signing: [][]byte{a.Public()}}))), Malformed},
	} {
		if got, err := second.Follow(tt.statement); ReasonOf(err) != tt.want || got.Number() != 5 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// TestGolden holds the statements to the vectors beside those of the messages, for other
// implementations: root and signing key are the seeds 01...01 and 02...02. UPDATE=1 writes
// them; a changed vector is a changed protocol.
func TestGolden(t *testing.T) {
	t.Parallel()
	root, key := signer(t, 1), signer(t, 2)
	m := signed(t, key)
	m.KeySet = keySet(t, root, 1, key)
	attached, err := trust(t, root, key).Site(protocol.Marshal(m))
	if err != nil {
		t.Fatal(err)
	}
	revocations, err := key.Revocations(protocol.Revocations{V: 1, Site: "plant", Number: 7, Keys: []protocol.RevokedKey{{Key: make([]byte, 32), EndMillis: 1700000000000}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{
		"statement-revocations": revocations,
		"signed-site-desired":   protocol.Marshal(m), "statement-key-set": m.KeySet, "statement-head": m.Head, "statement-entry": attached.Deployments[0].Signature,
		"statement-entry-detached": m.Deployments[0].Signature, "statement-tombstone": attached.Removals[0].Signature, "statement-purge": attached.Purges[0].Signature,
	} {
		path := filepath.Join("..", "testdata", name+".hex")
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(path, []byte(hex.EncodeToString(got)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil || hex.EncodeToString(got) != strings.TrimSpace(string(want)) {
			t.Errorf("%s: the encoding changed (%v):\n got %x\nwant %s", name, err, got, want)
		}
	}
	if n := len(m.Deployments[0].Signature); n > 110 {
		t.Errorf("a signature takes %d bytes of a message: want at most 110", n)
	}
}

func FuzzSite(f *testing.F) {
	root, key := signer(f, 1), signer(f, 2)
	tr := trust(f, root, key)
	m := signed(f, key)
	message := protocol.Marshal(m)
	f.Add(message)
	f.Add(m.Head)
	f.Add(keySet(f, root, 2, key))
	got, err := tr.Site(message)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(got.Deployments[0].Signature)
	want := protocol.Marshal(got)
	f.Fuzz(func(t *testing.T, b []byte) {
		if next, err := tr.Follow(b); err == nil && next.Number() > 2 {
			t.Fatalf("a key set was made without the root key: %x", b)
		}
		if m, err := tr.Site(b); err == nil && !bytes.Equal(protocol.Marshal(m), want) && !bytes.Equal(m.Head, got.Head) {
			t.Fatalf("a message was made without the key: %x", b)
		}
		for _, err := range []error{second(tr.Entry("plant", b)), second(tr.Tombstone("plant", b)), second(tr.Purge("plant", b)), second(tr.Revocations("plant", b))} {
			if err != nil && protocol.KindOf(err) != protocol.Invalid {
				t.Fatalf("an error of kind %s: %v", protocol.KindOf(err), err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestTooLargeIsNamed checks that an entry which no receiver would accept is not signed, and that
// the error says of which deployment it is: it holds up its whole site.
func TestTooLargeIsNamed(t *testing.T) {
	t.Parallel()
	m := protocol.SiteDesired{V: 1, Site: "s1", Position: protocol.Position{Epoch: 1, Generation: 1}, Deployments: []protocol.SiteEntry{
		{Deployment: "small"}, {Deployment: "large", Placement: protocol.Placement{Constraints: make([]byte, MaxStatement)}},
	}}
	s, err := NewSigner(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Site(&m, nil); err == nil || !strings.Contains(err.Error(), "deployment large: ") || ReasonOf(err) != Malformed {
		t.Errorf("signed: %v", err)
	}
}

// TestRevocations checks which keys may revoke, and that a full list has room.
func TestRevocations(t *testing.T) {
	t.Parallel()
	root, key, other := signer(t, 1), signer(t, 2), signer(t, 3)
	tr := trust(t, root, key)
	m := protocol.Revocations{V: 1, Site: "plant", Number: 7}
	for i := range protocol.MaxRevoked {
		sum := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		m.Keys = append(m.Keys, protocol.RevokedKey{Key: sum[:], EndMillis: 1700000000000})
	}
	sign := func(s *Signer, m protocol.Revocations) []byte {
		statement, err := s.Revocations(m)
		if err != nil {
			t.Fatal(err)
		}
		return statement
	}
	good := sign(key, m)
	if got, err := tr.Revocations("plant", good); err != nil || len(got.Keys) != protocol.MaxRevoked || got.Number != 7 {
		t.Errorf("a full list: %d keys, %v", len(got.Keys), err)
	}
	entry, err := key.Sign(Entry, protocol.Marshal(&m))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-100] ^= 1
	more, none, short := m, m, m
	more.Keys, none.Number, short.Keys = append(more.Keys, more.Keys[0]), 0, []protocol.RevokedKey{{Key: []byte{1}}}
	for _, c := range []struct {
		what      string
		statement []byte
		site      protocol.SiteID
		want      Reason
	}{
		{"nothing", nil, "plant", Unsigned},
		{"another site's", good, "plant2", WrongSite},
		{"of another key", sign(other, m), "plant", UnknownKey},
		{"of the root key", sign(root, m), "plant", UnknownKey},
		{"an entry", entry, "plant", WrongKind},
		{"altered", flipped, "plant", BadSignature},
		{"too many keys", sign(key, more), "plant", Malformed},
		{"without a number", sign(key, none), "plant", Malformed},
		{"of what is no key", sign(key, short), "plant", Malformed},
	} {
		if _, err := tr.Revocations(c.site, c.statement); ReasonOf(err) != c.want {
			t.Errorf("%s: %v, want %s", c.what, err, c.want)
		}
	}
	if got, err := UncheckedRevocations("plant", sign(other, m)); err != nil || got.Number != 7 {
		t.Errorf("unchecked: %+v, %v", got, err)
	}
	if _, err := UncheckedRevocations("plant2", good); ReasonOf(err) != WrongSite {
		t.Errorf("unchecked, another site's: %v", err)
	}
}

// succession returns the statement that a root key is followed by another one.
func succession(t testing.TB, root, next *Signer) []byte {
	t.Helper()
	return must(root.Sign(Root, protocol.Marshal(RootStatement{V: 1, Public: next.Public()})))
}

// TestRoots has receivers follow the root key of the fleet: with each change, through two at once, from any of the keys,
// and by nothing that the key before did not sign.
func TestRoots(t *testing.T) {
	t.Parallel()
	a, b, c, key, thief := signer(t, 1), signer(t, 2), signer(t, 3), signer(t, 4), signer(t, 5)
	ab, bc := succession(t, a, b), succession(t, b, c)
	set := func(by *Signer, number uint64, roots ...[]byte) []byte {
		return must(by.Sign(KeySet, protocol.Marshal(Keys{V: 1, Number: number, Signing: [][]byte{key.Public()}, Roots: roots})))
	}
	awake := trust(t, a, key)
	asleep := awake
	var err error
	if awake, err = awake.Follow(set(b, 2, ab)); err != nil || !awake.Root().Equal(b.Public()) || len(awake.Roots()) != 1 {
		t.Fatalf("the second root key: %v", err)
	}
	for name, refused := range map[string][]byte{"the former root key": set(a, 9), "the former one, by its chain": set(thief, 9, succession(t, a, thief))} {
		if _, err := awake.Follow(refused); ReasonOf(err) != UnknownKey {
			t.Errorf("%s: %v", name, err)
		}
	}
	third := set(c, 3, ab, bc)
	for name, receiver := range map[string]Trust{"awake": awake, "asleep": asleep, "given the last root key": {root: c.Public()}, "given the second": {root: b.Public()}} {
		next, err := receiver.Follow(third)
		if err != nil || !next.Root().Equal(c.Public()) || next.Number() != 3 || !next.Trusts(key.Public()) {
			t.Errorf("%s: key set %d, %v", name, next.Number(), err)
		}
		if again, err := (Trust{root: receiver.root}).Follow(next.KeySet()); err != nil || !again.Root().Equal(c.Public()) {
			t.Errorf("%s, after a restart: %v", name, err)
		}
	}
	flipped := bytes.Clone(bc)
	flipped[len(flipped)-1] ^= 1
	long := make([][]byte, MaxRoots+1)
	for i := range long {
		long[i] = ab
	}
	for name, tt := range map[string]struct {
		statement []byte
		want      Reason
	}{
		"without the chain":         {set(c, 3), UnknownKey},
		"with a gap":                {set(c, 3, bc), UnknownKey},
		"in another order":          {set(c, 3, bc, ab), UnknownKey},
		"an altered link":           {set(c, 3, ab, flipped), BadSignature},
		"a link of another kind":    {set(c, 3, must(a.Sign(KeySet, protocol.Marshal(RootStatement{V: 1, Public: c.Public()})))), WrongKind},
		"a link that is none":       {set(c, 3, []byte{1}), Malformed},
		"a short key":               {set(c, 3, must(a.Sign(Root, protocol.Marshal(RootStatement{V: 1, Public: []byte{1}})))), Malformed},
		"a link of a later version": {set(c, 3, must(a.Sign(Root, protocol.Marshal(RootStatement{V: 2, Public: c.Public()})))), Malformed},
		"a link by a signing key":   {set(thief, 3, succession(t, key, thief)), UnknownKey},
		"a chain that is too long":  {set(b, 3, long...), UnknownKey},
		"not by who follows":        {set(thief, 3, ab, bc), UnknownKey},
		"an altered key set":        {append(bytes.Clone(third[:len(third)-1]), third[len(third)-1]^1), BadSignature},
		"an earlier number":         {set(c, 1, ab, bc), Stale},
	} {
		if got, err := asleep.Follow(tt.statement); ReasonOf(err) != tt.want || got.Number() != 1 || !got.Root().Equal(a.Public()) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}
