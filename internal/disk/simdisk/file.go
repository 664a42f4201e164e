package simdisk

import (
	"io"
	"slices"
	"syscall"
	"time"
)

// file is an open file of a Disk.
type file struct {
	d    *Disk
	ino  *inode
	path string
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.off {
		return 0, ErrPower
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

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	data, wasOff := slices.Clone(p), f.d.off
	if err := f.d.op("write", f.path); err != nil {
		if !wasOff && f.d.off && f.d.cutAt == f.d.ops { // of the one that the power was cut on, a part may have got into the cache
			f.ino.writes = append(f.ino.writes, write{off, data[:f.d.rng.IntN(len(data)+1)]})
		}
		return 0, err
	}
	grow := off + int64(len(data)) - int64(len(f.ino.live))
	if f.d.space >= 0 && grow > f.d.space {
		n := int(int64(len(data)) - grow + f.d.space) // what still fits is written
		f.put(write{off, data[:max(n, 0)]})
		f.d.space = 0
		return max(n, 0), syscall.ENOSPC
	}
	if f.d.space >= 0 {
		f.d.space -= max(grow, 0)
	}
	f.put(write{off, data})
	return len(p), nil
}

func (f *file) put(w write) {
	f.ino.live = w.apply(f.ino.live, len(w.data))
	f.ino.writes = append(f.ino.writes, w)
	f.ino.changed = time.Now()
}

func (f *file) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return f.truncate(size)
}

func (f *file) truncate(size int64) error {
	if err := f.d.op("truncate", f.path); err != nil {
		return err
	}
	if f.d.space >= 0 {
		f.d.space += max(int64(len(f.ino.live))-size, 0)
	}
	f.put(write{off: size})
	return nil
}

func (f *file) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.ino.live)), nil
}

func (f *file) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.op("sync", f.path); err != nil {
		return err
	}
	f.ino.durable, f.ino.writes = slices.Clone(f.ino.live), nil
	return nil
}

func (f *file) Close() error { return nil }
