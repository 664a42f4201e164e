// Package siteset names sites by their ids and by how these begin. It is pure.
package siteset

import (
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// Bounds of a Set.
const (
	// MostIDs bounds the entries that are ids.
	MostIDs = 1024
	// MostBeginnings bounds the others: each is compared with the ids of all sites, and looked at for each event of a stream.
	MostBeginnings = 64
)

// A Set is some sites: those with an id that is an entry, and those whose id begins with an entry that ends in *,
// without that. The zero Set is all sites, also those that do not exist yet. A Set is not changed once it is made.
type Set struct {
	ids, beginnings []string
}

// Parse reads the entries of a set; none, or * alone, is all sites. The error is of kind Invalid and names the entry.
func Parse(entries []string) (Set, error) {
	var s Set
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
	return s.bounded()
}

// Union returns the sites of all sets, without entries that others stand for. The error is of kind Invalid.
func Union(sets ...Set) (Set, error) {
	var begin []string
	for _, o := range sets {
		if o.All() {
			return Set{}, nil
		}
		begin = append(begin, o.beginnings...)
	}
	var s Set
	for _, b := range begin {
		if !slices.ContainsFunc(begin, func(o string) bool { return o != b && strings.HasPrefix(b, o) }) {
			s.beginnings = append(s.beginnings, b)
		}
	}
	for _, o := range sets {
		for _, id := range o.ids {
			if !slices.ContainsFunc(s.beginnings, func(b string) bool { return strings.HasPrefix(id, b) }) {
				s.ids = append(s.ids, id)
			}
		}
	}
	return s.bounded()
}

// bounded returns s in order, each entry once.
func (s Set) bounded() (Set, error) {
	slices.Sort(s.ids)
	slices.Sort(s.beginnings)
	s.ids, s.beginnings = slices.Compact(s.ids), slices.Compact(s.beginnings)
	if len(s.ids) > MostIDs {
		return Set{}, protocol.Errorf(protocol.Invalid, "%d sites: want at most %d; a * at the end stands for all that begin so", len(s.ids), MostIDs)
	}
	if len(s.beginnings) > MostBeginnings {
		return Set{}, protocol.Errorf(protocol.Invalid, "%d beginnings of the names of sites: want at most %d", len(s.beginnings), MostBeginnings)
	}
	return s, nil
}

// All reports whether each site is in the set.
func (s Set) All() bool { return len(s.ids) == 0 && len(s.beginnings) == 0 }

// Has reports whether a site is in the set.
func (s Set) Has(site protocol.SiteID) bool {
	if s.All() {
		return true
	}
	if _, has := slices.BinarySearch(s.ids, string(site)); has {
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
