package protocol

import (
	"bytes"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol/items"
)

// emptySpec is an encoded DeploymentSpec with so many components of so many containers each, all of
// them the same item, which takes a byte.
func emptySpec(components, containers int, item byte) []byte {
	head := func(major byte, n int) []byte {
		return []byte{major<<5 | 26, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
	}
	one := append([]byte{0xa1, 0x05}, head(4, containers)...)
	one = append(one, bytes.Repeat([]byte{item}, containers)...)
	b := append([]byte{0xa2, 0x00, 0x01, 0x06}, head(4, components)...)
	return append(b, bytes.Repeat(one, components)...)
}

// A message of many small parts is refused before it fills the memory: without the bound this
// one becomes more than a thousand times as large.
func TestPartsAreBounded(t *testing.T) {
	t.Parallel()
	for name, item := range map[string]byte{"empty maps": 0xa0, "nulls": 0xf6, "undefined": 0xf7, "empty arrays": 0x80, "numbers": 0x00, "empty texts": 0x60} {
		b := emptySpec(15, 1<<16, item)
		var spec DeploymentSpec
		err := Unmarshal(b, &spec)
		if KindOf(err) != Invalid || !strings.Contains(err.Error(), "elements of arrays") {
			t.Errorf("%d bytes of %s: %v, want invalid", len(b), name, err)
		}
		if n := items.Count(b, maxLevels); n != 1+15+15<<16 {
			t.Errorf("%s: %d parts are counted", name, n)
		}
	}
}
