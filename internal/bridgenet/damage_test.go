package bridgenet

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/colonyfleet/colony/internal/statefile"
)

// TestDamagedAttachment flips each bit of one attachment: the other one is found, and
// the damage is reported.
func TestDamagedAttachment(t *testing.T) {
	t.Parallel()
	var reported []*statefile.Damage
	n, err := New(Options{Dir: t.TempDir(), Pool: "10.90.0.0/16", Owner: "test", Damaged: func(d *statefile.Damage) { reported = append(reported, d) }})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b"} {
		if err := n.save(n.file(key), Attachment{Network: "web", Name: key, IP: "10.90.1.2"}); err != nil {
			t.Fatal(err)
		}
	}
	path := n.file("a").Path
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(whole) {
		b := slices.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		reported = nil
		all, err := n.All()
		if err != nil || len(all) != 1 || all["b"] == nil || len(reported) != 1 || reported[0].Name != "a" {
			t.Fatal(fmt.Sprintf("bit %d:", bit), all, reported, err)
		}
	}
}
