package topictree

import "slices"

// branches are nodes by the level that leads to them. The zero value is none, and takes no memory.
type branches[S comparable] struct {
	few  []branch[S]         // while there are few
	many map[string]*node[S] // else; nil while there are few
}

type branch[S comparable] struct {
	level string
	to    *node[S]
}

// get returns the node of a level, or nil.
func (b *branches[S]) get(level string) *node[S] {
	if b.many != nil {
		return b.many[level]
	}
	for i := range b.few {
		if b.few[i].level == level {
			return b.few[i].to
		}
	}
	return nil
}

// put adds the node of a level, or replaces it. Of the level of the former one nothing is kept.
func (b *branches[S]) put(level string, n *node[S]) {
	if b.many != nil {
		delete(b.many, level) // an assignment alone may keep the level of before
		b.many[level] = n
		return
	}
	at := slices.IndexFunc(b.few, func(one branch[S]) bool { return one.level == level })
	if at >= 0 {
		b.few[at] = branch[S]{level, n}
		return
	}
	if len(b.few) < few {
		b.few = append(b.few, branch[S]{level, n})
		return
	}
	b.many = make(map[string]*node[S], 2*few)
	for _, one := range b.few {
		b.many[one.level] = one.to
	}
	b.many[level], b.few = n, nil
}

// remove removes the node of a level, if there is one.
func (b *branches[S]) remove(level string) {
	if b.many != nil {
		if delete(b.many, level); len(b.many) == 0 {
			b.many = nil
		}
		return
	}
	b.few = slices.DeleteFunc(b.few, func(one branch[S]) bool { return one.level == level })
	if len(b.few) == 0 {
		b.few = nil
	}
}

func (b *branches[S]) len() int { return max(len(b.few), len(b.many)) }

// first returns a level and its node, where there is one.
func (b *branches[S]) first() (level string, n *node[S]) {
	for level, n := range b.many {
		return level, n
	}
	return b.few[0].level, b.few[0].to
}
