package protocol

import (
	"bytes"
	"strings"
	"testing"
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
		if n := parts(b); n != 1+15+15<<16 {
			t.Errorf("%s: %d parts are counted", name, n)
		}
	}
	for name, c := range map[string]struct {
		b    []byte
		want int
	}{
		"tagged elements":  {[]byte{0x82, 0xc1, 0x00, 0xc1, 0xa0}, 2},
		"maps in a map":    {[]byte{0xa1, 0x01, 0xa1, 0x02, 0x03}, 2},
		"bytes":            {[]byte{0x81, 0x42, 0x80, 0x80}, 1},
		"cut off":          {[]byte{0x9a, 0xff, 0xff, 0xff, 0xff, 0x00}, 0},
		"nested too deep":  {bytes.Repeat([]byte{0x81}, 1000), maxLevels},
		"a wrong argument": {[]byte{0x81, 0x1c, 0x00}, 0},
	} {
		if n := parts(c.b); n != c.want {
			t.Errorf("%s: %d parts, want %d", name, n, c.want)
		}
	}
}
