package simdisk

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// CutAt cuts the power at the n-th operation from now on that changes the disk; 0: never.
func (d *Disk) CutAt(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cutAt, d.ops = n, 0
}

// Cut cuts the power now.
func (d *Disk) Cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = true
}

// Off says whether the power is cut.
func (d *Disk) Off() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.off
}

// CutOn returns the operation at which CutAt cut the power last, and its path.
func (d *Disk) CutOn() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cutOn
}

// Space leaves room for n more bytes; -1: no limit.
func (d *Disk) Space(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.space = n
}

// Fail has each operation that changes the disk answer what fails returns for it, unless
// that is nil. The operations are create, write, truncate, sync, rename, link, remove,
// chmod, chtimes and syncdir.
func (d *Disk) Fail(fails func(op, path string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = fails
}

// Restart gives the disk as it is found after a power cut, or, where only the process
// ended, as it was. No file is locked.
func (d *Disk) Restart(power bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off, d.cutAt, d.ops = false, 0, 0
	clear(d.locks)
	if !power {
		return
	}
	for _, n := range d.dirty {
		if d.rng.IntN(2) == 0 {
			continue // the change did not get there
		}
		d.settle(n)
	}
	d.dirty = nil
	d.names = map[string]*inode{}
	done := map[*inode]bool{}
	for _, n := range slices.Sorted(maps.Keys(d.old)) {
		i := d.old[n]
		if !done[i] { // a file may have two names
			i.crash(d.rng)
			done[i] = true
		}
		d.names[n] = i
	}
}

// settle makes a name durable.
func (d *Disk) settle(path string) {
	if i, ok := d.names[path]; ok {
		d.old[path] = i
	} else {
		delete(d.old, path)
	}
}

// crash applies a random part of what was not synced, the last piece torn.
func (i *inode) crash(rng *rand.Rand) {
	got := slices.Clone(i.durable)
	for _, w := range i.writes {
		switch rng.IntN(4) {
		case 3: // a sector in the middle is lost
			if w.data != nil {
				from := rng.IntN(len(w.data) + 1)
				to := min(from+sector, len(w.data))
				got = w.apply(got, from)
				rest := write{w.off + int64(to), w.data[to:]}
				got = rest.apply(got, len(rest.data))
			}
		case 0: // lost
		case 1: // whole
			got = w.apply(got, len(w.data))
		case 2: // torn
			if w.data != nil {
				got = w.apply(got, rng.IntN(len(w.data)+1))
			}
		}
	}
	i.live, i.durable, i.writes = got, slices.Clone(got), nil
}

// apply returns b with the first n bytes of w.
func (w write) apply(b []byte, n int) []byte {
	if w.data == nil {
		if int64(len(b)) < w.off {
			return append(b, make([]byte, w.off-int64(len(b)))...)
		}
		return b[:w.off]
	}
	if need := w.off + int64(n); int64(len(b)) < need {
		b = append(b, make([]byte, need-int64(len(b)))...)
	}
	copy(b[w.off:], w.data[:n])
	return b
}
