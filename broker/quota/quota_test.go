package quota

import "testing"

func TestLedger(t *testing.T) {
	t.Parallel()
	l := New(Limits{All: 10, PerOwner: 6})
	for _, step := range []struct {
		owner string
		n     int64
		which string // "": there is room
	}{
		{"a", 6, ""}, {"a", 1, "a"}, {"b", 3, ""}, {"b", 2, "all clients"}, {"", 1, ""}, {"", 1, "all clients"},
	} {
		if ok, which := l.Take(step.owner, step.n); ok != (step.which == "") || which != step.which {
			t.Errorf("%+v: %v, %q", step, ok, which)
		}
	}
	l.Add("a", 100) // what was stored before the limit was lowered
	l.Add("a", -106)
	l.Add("b", -3)
	l.Add("", -1)
	if l.Bytes() != 0 || len(l.owners) != 0 {
		t.Errorf("%d bytes of %v are left", l.Bytes(), l.owners)
	}
	if ok, _ := l.Take("a", 6); !ok {
		t.Error("there is no room after all was given back")
	}
}
