package access_test

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	"github.com/colonyfleet/colony/broker/access"
)

// TestIdentityAsStored reads each kind of identity as it was written, and nothing else.
func TestIdentityAsStored(t *testing.T) {
	t.Parallel()
	for _, id := range []access.Identity{
		{},
		{Name: "site a", Site: "a", Client: "a"},
		{Name: "node a.n", Site: "a", Node: "n", Client: "a.n"},
		{Name: "device press", Client: "press", Device: true},
	} {
		if got := access.DecodeIdentity(id.Encode()); got != id {
			t.Errorf("%+v became %+v", id, got)
		}
	}
	for _, s := range []string{"", "a", "a\x00b\x00c", "a\x00b\x00c\x00d\x00e", "a\x00b\x00c\x00d\x00device\x00"} {
		if got := access.DecodeIdentity(s); got != (access.Identity{}) {
			t.Errorf("%q became %+v", s, got)
		}
	}
}

func TestAccount(t *testing.T) {
	t.Parallel()
	proven := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	id := access.Identity{Name: "n1.plant1"}
	for name, c := range map[string]struct {
		id      access.Identity
		address string
		secure  *tls.ConnectionState
		want    string
	}{
		"anybody":                    {id, "10.0.0.1", nil, "10.0.0.1"},
		"TLS without a certificate":  {id, "10.0.0.1", &tls.ConnectionState{}, "10.0.0.1"},
		"TLS with one":               {id, "10.0.0.1", proven, "n1.plant1"},
		"a device":                   {access.Identity{Name: "press", Device: true}, "10.0.0.1", nil, "press"},
		"a Unix socket":              {id, "", nil, "n1.plant1"},
		"before there is an account": {access.Identity{}, "", nil, ""},
	} {
		if got := access.Account(c.id, c.address, c.secure); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
