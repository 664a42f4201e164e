package access_test

import (
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
