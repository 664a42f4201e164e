package backup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/filelock"
)

// emptyDir makes a directory, or makes sure that it is empty, which only its owner may read:
// the programs that write into it make files that others may.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the backup: %w", err)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at the directory of the backup: %w", err)
	}
	if len(list) > 0 {
		return fmt.Errorf("the directory %s is not empty: a backup wants one of its own", dir)
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory
		return fmt.Errorf("let only the owner read the directory of the backup: %w", err)
	}
	return nil
}

func acquire(dir string) (*filelock.Lock, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	return filelock.Acquire(filepath.Join(dir, "lock"))
}

func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// writeFile writes a file that only its owner reads, and flushes it.
func writeFile(file string, content []byte) error {
	return flushed(file, func(f *os.File) error { _, err := f.Write(content); return err })
}

func flushed(file string, write func(*os.File) error) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Sync()); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return flushed(to, func(f *os.File) error { _, err := io.Copy(f, in); return err })
}

// registry returns the directory of the CO's registry.
func (s *Source) registry() string {
	return cmp.Or(s.Registry, filepath.Join(s.StateDir, registryFiles))
}

// copyRegistry copies the files of a registry that are not there yet, without uploads that
// are not finished. The names of blobs are their digests, so that one that is there is whole.
// A file that goes away meanwhile was not referred to any more.
func copyRegistry(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case rel == "uploads":
			return filepath.SkipDir
		case rel == "lock" || rel == "cleaning": // of the processes that share it
			return nil
		case d.IsDir():
			return os.MkdirAll(target, 0o750)
		case !d.Type().IsRegular():
			return nil
		}
		if _, err := os.Stat(target); err == nil {
			return nil
		}
		err = copyFile(path, target+".part")
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.Rename(target+".part", target)
	})
}

// copyKeys copies those files of a directory of keys that are there and not in the other one
// yet, and returns the names of those that are there.
func copyKeys(from, to string, all []string) (names []string, err error) {
	if from == "" {
		return nil, nil
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return nil, err
	}
	for _, name := range all {
		if !exists(filepath.Join(from, name)) {
			continue // the root key may be kept elsewhere
		}
		names = append(names, name)
		target := filepath.Join(to, name)
		if exists(target) {
			continue
		}
		if err := copyFile(filepath.Join(from, name), target+".part"); err != nil {
			return nil, err
		}
		if err := os.Rename(target+".part", target); err != nil {
			return nil, err
		}
	}
	return names, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// redacted is a remote without a password.
func redacted(remote string) string { return address.Redact(remote) }

// saveRepo writes the whole deployments repo into a bundle, where it is a path of this
// machine and has commits.
func saveRepo(ctx context.Context, remote, file string) (bool, error) {
	if address.IsRemote(remote) {
		return false, nil
	}
	saved, err := git.Bundle(ctx, remote, file)
	return saved, wrap("back up the deployments repo", err)
}

// restoreRepo makes the deployments repo from a bundle, unless it is there.
func restoreRepo(ctx context.Context, remote, file string) (existed bool, err error) {
	if address.IsRemote(remote) {
		return true, nil
	}
	existed, err = git.Unbundle(ctx, file, remote)
	return existed, wrap("restore the deployments repo", err)
}
