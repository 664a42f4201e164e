package tpm_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/tpmtest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// signs checks that a key signs what its public half confirms.
func signs(t *testing.T, k *tpm.Key) {
	t.Helper()
	digest := sha256.Sum256([]byte("x"))
	signature, err := k.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if public, ok := k.Public().(*ecdsa.PublicKey); !ok || !ecdsa.VerifyASN1(public, digest[:], signature) {
		t.Errorf("the signature of key %v is not right", k.Public())
	}
}

// TestKey makes keys in a TPM, and uses them after it was switched off and by another program, in several goroutines.
func TestKey(t *testing.T) {
	t.Parallel()
	device := tpmtest.Start(t)
	m := tpm.New(device.Path)
	made := make([]*tpm.Key, 5) // more than a TPM has loaded at a time
	for i := range made {
		k, err := m.Make()
		if err != nil {
			t.Fatal(err)
		}
		signs(t, k)
		made[i] = k
	}
	desired := protocol.NodeDesired{V: 1, Node: "n1"}
	if err := sign.Node(made[0], "plant", &desired); err != nil {
		t.Error(err)
	} else if err := sign.CheckNode(made[0].Public(), "plant", protocol.Marshal(&desired)); err != nil {
		t.Error(err)
	}
	digest := sha512.Sum512([]byte("x"))
	if _, err := made[0].Sign(rand.Reader, digest[:], crypto.SHA512); err == nil || !strings.Contains(err.Error(), "want one of SHA-256") {
		t.Errorf("a digest of another kind: %v", err)
	}
	device.Kill() // the connection that is open ends
	device.Again()
	var all sync.WaitGroup
	for _, k := range made {
		all.Go(func() { signs(t, k) })
	}
	all.Wait()
	wrapped, err := made[3].Wrapped()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	other := tpm.New(device.Path)
	k, err := other.Open(wrapped)
	if err != nil {
		t.Fatal(err)
	}
	signs(t, k)
	if written, err := k.Wrapped(); err != nil || !bytes.Equal(written, wrapped) || identity.KeySum(k.Public()) != identity.KeySum(made[3].Public()) {
		t.Errorf("opened is another key: %v", err)
	}
	for i := range wrapped {
		changed := bytes.Clone(wrapped)
		changed[i] ^= 0x40
		if _, err := other.Open(changed); !errors.Is(err, tpm.ErrForeign) {
			t.Fatalf("changed at byte %d: %v", i, err)
		}
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

// TestForeign tries a key of another TPM, or of one that was cleared, and a TPM that is away: only the first says that the
// key is lost.
func TestForeign(t *testing.T) {
	t.Parallel()
	device := tpmtest.Start(t)
	m := tpm.New(device.Path)
	k, err := m.Make()
	if err != nil {
		t.Fatal(err)
	}
	wrapped, err := k.Wrapped()
	if err != nil {
		t.Fatal(err)
	}
	device.Kill()
	digest := sha256.Sum256(nil)
	if _, err := k.Sign(nil, digest[:], crypto.SHA256); err == nil || errors.Is(err, tpm.ErrForeign) {
		t.Errorf("signed by a TPM that is away: %v", err)
	}
	if _, err := m.Open(wrapped); err == nil || errors.Is(err, tpm.ErrForeign) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened by a TPM that is away: %v", err)
	}
	device.Replace()
	device.Again()
	if _, err := m.Open(wrapped); !errors.Is(err, tpm.ErrForeign) {
		t.Errorf("opened by another TPM: %v", err)
	}
	if _, err := k.Sign(nil, digest[:], crypto.SHA256); !errors.Is(err, tpm.ErrForeign) {
		t.Errorf("signed by another TPM: %v", err)
	}
	for name, b := range map[string][]byte{"nothing": nil, "text": []byte("key")} {
		if _, err := m.Open(b); !errors.Is(err, tpm.ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNoTPM says what is wrong where there is no TPM: never that there is no key, in whose place another would be made.
func TestNoTPM(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{filepath.Join(dir, "none"): "has no TPM 2.0", file: file, dir: "TPM: "} {
		_, err := tpm.New(path).Make()
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, want %q in it", path, err, want)
		}
	}
}
