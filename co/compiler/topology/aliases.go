package topology

import (
	"maps"
	"slices"

	"github.com/compose-spec/compose-go/v2/types"
)

// A Stray is an alias that reaches further than Compose has it: there it belongs to one
// network, here a service answers to it on all of its networks.
type Stray struct {
	Service, Network, Alias string
	// Client is a service that finds Service under the alias, and would not with Compose.
	Client string
	// Instead is the service that Client means by the alias; empty where it means none.
	Instead string
}

// Strays returns the aliases that a service finds on a network it is not on, sorted by
// service, network and alias, each with one client: one that means another service, if
// there is any. Separate says that the networks are kept apart.
func Strays(services types.Services, attached map[string]map[string]bool, separate bool) []Stray {
	holders := map[string]map[string][]string{} // networks by alias and service
	for _, name := range slices.Sorted(maps.Keys(attached)) {
		for _, network := range slices.Sorted(maps.Keys(attached[name])) {
			if n := services[name].Networks[network]; n != nil {
				for _, alias := range n.Aliases {
					if holders[alias] == nil {
						holders[alias] = map[string][]string{}
					}
					holders[alias][name] = append(holders[alias][name], network)
				}
			}
		}
	}
	found := map[Stray]Stray{} // by what they have without a client
	for _, client := range slices.Sorted(maps.Keys(attached)) {
		for _, alias := range slices.Sorted(maps.Keys(holders)) {
			meant, others := split(attached, holders[alias], client, separate)
			for _, other := range others {
				at := Stray{Service: other, Network: holders[alias][other][0], Alias: alias}
				if known, ok := found[at]; ok && (known.Instead != "" || len(meant) == 0) {
					continue
				}
				stray := at
				if stray.Client = client; len(meant) > 0 {
					stray.Instead = meant[0]
				}
				found[at] = stray
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Stray) int {
		return slices.Compare([]string{a.Service, a.Network, a.Alias}, []string{b.Service, b.Network, b.Alias})
	})
}

// split returns the holders of an alias that a client finds in Compose, and those that it
// finds here beside them.
func split(attached map[string]map[string]bool, holders map[string][]string, client string, separate bool) (meant, others []string) {
	for _, holder := range slices.Sorted(maps.Keys(holders)) {
		on := func(network string) bool { return attached[client][network] }
		switch {
		case slices.ContainsFunc(holders[holder], on):
			meant = append(meant, holder)
		case !separate || slices.ContainsFunc(slices.Collect(maps.Keys(attached[holder])), on):
			others = append(others, holder)
		}
	}
	return meant, others
}
