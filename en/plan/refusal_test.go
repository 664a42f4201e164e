package plan

import (
	"testing"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestRefusal checks that a refused assignment fails unread, leaves what is active, and that what it
// says of the site's position is not taken over: it could bar a removal for ever.
func TestRefusal(t *testing.T) {
	t.Parallel()
	digest := protocol.DigestOf([]byte("1"))
	rec := Record{
		Deployment: "web", State: lifecycle.Installed, Digest: digest, Spec: []byte{1}, Active: digest, ActiveSpec: []byte{1}, Healthy: digest,
		Site: protocol.Position{Epoch: 1, Generation: 2},
	}
	a := protocol.Assignment{Deployment: "web", Digest: protocol.DigestOf([]byte("2")), Spec: []byte("2"), Attempt: 1, Site: protocol.Position{Epoch: 9}}
	refusal := Failure{protocol.SignatureInvalid, "stale: x"}
	got, ok := Next(&rec, Assignment{Deployment: "web", Assignment: &a, Refusal: &refusal})
	r := got.Record
	if !ok || r.State != lifecycle.Failed || r.Code != refusal.Code || r.Message != refusal.Message || r.Spec != nil || r.Digest != a.Digest {
		t.Errorf("%t, %+v", ok, got)
	}
	if r.Active != digest || r.Healthy != digest || r.Site != rec.Site {
		t.Errorf("what was active is not left as it was: %+v", r)
	}
}
