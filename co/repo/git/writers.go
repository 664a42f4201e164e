package git

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
)

// maxTogether bounds how many changes are pushed together.
const maxTogether = 64

// A write is a change that is to be committed.
type write struct {
	change Change
	done   chan struct{} // closed when the outcome is there

	// What follows belongs to the goroutine that took it, until done is closed.

	commit string
	err    error
	pushed bool
}

// writers are the changes that wait for their turn.
type writers struct {
	mu      sync.Mutex // protects waiting
	waiting []*write
}

func (l *writers) add(w *write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, w)
}

// withdraw takes a change back, and reports whether no goroutine had taken it.
func (l *writers) withdraw(w *write) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, w)
	if i < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return true
}

// batch returns changes that do not touch each other. The others wait on: what they expect is
// compared with what these have made.
func (l *writers) batch() []*write {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list, rest []*write
	for _, w := range l.waiting {
		if len(list) < maxTogether && !slices.ContainsFunc(list, w.touches) {
			list = append(list, w)
		} else {
			rest = append(rest, w)
		}
	}
	l.waiting = rest
	return list
}

// touches reports whether the change concerns what another one makes: the same path, or one
// above or below it.
func (w *write) touches(other *write) bool {
	for made := range other.change.Files {
		for _, paths := range []iter.Seq[string]{maps.Keys(w.change.Files), maps.Keys(w.change.Expect)} {
			for p := range paths {
				if p == made || strings.HasPrefix(p, made+"/") || strings.HasPrefix(made, p+"/") {
					return true
				}
			}
		}
	}
	return false
}

// unpushed returns those of the changes that are not on the remote.
func unpushed(list []*write) []*write {
	return slices.DeleteFunc(slices.Clone(list), func(w *write) bool { return w.pushed })
}
