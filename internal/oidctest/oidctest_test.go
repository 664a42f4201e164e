package oidctest

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
)

// TestProvider signs a person and a program in.
func TestProvider(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{Accounts: map[string]Claims{"u1": {"preferred_username": "ann", "groups": []string{"ops"}}}})
	for text, want := range map[string]string{p.IDToken("u1"): `"groups":["ops"]`, p.Robot(): `"aud":"` + Audience + `"`} {
		parts := strings.Split(text, ".")
		if len(parts) != 3 {
			t.Fatalf("%q is no JWT", text)
		}
		claims, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil || !json.Valid(claims) || !strings.Contains(string(claims), want) {
			t.Errorf("%s lacks %s: %v", claims, want, err)
		}
	}
}
