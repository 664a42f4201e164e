// Package seed gives a volume the files that a version of a deployment brings along, and
// leaves alone what was changed in it.
package seed

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// temporary is the name of a file that is being written, in the top of the volume.
const temporary = ".colony-seed"

// maxFile is the size of the largest file of a volume that is read, in bytes. It is the
// limit of all files of an archive together: a larger one was changed.
const maxFile = 16 << 20

// Apply delivers the files of a version into the volume dir. record is a file outside of dir that
// lists what was delivered before. A file that is still as it was delivered is replaced with that
// of this version, or removed if this version has none; a file that was changed or removed in the
// volume stays so. An empty file that no earlier version delivered counts as unchanged: a mount of
// a file onto the volume leaves such a file. Files belong to the owner of dir. Symbolic links in
// the volume lead nowhere outside of it; a link, a pipe or a device under the name of a file counts
// as a change, and is not opened. What is delivered is durable before the record says so. After a
// crash Apply is called again.
func Apply(dir, record string, files []protocol.File) error {
	delivered, err := read(record)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	s := seeder{root: root, changed: map[string]bool{}}
	if s.uid, s.gid, err = owner(dir); err != nil {
		return err
	}
	next := map[string]string{}
	for _, f := range files {
		name := filepath.FromSlash(path.Clean(f.Path))
		next[name] = state(f)
		if err := s.bring(name, f, delivered[name]); err != nil {
			return fmt.Errorf("bring %s into the volume: %w", f.Path, err)
		}
	}
	for name, before := range delivered {
		if next[name] == "" {
			if err := s.retire(name, before); err != nil {
				return fmt.Errorf("remove %s of an earlier version from the volume: %w", name, err)
			}
		}
	}
	for name := range s.changed {
		if err := s.sync(name); err != nil {
			return fmt.Errorf("make the names in %s of the volume durable: %w", name, err)
		}
	}
	b, err := json.Marshal(next)
	if err != nil {
		return err
	}
	return atomicfile.Write(disk.OS, record, b, 0o600)
}

// executable follows the digest of a file that can be executed.
const executable = "+x"

// state returns what the record says of a file.
func state(f protocol.File) string {
	if f.Exec {
		return digest(f.Content) + executable
	}
	return digest(f.Content)
}

func mode(f protocol.File) fs.FileMode {
	if f.Exec {
		return 0o755
	}
	return 0o644
}

// read returns what the record says of the files that were delivered, by their names. A damaged record counts as none: then
// nothing that is there is replaced but empty files.
func read(record string) (map[string]string, error) {
	b, err := disk.ReadFile(disk.OS, record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if disk.Unreadable(err) {
		_, err := statefile.SetAside(disk.OS, record)
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	var delivered map[string]string
	if json.Unmarshal(b, &delivered) != nil {
		return nil, nil
	}
	return delivered, nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// empty is the digest of an empty file.
var empty = digest(nil)

func owner(dir string) (uid, gid int, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, fmt.Errorf("the owner of %s is not known", dir)
	}
	return int(st.Uid), int(st.Gid), nil
}

type seeder struct {
	root     *os.Root
	uid, gid int
	changed  map[string]bool // the directories whose names changed
}

// bring delivers one file. Delivered is the state of what was delivered under this name,
// empty for nothing.
func (s seeder) bring(name string, f protocol.File, delivered string) error {
	before := strings.TrimSuffix(delivered, executable)
	have, err := s.digest(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if before != "" {
			return nil
		}
	case err != nil:
		return nil // a directory, or a link that leads out: not ours
	case have == digest(f.Content):
		if have == before && state(f) != delivered {
			return s.root.Chmod(name, mode(f))
		}
		return nil
	case have != before && (before != "" || have != empty):
		return nil
	}
	if err := s.parents(path.Dir(name)); err != nil {
		return err
	}
	if err := s.write(f); err != nil {
		return err
	}
	s.changed[path.Dir(name)] = true
	return s.root.Rename(temporary, name)
}

// digest returns the digest of a file of the volume, which a container may have made
// anything of. It never blocks, and reads maxFile bytes at most.
func (s seeder) digest(name string) (string, error) {
	info, err := s.root.Lstat(name) // the mere opening of a device may do something
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errChanged
	}
	f, err := s.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return "", errChanged
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(f, maxFile)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// errChanged says that a file is none that was delivered.
var errChanged = errors.New("the file was changed")

// write makes the temporary file, and replaces an existing one of that name.
func (s seeder) write(file protocol.File) error {
	if err := s.root.RemoveAll(temporary); err != nil {
		return err
	}
	f, err := s.root.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(file.Content)
	return errors.Join(err, f.Chown(s.uid, s.gid), f.Chmod(mode(file)), f.Sync(), f.Close())
}

// sync makes the names in a directory of the volume durable. One that a container removed
// or replaced meanwhile has none.
func (s seeder) sync(name string) error {
	d, err := s.root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// parents makes the directories of a file that are missing.
func (s seeder) parents(dir string) error {
	if dir == "." {
		return nil
	}
	if _, err := s.root.Stat(dir); err == nil {
		return nil
	}
	if err := s.parents(path.Dir(dir)); err != nil {
		return err
	}
	s.changed[path.Dir(dir)] = true
	if err := s.root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return s.root.Chown(dir, s.uid, s.gid)
}

// retire removes a file that this version does not have, unless it was changed.
func (s seeder) retire(name, delivered string) error {
	if have, err := s.digest(name); err != nil || have != strings.TrimSuffix(delivered, executable) {
		return nil
	}
	return s.root.Remove(name)
}
