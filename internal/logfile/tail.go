// Package logfile keeps the end of what a program writes.
package logfile

import (
	"bytes"
	"sync"
)

// A Tail keeps the last Max bytes that are written to it. Its methods may be called
// concurrently.
type Tail struct {
	Max int

	mu  sync.Mutex
	buf []byte
}

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - t.Max; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

// Bytes returns a copy of what is kept.
func (t *Tail) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(t.buf)
}
