package random

import (
	"bytes"
	"testing"
)

func TestSeeded(t *testing.T) {
	t.Parallel()
	one, same, other := Seeded(1), Seeded(1), Seeded(2)
	other.Text("session")
	same.Text("lease") // another use
	first := one.Text("session")
	if got := same.Text("session"); got != first {
		t.Errorf("one seed draws %s and %s", first, got)
	}
	for what, got := range map[string]string{
		"the next draw": one.Text("session"), "another use": one.Text("epoch"), "another seed": other.Text("session"), "the machine": (*Source)(nil).Text("session"),
	} {
		if got == first || len(got) != textLength {
			t.Errorf("%s is %q after %q: want another text of %d characters", what, got, first, textLength)
		}
	}
	if a, b := one.Rand("jitter").Uint64(), same.Rand("jitter").Uint64(); a != b {
		t.Errorf("one seed draws %d and %d", a, b)
	}
	a, b, c := make([]byte, 16), make([]byte, 16), make([]byte, 16)
	one.Fill("bytes", a)
	(*Source)(nil).Fill("bytes", c)
	if same.Fill("bytes", b); !bytes.Equal(a, b) {
		t.Errorf("one seed fills in %x and %x", a, b)
	}
	if same.Fill("bytes", b); bytes.Equal(a, b) {
		t.Errorf("two draws for one use fill in %x", a)
	}
	if bytes.Equal(a, make([]byte, 16)) || bytes.Equal(a, c) {
		t.Errorf("the seed fills in %x, the machine %x", a, c)
	}
	if r := (*Source)(nil).Rand("jitter"); r != nil {
		t.Errorf("the machine's generator is %v: want nil", r)
	}
}
