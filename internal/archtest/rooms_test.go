package archtest

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// rooms are the capabilities that cross tiers, with the tiers that each crosses. A capability has
// one name, that of its folder in each of them.
var rooms = map[string][]string{
	"data":     {"co", "lo"},
	"desired":  {"co", "lo"},
	"identity": {"co", "lo", "en"},
}

// TestRooms checks that a capability has the same folder in each tier that it crosses, and that
// what the tiers share of identity is used there, in what lies around these folders (such as the
// API of identity), and where the tiers are connected, but in no room of another name.
func TestRooms(t *testing.T) {
	t.Parallel()
	tiers := []string{"co", "lo", "en"}
	for name, crossed := range rooms {
		for _, tier := range crossed {
			if _, ok := packages[tier+"/"+name]; !ok && !slices.ContainsFunc(slices.Sorted(maps.Keys(packages)), func(p string) bool { return strings.HasPrefix(p, tier+"/"+name+"/") }) {
				t.Errorf("%s: there is no %s/%s: a capability has one name on all tiers", name, tier, name)
			}
		}
	}
	for _, p := range list(t) {
		dir := rel(p.ImportPath)
		top, _, below := strings.Cut(dir, "/")
		if !slices.Contains(tiers, top) || !below || strings.HasSuffix(dir, "/identity") {
			continue
		}
		for _, i := range p.Imports {
			switch rel(i) {
			case "identity/enrol", "identity/revocation", "identity/store":
				t.Errorf("%s imports %s: that belongs to the room %s/identity", dir, rel(i), top)
			}
		}
	}
}
