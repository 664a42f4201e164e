package output

import (
	"io"
	"os"
	"path/filepath"
)

// WriteFile writes what write writes into a file, which has it whole or is as it was. What is no regular file, such as a device
// or a FIFO, is written into as it comes; a symbolic link stays, and the file that it names is written. It returns what write returns.
func WriteFile(path string, write func(io.Writer) (int64, error)) (n int64, err error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return 0, err
		}
		return fill(f, write)
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name()) // which is another one's name after the rename
	if n, err = fill(f, write); err != nil {
		return n, err
	}
	return n, os.Rename(f.Name(), path)
}

// fill writes into a file and closes it.
func fill(f *os.File, write func(io.Writer) (int64, error)) (n int64, err error) {
	n, err = write(f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return n, err
}
