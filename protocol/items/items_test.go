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

func TestFirst(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		b    []byte
		want int
	}{
		"nothing": {nil, 0}, "a number": {[]byte{0x01, 0x02}, 1}, "a long number": {[]byte{0x19, 1, 2, 3}, 3}, "a text": {[]byte{0x62, 'a', 'b', 0x00}, 3},
		"a map": {[]byte{0xa1, 0x01, 0x82, 0x01, 0x41, 0x00, 0x05}, 6}, "a tag": {[]byte{0xc1, 0x00, 0x00}, 2}, "an empty map": {[]byte{0xa0, 0x01}, 1},
		"cut short": {[]byte{0xa1, 0x01}, 0}, "a text cut short": {[]byte{0x63, 'a'}, 0}, "a length cut short": {[]byte{0x19, 1}, 0}, "of no definite length": {[]byte{0x9f, 0x01, 0xff}, 0},
		"more than there is": {[]byte{0xbb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 0}, "too deep": {bytes.Repeat([]byte{0x81}, 100), 0}, "null": {[]byte{0xf6, 0xf6}, 1},
	} {
		if got := First(tt.b, 16); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", name, got, tt.want)
		}
	}
}
