package gate

import (
	"context"

	"github.com/colonyfleet/colony/co/access"
)

// A Provider vouches for people, as an OpenID provider does.
type Provider interface {
	// Verify returns the person of a token; one that may do nothing has no role. It returns false where the text does not
	// claim to be a token of the provider. The error is of kind Denied or Unavailable, and may be shown to the client.
	Verify(ctx context.Context, text string) (p access.Principal, theirs bool, err error)
	// Knows reports whether Verify has accepted a text before.
	Knows(text string) bool
	// Holds reports whether a token that Verify has accepted, and that has not ended, still counts.
	Holds(p access.Principal) bool
}

// endPersons ends the requests whose token the provider's keys do not prove any more, or whose groups of sites are others.
func (g *Gate) endPersons() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for r := range g.persons {
		if !g.o.Provider.Holds(r.shown) || !r.allowed(r.shown, g.groups) {
			r.end(errEnded)
		}
	}
}

// holdPerson has a request end once the provider's keys do not prove its token any more.
func (g *Gate) holdPerson(r *request, cancel func()) (release func()) {
	g.mu.Lock()
	g.persons[r] = true
	counts := r.allowed(r.shown, g.groups)
	g.mu.Unlock()
	if !counts || !g.o.Provider.Holds(r.shown) { // since it was authenticated
		r.end(errEnded)
	}
	return func() {
		g.mu.Lock()
		delete(g.persons, r)
		g.mu.Unlock()
		r.end(nil)
		cancel()
	}
}
