// Package simdisk is a disk in memory that forgets: when its power is cut, what was not
// synced is lost, torn or kept, as a seeded generator decides. It fills up, and fails
// operations, where it is asked to.
package simdisk

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/filelock"
)

// sector is how much of a write a power cut loses, in bytes: less than a disk's, so that
// records that are written together are lost independently.
const sector = 64

// ErrPower is what every operation answers once the power is cut.
var ErrPower = errors.New("power is off")

// A Disk is a disk.FS. Each change of a name of which its directory was not synced
// afterwards is lost or kept independently of the others; directories themselves are
// durable at once. Its methods may be called concurrently.
type Disk struct {
	mu    sync.Mutex
	rng   *rand.Rand
	dirs  map[string]bool
	names map[string]*inode // as a running program sees them
	old   map[string]*inode // as they are durable
	dirty []string          // names that differ, in order of change
	locks map[string]bool

	off   bool
	cutAt int // the operation that cuts the power; 0: none
	ops   int
	cutOn string // what it was
	space int64  // bytes that may be added; -1: no limit
	fail  func(op, path string) error
}

var _ disk.FS = (*Disk)(nil)

// inode is the content of a file.
type inode struct {
	perm    fs.FileMode
	changed time.Time
	live    []byte
	durable []byte
	writes  []write // since the last sync
}

// write is one write, or a truncation where data is nil.
type write struct {
	off  int64
	data []byte
}

// New returns an empty disk without limit, whose power cuts seed decides.
func New(seed uint64) *Disk {
	return &Disk{
		rng:   rand.New(rand.NewPCG(seed, 7)),
		dirs:  map[string]bool{"/": true, ".": true},
		names: map[string]*inode{}, old: map[string]*inode{}, locks: map[string]bool{}, space: -1,
	}
}

// Edit replaces the content of a file, durably, by what do makes of it: damage.
func (d *Disk) Edit(path string, do func(content []byte) []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, ok := d.names[filepath.Clean(path)]
	if !ok {
		return notExist("edit", path)
	}
	i.live = do(slices.Clone(i.live))
	i.durable, i.writes = slices.Clone(i.live), nil
	return nil
}

// op counts an operation that changes the disk, and fails when the power is off.
func (d *Disk) op(label, path string) error {
	if d.off {
		return ErrPower
	}
	d.ops++
	if d.cutAt > 0 && d.ops >= d.cutAt {
		d.off, d.cutOn = true, label+" "+path
		return ErrPower
	}
	fail := d.fail
	if fail == nil {
		return nil
	}
	d.mu.Unlock() // it may wait for another operation
	defer d.mu.Lock()
	return fail(label, path)
}

func notExist(op, path string) error {
	return &fs.PathError{Op: op, Path: path, Err: fs.ErrNotExist}
}

// Open opens a file, whose directory must exist.
func (d *Disk) Open(path string, flag int, perm fs.FileMode) (disk.File, error) {
	path = filepath.Clean(path)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return nil, ErrPower
	}
	i, ok := d.names[path]
	switch {
	case ok && flag&os.O_EXCL != 0:
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrExist}
	case d.dirs[path]:
		return nil, &fs.PathError{Op: "open", Path: path, Err: disk.ErrIrregular}
	case !ok && (flag&os.O_CREATE == 0 || !d.dirs[filepath.Dir(path)]):
		return nil, notExist("open", path)
	case !ok:
		if err := d.op("create", path); err != nil {
			return nil, err
		}
		i = &inode{perm: perm, changed: time.Now()}
		d.names[path] = i
		d.dirty = append(d.dirty, path)
	}
	f := &file{d: d, ino: i, path: path}
	if flag&os.O_TRUNC != 0 && len(i.live) > 0 {
		if err := f.truncate(0); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Rename puts from in the place of to.
func (d *Disk) Rename(from, to string) error {
	from, to = filepath.Clean(from), filepath.Clean(to)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op("rename", to); err != nil {
		return err
	}
	i, ok := d.names[from]
	if !ok || !d.dirs[filepath.Dir(to)] {
		return notExist("rename", from)
	}
	if to != from {
		d.forget(to)
		d.names[to] = i
		delete(d.names, from)
	}
	d.dirty = append(d.dirty, to, from)
	return nil
}

// Link gives a file a second name.
func (d *Disk) Link(from, to string) error {
	from, to = filepath.Clean(from), filepath.Clean(to)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op("link", to); err != nil {
		return err
	}
	i, ok := d.names[from]
	if !ok || !d.dirs[filepath.Dir(to)] {
		return notExist("link", from)
	}
	if _, ok := d.names[to]; ok {
		return &fs.PathError{Op: "link", Path: to, Err: fs.ErrExist}
	}
	d.names[to] = i
	d.dirty = append(d.dirty, to)
	return nil
}

// Remove removes a file, or a directory that is empty.
func (d *Disk) Remove(path string) error {
	path = filepath.Clean(path)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op("remove", path); err != nil {
		return err
	}
	if d.dirs[path] {
		if len(d.list(path)) > 0 {
			return &fs.PathError{Op: "remove", Path: path, Err: syscall.ENOTEMPTY}
		}
		delete(d.dirs, path)
		return nil
	}
	if _, ok := d.names[path]; !ok {
		return notExist("remove", path)
	}
	d.dirty = append(d.dirty, path)
	d.forget(path)
	return nil
}

// forget takes a name away. The last one of a file frees its room.
func (d *Disk) forget(path string) {
	i, ok := d.names[path]
	delete(d.names, path)
	if !ok || d.space < 0 {
		return
	}
	for _, other := range d.names {
		if other == i {
			return
		}
	}
	d.space += int64(len(i.live))
}

// MkdirAll makes a directory and those above it, durably.
func (d *Disk) MkdirAll(path string, _ fs.FileMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return ErrPower
	}
	for p := filepath.Clean(path); !d.dirs[p]; p = filepath.Dir(p) {
		if _, ok := d.names[p]; ok {
			return &fs.PathError{Op: "mkdir", Path: p, Err: syscall.ENOTDIR}
		}
		d.dirs[p] = true
	}
	return nil
}

// Chmod sets the permissions of a file.
func (d *Disk) Chmod(path string, perm fs.FileMode) error {
	return d.change("chmod", path, func(i *inode) { i.perm = perm })
}

// Chtimes sets when a file was changed last.
func (d *Disk) Chtimes(path string, changed time.Time) error {
	return d.change("chtimes", path, func(i *inode) { i.changed = changed })
}

// change does an operation on a file that is there.
func (d *Disk) change(op, path string, do func(*inode)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op(op, path); err != nil {
		return err
	}
	i, ok := d.names[filepath.Clean(path)]
	if !ok {
		return notExist(op, path)
	}
	do(i)
	return nil
}

// Free is what Space left; the largest number where there is no limit.
func (d *Disk) Free(string) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.space < 0 {
		return math.MaxInt64, nil
	}
	return d.space, nil
}

// List returns what a directory holds, sorted by name.
func (d *Disk) List(dir string) ([]fs.DirEntry, error) {
	dir = filepath.Clean(dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return nil, ErrPower
	}
	if !d.dirs[dir] {
		return nil, notExist("open", dir)
	}
	return d.list(dir), nil
}

func (d *Disk) list(dir string) []fs.DirEntry {
	var all []fs.DirEntry
	for path, i := range d.names {
		if filepath.Dir(path) == dir {
			all = append(all, fs.FileInfoToDirEntry(i.info(path)))
		}
	}
	for path := range d.dirs {
		if filepath.Dir(path) == dir && path != dir {
			all = append(all, fs.FileInfoToDirEntry(info{name: filepath.Base(path), mode: fs.ModeDir | 0o700}))
		}
	}
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return all
}

// Stat says what is at path.
func (d *Disk) Stat(path string) (fs.FileInfo, error) {
	path = filepath.Clean(path)
	d.mu.Lock()
	defer d.mu.Unlock()
	i, ok := d.names[path]
	switch {
	case d.off:
		return nil, ErrPower
	case ok:
		return i.info(path), nil
	case d.dirs[path]:
		return info{name: filepath.Base(path), mode: fs.ModeDir | 0o700}, nil
	}
	return nil, notExist("stat", path)
}

// SyncDir makes the names in a directory durable.
func (d *Disk) SyncDir(dir string) error {
	dir = filepath.Clean(dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op("syncdir", dir); err != nil {
		return err
	}
	if !d.dirs[dir] {
		return notExist("sync", dir)
	}
	d.dirty = slices.DeleteFunc(d.dirty, func(path string) bool {
		if filepath.Dir(path) != dir {
			return false
		}
		d.settle(path)
		return true
	})
	return nil
}

// Lock locks a path until it is closed or the disk restarts.
func (d *Disk) Lock(path string) (io.Closer, error) {
	path = filepath.Clean(path)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.locks[path] {
		return nil, fmt.Errorf("lock %s: %w", path, filelock.ErrHeld)
	}
	d.locks[path] = true
	return &lock{d, path}, nil
}

type lock struct {
	d    *Disk
	path string
}

func (l *lock) Close() error {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	delete(l.d.locks, l.path)
	return nil
}

// String lists the files and their sizes.
func (d *Disk) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var s strings.Builder
	for _, n := range slices.Sorted(maps.Keys(d.names)) {
		fmt.Fprintf(&s, "%s:%d ", n, len(d.names[n].live))
	}
	return s.String()
}

// info is what List says of a file.
type info struct {
	name    string
	size    int64
	mode    fs.FileMode
	changed time.Time
}

func (i *inode) info(path string) info {
	return info{name: filepath.Base(path), size: int64(len(i.live)), mode: i.perm, changed: i.changed}
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return i.mode }
func (i info) ModTime() time.Time { return i.changed }
func (i info) IsDir() bool        { return i.mode.IsDir() }
func (i info) Sys() any           { return nil }
