package storage

import "sync"

// Writers are the uploads to which requests of this program write, each one at most. The
// zero value is ready; its methods may be called concurrently.
type Writers struct {
	mu   sync.Mutex // protects what follows
	busy map[string]bool
}

// Enter makes a request the only one of this program that writes to an upload, until it
// calls leave; or it fails with ErrBusy.
func (w *Writers) Enter(id string) (leave func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy[id] {
		return nil, ErrBusy
	}
	if w.busy == nil {
		w.busy = map[string]bool{}
	}
	w.busy[id] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.busy, id)
	}, nil
}

// Mark sets Busy of those that are.
func (w *Writers) Mark(list []Info) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range list {
		list[i].Busy = w.busy[list[i].Name]
	}
}
