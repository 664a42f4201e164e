// Package siteset names sites by their ids and by how these begin. It is pure.
package siteset

import (
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// most bounds the entries of a Set: each is looked at for each event of a stream.
const most = 64

// A Set is some sites: those with an id that is an entry, and those whose id begins with an entry that ends in *,
// without that. The zero Set is all sites, also those that do not exist yet. A Set is not changed once it is made.
type Set struct {
	ids, beginnings []string
}

// Parse reads the entries of a set; none, or * alone, is all sites. The error is of kind Invalid and names the entry.
func Parse(entries []string) (Set, error) {
	var s Set
	if len(entries) > most {
		return s, protocol.Errorf(protocol.Invalid, "%d sites: want at most %d; a * at the end stands for all that begin so", len(entries), most)
	}
	for _, e := range entries {
		beginning, many := strings.CutSuffix(e, "*")
		if many && beginning == "" {
			return Set{}, nil
		}
		// What an id may begin with is one, once it does not end with -.
		if _, err := protocol.ParseSiteID(strings.TrimRight(beginning, "-")); err != nil || !many && strings.HasSuffix(e, "-") || len(beginning) > 63 {
			return Set{}, protocol.Errorf(protocol.Invalid, "site %q: want the name of a site, or how names begin with a * after it, as plant-*", e)
		}
		if many {
			s.beginnings = append(s.beginnings, beginning)
		} else {
			s.ids = append(s.ids, e)
		}
	}
	slices.Sort(s.ids)
	slices.Sort(s.beginnings)
	s.ids, s.beginnings = slices.Compact(s.ids), slices.Compact(s.beginnings)
	return s, nil
}

// All reports whether each site is in the set.
func (s Set) All() bool { return len(s.ids) == 0 && len(s.beginnings) == 0 }

// Has reports whether a site is in the set.
func (s Set) Has(site protocol.SiteID) bool {
	if s.All() || slices.Contains(s.ids, string(site)) {
		return true
	}
	return slices.ContainsFunc(s.beginnings, func(b string) bool { return strings.HasPrefix(string(site), b) })
}

// IDs returns the ids that are entries, and Beginnings how the other sites of the set begin, both sorted.
func (s Set) IDs() []string { return slices.Clone(s.ids) }

// Beginnings is described at IDs.
func (s Set) Beginnings() []string { return slices.Clone(s.beginnings) }

// Entries are what Parse makes the set of; none is all sites.
func (s Set) Entries() []string {
	out := s.IDs()
	for _, b := range s.beginnings {
		out = append(out, b+"*")
	}
	return out
}

// Equal reports whether two sets have the same entries.
func (s Set) Equal(o Set) bool {
	return slices.Equal(s.ids, o.ids) && slices.Equal(s.beginnings, o.beginnings)
}

// String shows the set to people.
func (s Set) String() string {
	if s.All() {
		return "all sites"
	}
	return strings.Join(s.Entries(), ", ")
}
