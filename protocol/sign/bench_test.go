package sign

import (
	"fmt"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/protocol"
)

// BenchmarkEntry measures what one entry costs: at the CO to sign, at a node to check.
func BenchmarkEntry(b *testing.B) {
	root, key := signer(b, 1), signer(b, 2)
	tr := trust(b, root, key)
	e := site().Deployments[1]
	payload := protocol.Marshal(EntryStatement{"plant", e})
	statement, err := key.Sign(Entry, payload)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("sign", func(b *testing.B) {
		for b.Loop() {
			if _, err := key.detached(Entry, payload); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if _, err := tr.Entry("plant", statement); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkWhole measures what the signatures of a desired state cost: at the CO to sign all of it, at the
// LO to check it, and in bytes of the message.
func BenchmarkWhole(b *testing.B) {
	root, key := signer(b, 1), signer(b, 2)
	tr := trust(b, root, key)
	for _, n := range []int{1, 20} {
		m := protocol.SiteDesired{V: 1, Site: "plant", Position: protocol.Position{Epoch: 1, Generation: 9}}
		for i := range n {
			e := site().Deployments[1]
			e.Deployment = protocol.DeploymentName(fmt.Sprint("d", i))
			m.Deployments = append(m.Deployments, e)
		}
		plain := len(protocol.Marshal(&m))
		signed := m
		if err := key.Site(&signed, nil); err != nil {
			b.Fatal(err)
		}
		signed.KeySet = keySet(b, root, 1, key)
		message := protocol.Marshal(&signed)
		added := float64(len(message) - plain)
		b.Run(fmt.Sprintf("%d deployments/sign", n), func(b *testing.B) {
			for b.Loop() {
				one := m
				if err := key.Site(&one, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(added, "added-B")
		})
		b.Run(fmt.Sprintf("%d deployments/check", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := tr.Site(message); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkNode measures what the LO's own signature of a desired state of a node with 20 deployments costs: at the LO to sign it,
// at the node to check it, without the certificate, and in bytes, with that.
func BenchmarkNode(b *testing.B) {
	root := identitytest.Root(b, time.Now())
	lo := identitytest.Issue(b, root, root, identity.OfLO("plant"), time.Now())
	m := nodeDesired()
	for range 20 {
		m.Assignments = append(m.Assignments, protocol.Assignment{Deployment: "web", Digest: protocol.DigestOf(nil), Spec: make([]byte, 1500), Signature: make([]byte, 220), Attempt: 1})
	}
	m.Certificates = nil
	plain := len(protocol.Marshal(&m))
	m.Certificates = lo.Raw()
	b.Run("sign", func(b *testing.B) {
		for b.Loop() {
			if err := Node(lo.Key, "plant", &m); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(protocol.Marshal(&m))-plain), "added-B")
	})
	message := protocol.Marshal(&m)
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if err := CheckNode(lo.Key.Public(), "plant", message); err != nil {
				b.Fatal(err)
			}
		}
	})
}
