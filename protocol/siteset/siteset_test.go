package siteset_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

func TestSet(t *testing.T) {
	for _, c := range []struct {
		entries []string
		shown   string
		in, out string // sites, separated by spaces
	}{
		{nil, "all sites", "a plant-1", ""},
		{[]string{"b", "*"}, "all sites", "a b plant-1", ""},
		{[]string{"plant-2", "plant-1", "plant-2"}, "plant-1, plant-2", "plant-1 plant-2", "plant plant-11 a"},
		{[]string{"plant-*"}, "plant-*", "plant-1 plant-1-a", "plant plants a-plant-1"},
		{[]string{"p*", "north"}, "north, p*", "p plant north", "northern a"},
	} {
		s, err := siteset.Parse(c.entries)
		if err != nil {
			t.Errorf("%q: %v", c.entries, err)
			continue
		}
		if s.String() != c.shown {
			t.Errorf("%q: shown as %q, want %q", c.entries, s, c.shown)
		}
		for _, site := range strings.Fields(c.in) {
			if !s.Has(protocol.SiteID(site)) {
				t.Errorf("%q: has not %s", c.entries, site)
			}
		}
		for _, site := range strings.Fields(c.out) {
			if s.Has(protocol.SiteID(site)) {
				t.Errorf("%q: has %s", c.entries, site)
			}
		}
		again, err := siteset.Parse(s.Entries())
		if diff := cmp.Diff(s.Entries(), again.Entries()); err != nil || diff != "" || !again.Equal(s) {
			t.Errorf("%q: its entries make another set: %v %s", c.entries, err, diff)
		}
		if s.All() != (len(s.Entries()) == 0) {
			t.Errorf("%q: All is %t", c.entries, s.All())
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, entries := range [][]string{
		{""},
		{"Plant"},
		{"plant-"},
		{"-*"},
		{"-a*"},
		{"pl*nt"},
		{"plant**"},
		{"plant_*"},
		{strings.Repeat("a", 64)},
		{strings.Repeat("a", 64) + "*"},
		numbered("a-%d", siteset.MostIDs+1),
		numbered("a-%d*", siteset.MostBeginnings+1),
	} {
		if s, err := siteset.Parse(entries); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%q: %v, %v; want an error of kind Invalid", entries, s, err)
		}
	}
}

func numbered(form string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf(form, i))
	}
	return out
}

// TestUnion joins sets: it has what they have, without entries that others stand for, and as many as a set may.
func TestUnion(t *testing.T) {
	for want, sets := range map[string][][]string{
		"all sites":               {{"a"}, {"*"}},
		"a, b":                    {{"a"}, {"b", "a"}},
		"a, north, plant*":        {{"plant-*", "a"}, {"plant*", "plant", "plant-1"}, {"north"}},
		"b-0, b-1, b-2, b-3, a-*": {numbered("a-%d", 1000), {"a-*"}, numbered("b-%d", 4), numbered("a-%d*", 64)},
	} {
		var in []siteset.Set
		for _, entries := range sets {
			s, err := siteset.Parse(entries)
			if err != nil {
				t.Fatal(err)
			}
			in = append(in, s)
		}
		got, err := siteset.Union(in...)
		if err != nil || got.String() != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	a, err := siteset.Parse(numbered("a-%d", siteset.MostIDs))
	if err != nil {
		t.Fatal(err)
	}
	b, err := siteset.Parse([]string{"b"})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := siteset.Union(a, b); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("too many: %s, %v", s, err)
	}
}
