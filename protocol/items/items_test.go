package items

import (
	"bytes"
	"testing"
)

func TestCount(t *testing.T) {
	t.Parallel()
	const levels = 16
	for name, c := range map[string]struct {
		b    []byte
		want int
	}{
		"tagged elements":  {[]byte{0x82, 0xc1, 0x00, 0xc1, 0xa0}, 2},
		"maps in a map":    {[]byte{0xa1, 0x01, 0xa1, 0x02, 0x03}, 2},
		"bytes":            {[]byte{0x81, 0x42, 0x80, 0x80}, 1},
		"cut off":          {[]byte{0x9a, 0xff, 0xff, 0xff, 0xff, 0x00}, 0},
		"nested too deep":  {bytes.Repeat([]byte{0x81}, 1000), levels},
		"a wrong argument": {[]byte{0x81, 0x1c, 0x00}, 0},
	} {
		if n := Count(c.b, levels); n != c.want {
			t.Errorf("%s: %d items, want %d", name, n, c.want)
		}
	}
}
