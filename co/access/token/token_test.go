package token

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/colonyfleet/colony/co/access"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token.key")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the key's file: %v, %v", info, err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	good, err := access.NewToken(access.Request{Name: "ann", Role: "admin", Life: time.Hour}, "console", now)
	if err != nil {
		t.Fatal(err)
	}
	text, err := s.Text(good)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := again.Read(text); err != nil || id != good.ID {
		t.Errorf("read: %q, %v", id, err)
	}

	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ended, early := good, good
	ended.CreatedAt, ended.Expires = now.Add(-3*time.Hour), now.Add(-2*time.Hour)
	early.CreatedAt = now.Add(time.Hour)
	claims := func(change func(*jwt.RegisteredClaims)) jwt.RegisteredClaims {
		c := jwt.RegisteredClaims{Issuer: issuer, Audience: jwt.ClaimStrings{audience}, ID: "id1", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour))}
		change(&c)
		return c
	}
	signed := func(m jwt.SigningMethod, key any, c jwt.Claims) string {
		t.Helper()
		text, err := jwt.NewWithClaims(m, c).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	of := func(s *Signer, v access.Token) string {
		t.Helper()
		text, err := s.Text(v)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	parts := strings.Split(text, ".")
	public := s.key.Public().(ed25519.PublicKey)
	for name, tt := range map[string]struct {
		text string
		want error
	}{
		"empty":                    {"", ErrForeign},
		"no token":                 {"hello", ErrForeign},
		"ended":                    {of(s, ended), ErrExpired},
		"of the future":            {of(s, early), ErrEarly},
		"another key":              {of(New(other), good), ErrForeign},
		"ended, other key":         {of(New(other), ended), ErrForeign},
		"none":                     {signed(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims(func(*jwt.RegisteredClaims) {})), ErrForeign},
		"HMAC with the public key": {signed(jwt.SigningMethodHS256, []byte(public), claims(func(*jwt.RegisteredClaims) {})), ErrForeign},
		"other issuer":             {signed(jwt.SigningMethodEdDSA, s.key, claims(func(c *jwt.RegisteredClaims) { c.Issuer = "colony2" })), ErrForeign},
		"other audience":           {signed(jwt.SigningMethodEdDSA, s.key, claims(func(c *jwt.RegisteredClaims) { c.Audience = jwt.ClaimStrings{"x"} })), ErrForeign},
		"without end":              {signed(jwt.SigningMethodEdDSA, s.key, claims(func(c *jwt.RegisteredClaims) { c.ExpiresAt = nil })), ErrForeign},
		"without id":               {signed(jwt.SigningMethodEdDSA, s.key, claims(func(c *jwt.RegisteredClaims) { c.ID = "" })), ErrForeign},
		"changed claims":           {parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"colony","aud":["colony-api"],"jti":"id2","exp":99999999999}`)) + "." + parts[2], ErrForeign},
		"cut":                      {text[:len(text)-4], ErrForeign},
		"two of them":              {text + "." + text, ErrForeign},
	} {
		if id, err := s.Read(tt.text); !errors.Is(err, tt.want) || id != "" {
			t.Errorf("%s: %q, %v; want %v", name, id, err, tt.want)
		}
	}
}

// TestOwner has root make the key below the state directory of a CO that runs as another user.
func TestOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("the tests run as root")
	}
	const user = 65534
	state := t.TempDir()
	if err := os.Chown(state, user, user); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(state, "access", "token.key")
	if _, err := Open(path); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{filepath.Dir(path), path, path + ".lock"} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != user {
			t.Errorf("%s belongs to %d, want %d", p, owner, user)
		}
	}
}
