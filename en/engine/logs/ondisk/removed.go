package ondisk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/en/engine"
)

// removedDir is the directory of the logs of removed containers. Each log is a directory. Its name is that of the
// container's directory, followed by the time of removal in milliseconds; agents before 0.3.0 left files.
const removedDir = "logs"

// A leftover is a log of a removed container: a directory, or a file of an older agent.
type leftover struct {
	path  string
	at    time.Time
	bytes int64
}

// leftovers returns all of them, the oldest first.
func (s *Store) leftovers() ([]leftover, error) {
	dir := filepath.Join(s.o.Dir, removedDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []leftover
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			continue // removed meanwhile
		}
		o := leftover{path: filepath.Join(dir, entry.Name()), at: info.ModTime()}
		if n, err := strconv.ParseInt(o.path[strings.LastIndexByte(o.path, '-')+1:], 10, 64); err == nil {
			o.at = time.UnixMilli(n)
		}
		o.bytes = onDisk(o.path)
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b leftover) int { return a.at.Compare(b.at) })
	return out, nil
}

// onDisk returns the bytes that a file, or the files of a directory, take up.
func onDisk(path string) (bytes int64) {
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				bytes += st.Blocks * 512
			}
		}
		return nil
	})
	return bytes
}

// trim removes what is too much of the logs of removed containers.
func (s *Store) trim() error {
	all, err := s.leftovers()
	if err != nil {
		return err
	}
	live := int64(0)
	for _, l := range s.all() {
		live += l.describe().Bytes
	}
	total := live
	for _, o := range all {
		total += o.bytes
	}
	var errs []error
	for n, o := range all {
		if len(all)-n <= s.o.Removed && total <= s.o.Node && time.Since(o.at) <= s.o.Age {
			break
		}
		total -= o.bytes
		errs = append(errs, os.RemoveAll(o.path))
	}
	return errors.Join(errs...)
}

// removed returns the logs of removed containers, the oldest first. Files of older agents do not say whose
// they are, and are left out.
func (s *Store) removed() ([]*log, error) {
	all, err := s.leftovers()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*log
	for _, o := range all {
		at := strings.LastIndexByte(filepath.Base(o.path), '-')
		if info, err := os.Stat(filepath.Join(o.path, marksFile)); err != nil || !info.Mode().IsRegular() || at < 0 {
			continue
		}
		l, damage, err := load(o.path, filepath.Base(o.path)[:at], engine.ID{}, true)
		s.damage(damage)
		if err != nil {
			s.o.Logger.Warn("log of a removed container not read", "path", o.path, "err", err)
			continue
		}
		if l.id != (engine.ID{}) {
			out = append(out, l)
		}
	}
	return out, nil
}
