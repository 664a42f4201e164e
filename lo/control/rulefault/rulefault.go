// Package rulefault remembers why the data rules of a desired state are not in force, for the loop that reports it.
package rulefault

import (
	"sync"

	"github.com/colonyfleet/colony/protocol"
)

// A Fault is why the data rules of a desired state are not wholly in force. Its
// methods may be called concurrently.
type Fault struct {
	mu     sync.Mutex           // protects what follows
	of     protocol.SiteDesired // whose rules are to be in force
	reason string               // "": they are in force, as far as is known
}

// Request notes that the rules of m are to come into force.
func (f *Fault) Request(m protocol.SiteDesired) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of.Position != m.Position {
		f.reason = ""
	}
	f.of = m
}

// Set notes why they did not, and reports whether it is the first reason for them.
func (f *Fault) Set(reason string) (first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first = f.reason == ""
	f.reason = reason
	return first
}

// Get returns the desired state whose rules are to be in force, and why they are not; "": they are, as far as is known.
func (f *Fault) Get() (of protocol.SiteDesired, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of, f.reason
}
