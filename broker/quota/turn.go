package quota

import (
	"slices"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
)

// A line is those of an owner that wait: one after another takes what it is about to take, once all that was taken before is the
// owner's share. Those that take little go first, so they do not wait longer for others than the greatest debt.
type line struct {
	serving       *Turn // it is taking what it takes
	little, other []*Turn
}

// first is the next one.
func (l *line) first() *Turn {
	switch {
	case len(l.little) > 0:
		return l.little[0]
	case len(l.other) > 0:
		return l.other[0]
	}
	return nil
}

// A Turn is a place in the line of an owner.
type Turn struct {
	r     *Rates
	owner string
	wake  notify.Signal
}

// Turn takes a place in the line of an owner, for one that takes little, or more. It must be ended.
func (r *Rates) Turn(owner string, little bool) *Turn {
	t := &Turn{r: r, owner: owner, wake: notify.New()}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lines[owner]
	if l == nil {
		l = new(line)
		r.lines[owner] = l
	}
	if little {
		l.little = append(l.little, t)
	} else {
		l.other = append(l.other, t)
	}
	return t
}

// Come reports whether it is its turn. Else it is to be asked again after a while, or when Wake says so.
func (t *Turn) Come(now time.Time) (come bool, retryDelay time.Duration) {
	const never = time.Hour
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	l := t.r.lines[t.owner]
	if l.serving != nil || l.first() != t {
		return false, never
	}
	if owed := t.r.owed(t.owner, now); owed > 0 {
		return false, owed
	}
	l.remove(t)
	l.serving = t
	return true, 0
}

// Wake has something when Come may have another answer.
func (t *Turn) Wake() <-chan struct{} { return t.wake.C() }

// End gives the place to the next one, if Take has not done so. A nil Turn has none.
func (t *Turn) End() {
	if t == nil {
		return
	}
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	l := t.r.lines[t.owner]
	switch {
	case l == nil:
	case l.serving == t:
		t.r.next(t.owner)
	case l.remove(t):
		t.r.look(t.owner)
	}
}

func (l *line) remove(t *Turn) (there bool) {
	for _, list := range []*[]*Turn{&l.little, &l.other} {
		if i := slices.Index(*list, t); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
			return true
		}
	}
	return false
}

// next ends the turn of an owner. r.mu is held.
func (r *Rates) next(owner string) {
	if l := r.lines[owner]; l != nil {
		l.serving = nil
		r.look(owner)
	}
}

// look wakes the next one, and forgets a line without anybody. r.mu is held.
func (r *Rates) look(owner string) {
	l := r.lines[owner]
	first := l.first()
	if first == nil {
		if l.serving == nil {
			delete(r.lines, owner)
		}
		return
	}
	first.wake.Notify()
}
