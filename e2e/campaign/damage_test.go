package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A damage is what is done to one file of a tier that does not run.
type damage struct {
	kind string // flip, cut, zero, swap, noise
	path string
	with string // of swap: the other file
	at   int64  // offset of the first byte that differs, in bytes
}

func (d damage) String() string {
	if d.with != "" {
		return fmt.Sprintf("%s of %s with %s", d.kind, d.path, d.with)
	}
	return fmt.Sprintf("%s of %s at %d", d.kind, d.path, d.at)
}

// kinds are what a disk does to a file, with how often each is drawn.
var kinds = []string{"flip", "flip", "flip", "cut", "zero", "noise", "swap"}

// block is the size in bytes of what a disk loses at once.
const block = 4096

// persistent returns the files below dir that a tier keeps and reads again, sorted. Left out
// are locks, what is set aside, empty files, join tokens, which a person brings, and what
// belongs to the applications: their volumes and logs, with the marks of these, which are not flushed.
func persistent(dir string) (paths []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path) // both are of one walk
		if e.IsDir() && (rel == "engine/volumes" || rel == "engine/logs") {
			return fs.SkipDir
		}
		fi, err := e.Info()
		if err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 || slices.Contains([]string{"lock", "log", "log.1", "stdout", "stderr", "marks", "token"}, e.Name()) || strings.Contains(e.Name(), ".damaged-") {
			return err
		}
		if strings.Contains(path, *rotOf) {
			paths = append(paths, path)
		}
		return nil
	})
	slices.Sort(paths)
	return paths, err
}

// draw chooses a damage of one of the files: a folder first, so that one with many files
// does not hide the others.
func draw(r *rand.Rand, paths []string) damage {
	folders := map[string][]string{}
	for _, p := range paths {
		folders[filepath.Dir(p)] = append(folders[filepath.Dir(p)], p)
	}
	names := slices.Sorted(maps.Keys(folders))
	near := folders[names[r.IntN(len(names))]]
	d := damage{kind: kinds[r.IntN(len(kinds))], path: near[r.IntN(len(near))]}
	if d.kind == "swap" && len(near) > 1 {
		// Files of one folder are alike: a swap of these is what is hard to notice.
		for d.with = d.path; d.with == d.path; {
			d.with = near[r.IntN(len(near))]
		}
	} else if d.kind == "swap" {
		d.kind = "cut"
	}
	return d
}

// errSame says that a damage left the bytes as they were.
var errSame = errors.New("nothing has changed")

// do carries the damage out. It returns errSame where the content is what it was.
func (d *damage) do(r *rand.Rand) error {
	old, err := os.ReadFile(d.path)
	if err != nil {
		return err
	}
	b := slices.Clone(old)
	d.at = r.Int64N(int64(len(b)))
	switch d.kind {
	case "flip":
		b[d.at] ^= 1 << r.IntN(8)
	case "cut":
		b = b[:d.at]
	case "zero", "noise":
		d.at -= d.at % block
		part := b[d.at:min(d.at+block, int64(len(b)))]
		for i := range part {
			part[i] = 0
			if d.kind == "noise" {
				part[i] = byte(r.Uint32())
			}
		}
	case "swap":
		other, err := os.ReadFile(d.with)
		if err != nil {
			return err
		}
		if err := rewrite(d.with, old); err != nil {
			return err
		}
		b = other
	}
	if bytes.Equal(b, old) {
		return errSame
	}
	return rewrite(d.path, b)
}

// rewrite changes the bytes of a file in place: owner and mode stay, as on a disk that rots.
func rewrite(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}
