package plan

import (
	"strings"
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
		Deployment: "web", State: lifecycle.Installed, Digest: digest, Spec: []byte{1}, Active: digest, ActiveSpec: []byte{1}, Fallback: Fallback{Healthy: digest},
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

// TestRefusedIsForgotten checks that a record goes which is only of a refusal, once the LO knows of
// it and assigns it no more, and that one of a deployment that was here stays.
func TestRefusedIsForgotten(t *testing.T) {
	t.Parallel()
	a := protocol.Assignment{Deployment: "web", Digest: protocol.DigestOf([]byte("2")), Spec: []byte("2"), Attempt: 1, Site: protocol.Position{Epoch: 9}}
	refused := Assignment{Deployment: "web", Assignment: &a, Refusal: &Failure{protocol.SignatureInvalid, "stale: x"}}
	at := protocol.Position{Epoch: 1, Generation: 2}
	for name, tt := range map[string]struct {
		before *Record
		want   bool
	}{
		"never here":      {nil, true},
		"removed":         {&Record{Deployment: "web", State: lifecycle.Deleted, Digest: "1", Site: at}, true},
		"installing":      {&Record{Deployment: "web", State: lifecycle.Installing, Digest: "1", Spec: []byte("1"), Site: at}, false},
		"installed":       {&Record{Deployment: "web", State: lifecycle.Installed, Digest: "1", Spec: []byte("1"), Active: "1", Fallback: Fallback{Healthy: "1"}, Site: at}, false},
		"being removed":   {&Record{Deployment: "web", State: lifecycle.Deleting, Digest: "1", Spec: []byte("1"), Site: at}, false},
		"adopted earlier": {&Record{Deployment: "web", State: lifecycle.Installed, Digest: "1", Spec: []byte("1"), Active: "1", Fallback: Fallback{Healthy: "1"}}, false},
	} {
		begun, ok := Next(tt.before, refused)
		if !ok || begun.Record.State != lifecycle.Failed {
			t.Fatalf("%s: %t, %+v", name, ok, begun)
		}
		rec := begun.Record
		got, ok := Next(&rec, Assignment{Deployment: "web"})
		if ok != tt.want || ok && got.Kind != Forget {
			t.Errorf("%s: forgotten %t, want %t", name, ok, tt.want)
		}
		rec.Reports = []protocol.DeploymentStatus{{}}
		if _, ok := Next(&rec, Assignment{Deployment: "web"}); ok {
			t.Errorf("%s: forgotten before the LO knows", name)
		}
		if _, ok := Next(&rec, refused); ok {
			t.Errorf("%s: refused once more", name)
		}
	}
}

// TestRefusalOfWhatIsUp refuses the version that an update is to replace: it stays up, as it was before.
func TestRefusalOfWhatIsUp(t *testing.T) {
	t.Parallel()
	spec := func(version string) []byte {
		return protocol.Marshal(&protocol.DeploymentSpec{V: 1, Deployment: "web", App: "web", AppVersion: version, Components: []protocol.Component{{
			Name: "web", Containers: []protocol.Container{{Name: "web", Image: "registry.colony/web@sha256:" + strings.Repeat(version, 64)}},
		}}})
	}
	up := spec("1")
	digest := protocol.DigestOf(up)
	rec := Record{
		Deployment: "web", State: lifecycle.Updating, Digest: "2", Spec: spec("2"), Active: digest, ActiveSpec: up, Fallback: Fallback{Healthy: digest, HealthyContainers: identitiesOf(up)},
	}
	a := protocol.Assignment{Deployment: "web", Digest: digest, Spec: up, Attempt: 2}
	got, ok := Next(&rec, Assignment{Deployment: "web", Assignment: &a, Refusal: &Failure{protocol.SignatureInvalid, "stale: x"}})
	r := got.Record
	if !ok || r.State != lifecycle.Failed || r.Active != digest {
		t.Fatalf("%t, %+v", ok, r)
	}
	if stays := r.StaysUp(); len(stays.Components) == 0 {
		t.Error("what is up is to end")
	}
	if m := r.Report(lifecycle.Updating); m.Running != digest {
		t.Errorf("the node says that it keeps %q up", m.Running)
	}
}
