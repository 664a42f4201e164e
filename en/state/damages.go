package state

import (
	"slices"
	"sync"
)

// Damages are the files of state that were found damaged since the start, which the LO
// reports. The zero value has none. Its methods may be called concurrently.
type Damages struct {
	mu      sync.Mutex // protects what follows
	files   []string
	changed func() // nil: there is no one to notify yet
}

// Add notes a file, each once.
func (d *Damages) Add(file string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Contains(d.files, file) {
		return
	}
	d.files = append(slices.Clip(d.files), file)
	if d.changed != nil {
		d.changed()
	}
}

// List returns the files in the order in which they were found. The caller must not change it.
func (d *Damages) List() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files
}

// OnChange has changed called from now on when a file is found. It must not wait.
func (d *Damages) OnChange(changed func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed = changed
}
