// Package leftover moves leftover directories of snapshots out of the way. A daemon that is killed between making a directory and
// its record leaves a directory that containerd does not know. It has the name that the next snapshot gets, so that no snapshot
// can be made any more.
package leftover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// most bounds how many directories are moved for one snapshot: each stands where the next one belongs.
const most = 100

// inTheWay is the text of the error of a snapshotter whose new directory finds another one under its name.
var inTheWay = regexp.MustCompile(`failed to rename: rename (/\S*)/(new-[0-9]+) (/\S*)/([0-9]+): (?:file exists|directory not empty)`)

// blocking returns the directory that stands where that of a new snapshot belongs, as the error of a daemon names it. No record has it:
// the daemon has just given its name to a new snapshot.
func blocking(err error) (dir string, ok bool) {
	m := inTheWay.FindStringSubmatch(err.Error())
	if m == nil || m[1] != m[3] || filepath.Base(m[1]) != "snapshots" || filepath.Clean(m[1]) != m[1] {
		return "", false
	}
	return filepath.Join(m[3], m[4]), true
}

// Moved calls do, which makes a snapshot. If a directory that the daemon does not know is in the way, Moved renames it, so that the
// daemon collects it like its own leftovers, and calls do again. It does not remove the directory: if the daemon's record is an old one,
// a container may still run on it.
func Moved(do func() error) error {
	for n := 0; ; n++ {
		err := do()
		if err == nil {
			return nil
		}
		dir, blocked := blocking(err)
		if !blocked || n == most {
			return err
		}
		aside := filepath.Join(filepath.Dir(dir), fmt.Sprintf("new-%s-%d", filepath.Base(dir), time.Now().UnixNano()))
		failed := os.Rename(dir, aside)
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) { // overlayfs of containerd removes it with the failure
			return errors.Join(err, fmt.Errorf("move a directory that containerd does not know out of the way: %w", failed))
		}
	}
}
