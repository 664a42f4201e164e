// Package bounded collects output of a program up to a limit.
package bounded

import "fmt"

// A Buffer collects up to Limit bytes. Past them it fails the writer or, with Cut, forgets the rest. It is for one goroutine.
type Buffer struct {
	Limit int
	Cut   bool
	b     []byte
}

// Bytes returns what was collected.
func (l *Buffer) Bytes() []byte { return l.b }

// Write adds to what was collected.
func (l *Buffer) Write(p []byte) (int, error) {
	room := l.Limit - len(l.b)
	if len(p) <= room {
		l.b = append(l.b, p...)
		return len(p), nil
	}
	if !l.Cut {
		return 0, fmt.Errorf("output of more than %d bytes", l.Limit)
	}
	l.b = append(l.b, p[:room]...)
	return len(p), nil
}
