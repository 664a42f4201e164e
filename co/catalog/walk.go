package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"syscall"

	"github.com/colonyfleet/colony/co/compiler/packagecheck"
)

const (
	descriptionFile = "margo.yaml"
	maxDescription  = 1 << 20  // bytes of one
	maxBytes        = 64 << 20 // bytes of all descriptions of an import
	maxPackages     = 1000
	maxEntries      = 100_000 // names that are looked at
	maxDepth        = 64      // of folders
)

// A walk finds the folders with a description. Folders of git are left out, and
// symbolic links are not followed.
type walk struct {
	root    *os.Root
	entries int
	folders []string
}

// findPackages returns the folders with a margo.yaml, sorted.
func findPackages(ctx context.Context, root *os.Root) ([]string, error) {
	w := &walk{root: root}
	err := w.folder(ctx, ".", 0)
	slices.Sort(w.folders)
	return w.folders, err
}

func (w *walk) folder(ctx context.Context, dir string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("folders deeper than %d", maxDepth)
	}
	f, err := w.root.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read only
	for {
		entries, err := f.ReadDir(256)
		for _, e := range entries {
			if w.entries++; w.entries > maxEntries {
				return fmt.Errorf("more than %d files and folders", maxEntries)
			}
			if err := w.entry(ctx, dir, e, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
}

func (w *walk) entry(ctx context.Context, dir string, e os.DirEntry, depth int) error {
	switch {
	case e.IsDir() && e.Name() != ".git":
		return w.folder(ctx, path.Join(dir, e.Name()), depth+1)
	case !e.IsDir() && e.Name() == descriptionFile:
		if w.folders = append(w.folders, dir); len(w.folders) > maxPackages {
			return fmt.Errorf("more than %d packages", maxPackages)
		}
	}
	return nil
}

// readLimited reads a regular file. Nothing else is opened, so that nothing is waited
// for: a named pipe that takes the file's place in between does not block.
func readLimited(root *os.Root, name string) ([]byte, error) {
	b, err := readUpTo(root, name, maxDescription+1)
	if err != nil {
		return nil, err
	}
	if len(b) > maxDescription {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxDescription)
	}
	return b, nil
}

// readStart reads the beginning of a regular file.
func readStart(root *os.Root, name string) ([]byte, error) {
	return readUpTo(root, name, packagecheck.MaxStart)
}

func readUpTo(root *os.Root, name string, limit int64) ([]byte, error) {
	if info, err := root.Stat(name); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errors.New("not a regular file"), err)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, cause(err))
	}
	return b, nil
}

var (
	versionForm  = regexp.MustCompile(`(?m)^apiVersion\s*:`)
	metadataForm = regexp.MustCompile(`(?m)^metadata\s*:`)
)

// isDescription reports whether a file means to be an application description. The
// problems of one quote it; those of another file must not.
func isDescription(doc []byte) bool {
	return versionForm.Match(doc) && metadataForm.Match(doc)
}

// cause leaves the name of a file out of an error about it.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
