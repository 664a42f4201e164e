package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// PutAside gives a file, if it is there, a name with the reason and the time, and returns it.
func PutAside(file, why string, at time.Time) (aside string, err error) {
	aside = file + "." + why + "-" + at.UTC().Format("20060102T150405Z")
	err = os.Rename(file, aside)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return aside, err
}
