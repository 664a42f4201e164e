package ondisk

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/internal/statefile"
)

// Dir is the directory of a journal. Each operation that changes the disk goes
// through it.
type Dir struct {
	FS   disk.FS
	Path string
}

// Open opens a file of the directory. If the flags, those of os.OpenFile, ask for it, Open makes
// the file with mode 0600.
func (d Dir) Open(name string, flag int) (disk.File, error) {
	return d.FS.Open(filepath.Join(d.Path, name), flag, 0o600)
}

// Rename replaces to by from.
func (d Dir) Rename(from, to string) error {
	return d.FS.Rename(filepath.Join(d.Path, from), filepath.Join(d.Path, to))
}

// Remove removes a file.
func (d Dir) Remove(name string) error { return d.FS.Remove(filepath.Join(d.Path, name)) }

// SyncDir makes created, renamed and removed names durable.
func (d Dir) SyncDir() error { return d.FS.SyncDir(d.Path) }

// List returns the names in the directory.
func (d Dir) List() ([]string, error) {
	entries, err := d.FS.List(d.Path)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// keepDamaged is how many damaged files a journal keeps of a name, for people to look at.
const keepDamaged = 2

// CopyAside copies a damaged file, which is about to be replaced, and returns the name of the copy.
func (d Dir) CopyAside(name string) (aside string, err error) {
	if aside, err = d.AsideName(name); err != nil {
		return "", err
	}
	return aside, d.Copy(name, aside)
}

// AsideName returns the name for a damaged file, and removes the oldest of those that are kept.
func (d Dir) AsideName(name string) (string, error) {
	names, err := d.List()
	if err != nil {
		return "", err
	}
	aside, drop := statefile.AsideName(names, name, keepDamaged)
	for _, old := range drop {
		if err := d.Remove(old); err != nil {
			return "", err
		}
	}
	return aside, nil
}

// Lock locks the directory for this process, or fails at once.
func (d Dir) Lock() (io.Closer, error) {
	lock, err := statefile.Lock(d.FS, filepath.Join(d.Path, LockName))
	if errors.Is(err, filelock.ErrHeld) {
		return nil, fmt.Errorf("journal %s is open in another process, stop that first: %w", d.Path, err)
	}
	return lock, err
}

// SetAsideIrregular renames what is no file and stands in the place of one: it counts as missing.
func (d Dir) SetAsideIrregular(log *slog.Logger) error {
	entries, err := d.FS.List(d.Path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type().IsRegular() || statefile.IsAside(e.Name()) {
			continue
		}
		path := filepath.Join(d.Path, e.Name())
		aside, err := statefile.SetAside(d.FS, path)
		if err != nil {
			return err
		}
		log.Error("a part of the journal is no regular file: what was stored in it is missing; check the disk", "path", path, "type", e.Type().String(), "set_aside_as", aside)
	}
	return nil
}

// sector is the unit in which a disk loses what it held, in bytes.
const sector = 4 << 10

// ReadAround fills buf from offset off of f as far as the disk can be read, sector by
// sector, and leaves zeros for the rest: no record of zeros has a right checksum. It
// returns the length of buf.
func ReadAround(f io.ReaderAt, buf []byte, off int64) int {
	for at := 0; at < len(buf); at += sector {
		piece := buf[at:min(at+sector, len(buf))]
		if _, err := f.ReadAt(piece, off+int64(at)); err != nil && !errors.Is(err, io.EOF) {
			clear(piece)
		}
	}
	return len(buf)
}

// Copy writes what can be read of a file to another, with zeros in the place of the rest.
// Where that fails, as on a full disk, there is no copy.
func (d Dir) Copy(name, copied string) error {
	from, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer from.Close()
	size, err := from.Size()
	if err != nil {
		return err
	}
	to, err := d.Open(copied, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	buf := make([]byte, ChunkSize)
	for at := int64(0); err == nil && at < size; at += int64(len(buf)) {
		piece := buf[:min(int64(len(buf)), size-at)]
		ReadAround(from, piece, at)
		_, err = to.WriteAt(piece, at)
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return errors.Join(err, d.Remove(copied))
	}
	return nil
}

// MakeDir makes dir and its name durable.
func MakeDir(d disk.FS, dir string) error {
	if err := d.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return d.SyncDir(filepath.Dir(filepath.Clean(dir)))
}

// KeepAside copies a damaged segment, which is about to be replaced. If that fails, as on a full
// disk, it logs that.
func (d Dir) KeepAside(name string, log *slog.Logger) {
	aside, err := d.CopyAside(name)
	if err != nil {
		log.Warn("damaged segment of the journal is not kept", "segment", name, "err", err)
		return
	}
	log.Warn("damaged segment of the journal kept aside", "segment", name, "aside", aside)
}
