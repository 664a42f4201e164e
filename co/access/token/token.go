// Package token makes and reads the tokens of people and programs: JSON Web Tokens (RFC 7519), signed
// with Ed25519 (RFC 8037). What a token allows is not in it, but in the CO's record of it.
package token

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/internal/keyfile"
)

const (
	issuer   = "colony"
	audience = "colony-api"
	// leeway is by how much the clocks of two replicas may differ.
	leeway = time.Minute
)

// A Signer makes tokens and reads them. It may be used concurrently.
type Signer struct {
	key    ed25519.PrivateKey
	id     string
	parser *jwt.Parser
}

// Open reads the key in a file, and makes one where there is none. All replicas of a CO have the same.
func Open(path string) (*Signer, error) {
	key, err := keyfile.Ensure(path)
	if err != nil {
		return nil, fmt.Errorf("key of tokens: %w", err)
	}
	return New(key), nil
}

// New returns a signer with a key.
func New(key ed25519.PrivateKey) *Signer {
	return &Signer{key, thumbprint(key), jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithIssuer(issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(leeway), jwt.WithStrictDecoding(),
	)}
}

// thumbprint names the public half of a key (RFC 7638, with the members of RFC 8037, section 2).
func thumbprint(key ed25519.PrivateKey) string {
	public := base64.RawURLEncoding.EncodeToString(key.Public().(ed25519.PublicKey)) //nolint:forcetypeassert // by its documentation
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + public + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// KeyID is the thumbprint of the key (RFC 7638).
func (s *Signer) KeyID() string { return s.id }

// Text returns the text of a token.
func (s *Signer) Text(t access.Token) (string, error) {
	unsigned := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.RegisteredClaims{
		Issuer: issuer, Audience: jwt.ClaimStrings{audience}, Subject: t.Name, ID: t.ID,
		IssuedAt: jwt.NewNumericDate(t.CreatedAt), ExpiresAt: jwt.NewNumericDate(t.Expires),
	})
	unsigned.Header["kid"] = s.id
	text, err := unsigned.SignedString(s.key)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return text, nil
}

// The reasons for which a token is refused. ErrExpired and ErrEarly are about tokens that this CO made; a
// client must not learn what is wrong with other texts.
var (
	ErrExpired = errors.New("the token has ended")
	ErrEarly   = errors.New("the token does not count yet: the clock of the machine that made it is ahead")
	ErrForeign = errors.New("the token is not one of this Colony")
)

// Read returns the id of a token that this CO signed and that has not ended.
func (s *Signer) Read(text string) (id string, err error) {
	var c jwt.RegisteredClaims
	_, err = s.parser.ParseWithClaims(text, &c, func(*jwt.Token) (any, error) { return s.key.Public(), nil })
	switch {
	case err == nil && c.ID != "":
		return c.ID, nil
	// The signature is judged before the times.
	case errors.Is(err, jwt.ErrTokenExpired):
		return "", ErrExpired
	case errors.Is(err, jwt.ErrTokenUsedBeforeIssued), errors.Is(err, jwt.ErrTokenNotValidYet):
		return "", ErrEarly
	}
	return "", ErrForeign
}
