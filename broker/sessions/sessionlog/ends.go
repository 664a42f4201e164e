package sessionlog

import (
	"errors"

	"github.com/colonyfleet/colony/internal/atomicfile"
)

// On a full disk what ends messages is written into a segment of its own, at the end of the log. When it has grown, a shorter one
// takes its place that says all that it says; its head names the segment before both. So such records never take more
// than what they come to, however many follow each other.

// ends is the end of the log that the next segment of ends replaces.
type ends struct {
	first   uint32 // its first segment, which has nothing but ends, as what follows it; 0: there is none
	head    []byte // of the segment that replaces it
	current bool   // the current segment is one of ends
}

// headOfEnds marks the head of a segment of ends, behind what each has.
const headOfEnds = 1

// EndsSize is how long the current segment is, if AppendEnds may append to it; else -1.
func (l *Log) EndsSize() int64 {
	if !l.ends.current || l.current == nil || l.current.Broken() {
		return -1
	}
	return l.current.Size()
}

// AppendEnds appends records to the current segment, which is one of ends, and makes them durable.
func (l *Log) AppendEnds(bodies [][]byte) error {
	if err := l.current.Append(bodies...); err != nil {
		return err
	}
	return l.Sync()
}

// RollEnds begins a segment of ends with these records, which are durable when it returns nil. It takes the place of the one
// before it, all of which the records say again.
func (l *Log) RollEnds(bodies [][]byte) error {
	first, head := l.ends.first, l.ends.head
	if first == 0 {
		head = append(l.endCurrent(), headOfEnds)
	}
	if err := l.begin(head, bodies); err != nil {
		return err
	}
	l.ends = ends{first: l.number, head: head, current: true}
	if first == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.sizes {
		if n >= first && n < l.number {
			_ = errors.Join(l.forgetLocked(n), atomicfile.Remove(l.disk, l.segment(n).Path)) // else Open does
		}
	}
	return nil
}

// KeepEnds has what was appended stay until a checkpoint says the same.
func (l *Log) KeepEnds() { l.ends = ends{} }

// dropReplaced removes the segments that a later one of ends replaces, as far as they are there still.
func (l *Log) dropReplaced() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.sizes {
		h, ok := l.head(n)
		if !ok || !h.ends {
			continue
		}
		for old := range l.sizes {
			if old > h.previous && old < n {
				_ = atomicfile.Remove(l.disk, l.segment(old).Path) // it is tried again at the next start
				delete(l.sizes, old)
			}
		}
	}
}

// replaced reports whether a segment of ends has replaced another one.
func (l *Log) replaced(segment uint32) bool {
	for _, n := range l.numbers() {
		if h, ok := l.head(n); ok && h.ends && segment > h.previous && segment < n {
			return true
		}
	}
	return false
}
