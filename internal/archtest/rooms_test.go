package archtest

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// tiers are the folders of the three tiers.
var tiers = []string{"co", "lo", "en"}

// rooms are the capabilities that cross tiers, with the tiers that each crosses. A capability has
// one name, that of its folder in each of them.
var rooms = map[string][]string{
	"api":      {"co", "lo"}, // what the tier serves by HTTP
	"command":  {"co", "lo", "en"},
	"data":     {"co", "lo"},
	"desired":  {"co", "lo"},
	"identity": {"co", "lo", "en"},
	"link":     {"lo", "en"}, // the MQTT connection to the tier above
}

// TestRooms checks that a capability has the same folder in each tier that it crosses, and no other
// folder of these tiers its name, and that what the tiers share of identity is used there, in what lies around these folders (such as the
// API of identity), and where the tiers are connected, but in no room of another name.
func TestRooms(t *testing.T) {
	t.Parallel()
	have := map[string][]string{} // by the name of the folder, the tiers that have it
	for p := range packages {
		tier, rest, below := strings.Cut(p, "/")
		name, _, _ := strings.Cut(rest, "/")
		if below && slices.Contains(tiers, tier) && !slices.Contains(have[name], tier) {
			have[name] = append(have[name], tier)
		}
	}
	for name, crossed := range rooms {
		for _, tier := range crossed {
			if !slices.Contains(have[name], tier) {
				t.Errorf("%s: there is no %s/%s: a capability has one name on all tiers", name, tier, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		slices.Sort(have[name])
		if len(have[name]) > 1 && !slices.Equal(have[name], slices.Sorted(slices.Values(rooms[name]))) {
			t.Errorf("%v have a folder %s, and rooms names %v: if it is one capability, say so there; else give it another name", have[name], name, rooms[name])
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
