package protocol

import (
	"bytes"
	"testing"
)

// emptySpec is an encoded DeploymentSpec with so many components of so many containers each, all of
// them empty: each takes a byte.
func emptySpec(components, containers int) []byte {
	head := func(major byte, n int) []byte {
		return []byte{major<<5 | 26, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
	}
	one := append([]byte{0xa1, 0x05}, head(4, containers)...)
	one = append(one, bytes.Repeat([]byte{0xa0}, containers)...)
	b := append([]byte{0xa2, 0x00, 0x01, 0x06}, head(4, components)...)
	return append(b, bytes.Repeat(one, components)...)
}

// A message of many small parts is refused before it fills the memory: without the bound this
// one becomes more than a thousand times as large.
func TestPartsAreBounded(t *testing.T) {
	t.Parallel()
	b := emptySpec(15, 1<<16)
	var spec DeploymentSpec
	err := Unmarshal(b, &spec)
	if KindOf(err) != Invalid {
		t.Errorf("%d bytes of empty containers: %v, want invalid", len(b), err)
	}
	if n := maps(b); n != 1+15+15<<16 {
		t.Errorf("%d maps are counted", n)
	}
}
