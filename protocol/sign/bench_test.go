package sign

import (
	"testing"

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
