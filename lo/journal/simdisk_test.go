package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/colonyfleet/colony/lo/journal/ondisk"
)

// errPower is what every operation answers once the power is cut.
var errPower = errors.New("power is off")

// simDisk is a disk that forgets: what was not synced is lost, torn, or kept
// when the power is cut, as a seeded generator decides; so is each change of a
// name that the directory was not synced after, independently of the others.
type simDisk struct {
	mu    sync.Mutex
	rng   *rand.Rand
	names map[string]*simInode // as a running program sees them
	old   map[string]*simInode // as they are durable
	dirty []string             // names that differ, in order of change

	off    bool
	cutAt  int // the operation that cuts the power; 0: none
	ops    int
	cutOn  string // what it was
	locked bool
	space  int64 // bytes that may be added; -1: no limit
	fail   func(op, name string) error
}

// simInode is the content of a file.
type simInode struct {
	live    []byte
	durable []byte
	writes  []simWrite // since the last sync
}

// simWrite is one write, or a truncation where data is nil.
type simWrite struct {
	off  int64
	data []byte
}

func newSimDisk(seed uint64) *simDisk {
	return &simDisk{rng: rand.New(rand.NewPCG(seed, 7)), names: map[string]*simInode{}, old: map[string]*simInode{}, space: -1}
}

// op counts an operation that changes the disk, and fails when the power is off.
func (d *simDisk) op(label, name string) error {
	if d.off {
		return errPower
	}
	d.ops++
	if d.cutAt > 0 && d.ops >= d.cutAt {
		d.off, d.cutOn = true, label+" "+name
		return errPower
	}
	if d.fail != nil {
		return d.fail(label, name)
	}
	return nil
}

// restart gives the disk as it is found after a power cut, or, with only the
// process ended, as it was.
func (d *simDisk) restart(power bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off, d.cutAt, d.ops, d.locked = false, 0, 0, false
	if !power {
		return
	}
	for _, n := range d.dirty {
		if d.rng.IntN(2) == 0 {
			continue // the change did not get there
		}
		if ino, ok := d.names[n]; ok {
			d.old[n] = ino
		} else {
			delete(d.old, n)
		}
	}
	d.dirty = nil
	d.names = map[string]*simInode{}
	for n, ino := range d.old {
		ino.crash(d.rng)
		d.names[n] = ino
	}
}

// crash applies a random part of what was not synced, the last piece torn.
func (i *simInode) crash(rng *rand.Rand) {
	got := slices.Clone(i.durable)
	for _, w := range i.writes {
		switch rng.IntN(3) {
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

func (w simWrite) apply(b []byte, n int) []byte {
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

func (d *simDisk) Open(name string, flag int) (ondisk.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return nil, errPower
	}
	ino, ok := d.names[name]
	if !ok {
		if flag&os.O_CREATE == 0 {
			return nil, fs.ErrNotExist
		}
		if err := d.op("create", name); err != nil {
			return nil, err
		}
		ino = &simInode{}
		d.names[name] = ino
		d.dirty = append(d.dirty, name)
	}
	f := &simFile{d: d, ino: ino, name: name}
	if flag&os.O_TRUNC != 0 && len(ino.live) > 0 {
		if err := f.truncate(0); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (d *simDisk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op("rename", to); err != nil {
		return err
	}
	d.names[to] = d.names[from]
	delete(d.names, from)
	d.dirty = append(d.dirty, to, from)
	return nil
}

func (d *simDisk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op("remove", name); err != nil {
		return err
	}
	if _, ok := d.names[name]; !ok {
		return fs.ErrNotExist
	}
	delete(d.names, name)
	d.dirty = append(d.dirty, name)
	return nil
}

func (d *simDisk) SyncDir() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op("syncdir", ""); err != nil {
		return err
	}
	for _, n := range d.dirty {
		if ino, ok := d.names[n]; ok {
			d.old[n] = ino
		} else {
			delete(d.old, n)
		}
	}
	d.dirty = nil
	return nil
}

func (d *simDisk) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for n := range d.names {
		names = append(names, n)
	}
	return names, nil
}

func (d *simDisk) Lock() (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.locked {
		return nil, errors.New("locked")
	}
	d.locked = true
	return closerFunc(func() error { d.mu.Lock(); defer d.mu.Unlock(); d.locked = false; return nil }), nil
}

type closerFunc func() error

func (f closerFunc) Close() error { return f() }

type simFile struct {
	d    *simDisk
	ino  *simInode
	name string
}

func (f *simFile) ReadAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.off {
		return 0, errPower
	}
	if off >= int64(len(f.ino.live)) {
		return 0, io.EOF
	}
	n := copy(p, f.ino.live[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *simFile) WriteAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	data := slices.Clone(p)
	if err := f.d.op("write", f.name); err != nil {
		if f.d.off && f.d.cutAt == f.d.ops { // a part may have got into the cache
			f.ino.writes = append(f.ino.writes, simWrite{off, data[:f.d.rng.IntN(len(data)+1)]})
		}
		return 0, err
	}
	grow := off + int64(len(data)) - int64(len(f.ino.live))
	if f.d.space >= 0 && grow > f.d.space {
		n := int(int64(len(data)) - grow + f.d.space) // what still fits is written
		f.put(simWrite{off, data[:max(n, 0)]})
		f.d.space = 0
		return max(n, 0), syscall.ENOSPC
	}
	if f.d.space >= 0 {
		f.d.space -= max(grow, 0)
	}
	f.put(simWrite{off, data})
	return len(p), nil
}

func (f *simFile) put(w simWrite) {
	f.ino.live = w.apply(f.ino.live, len(w.data))
	f.ino.writes = append(f.ino.writes, w)
}

func (f *simFile) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return f.truncate(size)
}

func (f *simFile) truncate(size int64) error {
	if err := f.d.op("truncate", f.name); err != nil {
		return err
	}
	f.put(simWrite{off: size})
	return nil
}

func (f *simFile) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.ino.live)), nil
}

func (f *simFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.op("sync", f.name); err != nil {
		return err
	}
	f.ino.durable, f.ino.writes = slices.Clone(f.ino.live), nil
	return nil
}

func (f *simFile) Close() error { return nil }

// String lists the files and their sizes.
func (d *simDisk) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := ""
	for n, i := range d.names {
		s += fmt.Sprintf("%s:%d ", n, len(i.live))
	}
	return s
}
