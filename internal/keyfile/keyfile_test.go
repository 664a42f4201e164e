package keyfile

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/internal/disk"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret, open := filepath.Join(dir, "a.key"), filepath.Join(dir, "a.pub")
	encoded, err := EncodePrivate(private)
	if err == nil {
		err = os.WriteFile(secret, encoded, PrivatePerm)
	}
	if err != nil {
		t.Fatal(err)
	}
	if encoded, err = EncodePublic(public); err == nil {
		err = os.WriteFile(open, encoded, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Private(secret); err != nil || !got.Equal(private) {
		t.Errorf("private key: %v", err)
	}
	if got, err := Public(open); err != nil || !got.Equal(public) {
		t.Errorf("public key: %v", err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	der2, err := x509.MarshalPKIXPublicKey(other.Public())
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"empty": nil, "text": []byte("x"), "other type": pem.EncodeToMemory(&pem.Block{Type: "X"}), "damaged": pem.EncodeToMemory(&pem.Block{Type: privateType}),
		"damaged public": pem.EncodeToMemory(&pem.Block{Type: publicType}), "ECDSA": pem.EncodeToMemory(&pem.Block{Type: privateType, Bytes: der}),
		"public ECDSA": pem.EncodeToMemory(&pem.Block{Type: publicType, Bytes: der2}), "long": make([]byte, maxFile+1),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Private(path); err == nil {
			t.Errorf("%s: read as a private key", name)
		}
		if _, err := Public(path); err == nil {
			t.Errorf("%s: read as a public key", name)
		}
	}
	if err := os.Chmod(secret, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Private(secret); err == nil {
		t.Error("a private key that others may read was taken")
	}
}

// TestFIFOForKey puts a FIFO in the place of a key: it is refused by name, and no reader waits for its other
// end.
func TestFIFOForKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.key")
	if err := syscall.Mkfifo(path, PrivatePerm); err != nil {
		t.Fatal(err)
	}
	_, private := Ensure(path)
	_, public := Public(path)
	for _, err := range []error{private, public} {
		if !errors.Is(err, disk.ErrIrregular) || !strings.Contains(err.Error(), path) {
			t.Errorf("a FIFO as a key: %v", err)
		}
	}
}
