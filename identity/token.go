package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

const (
	tokenIDSize     = 8
	tokenSecretSize = 16
)

// A Token lets a machine enrol. It is given to the machine by a person, is
// id.secret.fingerprint in text, and is kept nowhere else: the issuer has the id and the
// SHA-256 of the secret.
type Token struct {
	// ID names the token: 16 hex digits.
	ID string
	// Secret is 16 random bytes.
	Secret []byte
	// Root is the SHA-256 of the public key of the fleet's root, see KeySum. The machine
	// compares it before it proves the secret.
	Root [sha256.Size]byte
}

// NewToken makes a token of a fleet.
func NewToken(root *x509.Certificate) Token {
	id, secret := make([]byte, tokenIDSize), make([]byte, tokenSecretSize)
	_, _ = rand.Read(id) // never fails
	_, _ = rand.Read(secret)
	return Token{ID: hex.EncodeToString(id), Secret: secret, Root: KeySum(root.PublicKey)}
}

var tokenText = base64.RawURLEncoding

// String is the token as a person passes it on. It contains the secret.
func (t Token) String() string {
	return t.ID + "." + tokenText.EncodeToString(t.Secret) + "." + tokenText.EncodeToString(t.Root[:])
}

// Hash is what the issuer keeps of the secret.
func (t Token) Hash() []byte { return HashSecret(t.Secret) }

// HashSecret is the SHA-256 of a secret. It is random and as long as a key, so a slow hash
// would add nothing.
func HashSecret(secret []byte) []byte {
	sum := sha256.Sum256(secret)
	return sum[:]
}

// SecretMatches reports, in constant time, whether a secret is that of a hash.
func SecretMatches(hash, secret []byte) bool {
	return len(hash) == sha256.Size && subtle.ConstantTimeCompare(hash, HashSecret(secret)) == 1
}

// WellFormed reports whether there can be a token with this id and this secret.
func WellFormed(id string, secret []byte) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == tokenIDSize && id == hex.EncodeToString(raw) && len(secret) == tokenSecretSize
}

// ParseToken reads a token. The error does not repeat it.
func ParseToken(text string) (Token, error) {
	bad := protocol.Errorf(protocol.Invalid, "join token: want id.secret.fingerprint, as colony site add and colony node token print it")
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 3 {
		return Token{}, bad
	}
	secret, err := tokenText.DecodeString(parts[1])
	if err != nil || !WellFormed(parts[0], secret) {
		return Token{}, bad
	}
	t := Token{ID: parts[0], Secret: secret}
	sum, err := tokenText.DecodeString(parts[2])
	if err != nil || len(sum) != sha256.Size {
		return Token{}, bad
	}
	copy(t.Root[:], sum)
	return t, nil
}

// Pin returns the root in a chain that a server presents: the certificate whose key has the
// fingerprint of the token.
func (t Token) Pin(chain []*x509.Certificate) (*x509.Certificate, error) {
	return Fingerprint(t.Root).Pin(chain)
}

// A Fingerprint is the SHA-256 of the public key of a fleet's root, see KeySum. It is no secret.
type Fingerprint [sha256.Size]byte

// ParseFingerprint reads a fingerprint: 64 hex digits.
func ParseFingerprint(text string) (f Fingerprint, err error) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(f) {
		return f, protocol.Errorf(protocol.Invalid, "fingerprint %.80q: want the 64 hex digits that colony ca init prints", text)
	}
	return Fingerprint(raw), nil
}

// Pin returns the root in a chain that a server presents: the certificate whose key has the fingerprint.
func (f Fingerprint) Pin(chain []*x509.Certificate) (*x509.Certificate, error) {
	for _, c := range chain {
		if KeySum(c.PublicKey) == f && checkRoot(c) == nil {
			return c, nil
		}
	}
	return nil, protocol.Errorf(protocol.Denied, "the server is not of the fleet of this machine: no certificate that it presents has the fingerprint of the join token, or of identity.root; it may be another fleet's, or an attacker in between")
}
