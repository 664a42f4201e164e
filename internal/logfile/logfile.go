// Package logfile bounds log files that another process appends to, reads their
// ends, and keeps a few of those that nobody writes any more. Its functions may be
// called concurrently, on one file by one caller at a time.
package logfile

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// earlier is what the file before is called.
const earlier = ".1"

// Bound keeps a log within limit bytes. The process that appends to it goes on, so
// a file that is too long is copied to one earlier file and emptied in place. One
// that is not there is bounded.
func Bound(path string, limit int64) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() <= limit {
		return nil
	}
	if err != nil {
		return err
	}
	end, err := readEnd(path, limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path+earlier, end, 0o600), os.Truncate(path, 0))
}

// readEnd returns the last n bytes of a file.
func readEnd(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-n), n))
}

// LastLine returns the last line of a log that is not empty, of at most limit bytes
// and in UTF-8; "" where there is none.
func LastLine(path string, limit int) string {
	for _, path := range []string{path, path + earlier} {
		b, err := readEnd(path, 4*int64(limit))
		b = bytes.TrimSpace(b)
		if err != nil || len(b) == 0 {
			continue
		}
		b = bytes.TrimSpace(b[bytes.LastIndexByte(b, '\n')+1:])
		return string(bytes.ToValidUTF8(b[:min(len(b), limit)], nil))
	}
	return ""
}

// Keep moves a log that nobody writes any more, and the one before it, into a
// directory, as name and name.1, in the place of those that were kept under that
// name before. Of all that is kept there only the latest files stay, count of them.
// The directory must be on the file system of the log. An empty log is not kept.
func Keep(path, dir, name string, count int) error {
	var errs []error
	for _, suffix := range []string{earlier, ""} { // the latest is moved last
		info, err := os.Stat(path + suffix)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
			continue
		}
		if err == nil {
			err = os.MkdirAll(dir, 0o700)
		}
		if err == nil {
			err = os.Rename(path+suffix, filepath.Join(dir, name+suffix))
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, trim(dir, count))...)
}

// trim removes all files of a directory but the latest.
func trim(dir string, count int) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || len(entries) <= count {
		return nil
	}
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil { // else it was removed meanwhile
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	var errs []error
	for _, f := range files[min(count, len(files)):] {
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
