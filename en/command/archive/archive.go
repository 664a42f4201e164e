// Package archive writes archives of what is collected at a node: compressed tar files (POSIX.1-2001 pax, RFC 1952), with a note of what could not be
// collected at their end.
package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"time"
)

// Faults is the name of the file at the end that says what is missing, and why. An archive that has all has none.
const Faults = "faults.txt"

// A Writer writes an archive. It is for one goroutine.
type Writer struct {
	compressed *gzip.Writer
	tar        *tar.Writer
	folder     string
	now        time.Time
	faults     bytes.Buffer
}

// New returns a Writer to w. Each file is below folder, and those that have no time of their own have now.
func New(w io.Writer, folder string, now time.Time) *Writer {
	c := gzip.NewWriter(w)
	return &Writer{compressed: c, tar: tar.NewWriter(c), folder: folder, now: now}
}

// Add adds a file. An error is that of the archive, which cannot go on.
func (w *Writer) Add(name string, content []byte) error {
	return w.Copy(name, w.now, int64(len(content)), bytes.NewReader(content))
}

// Copy adds a file of size bytes. If from ends or fails before that, the rest of the file is zeros, and the
// archive's list of faults names it.
func (w *Writer) Copy(name string, at time.Time, size int64, from io.Reader) error {
	if err := w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: w.folder + "/" + name, Size: size, Mode: 0o600, ModTime: at, Format: tar.FormatPAX}); err != nil {
		return err
	}
	source := &source{from: from}
	n, err := io.CopyN(w.tar, source, size)
	if n == size {
		return nil
	}
	if source.err == nil {
		return err // of the archive
	}
	w.Fault(name, fmt.Errorf("it has %d of %d bytes, and zeros behind them: %w", n, size, source.err))
	_, err = io.CopyN(w.tar, zeros{}, size-n)
	return err
}

// Fault notes that something is missing.
func (w *Writer) Fault(name string, err error) {
	_, _ = fmt.Fprintf(&w.faults, "%s: %v\n", name, err) // it never fails
}

// Close writes what is missing, and the end.
func (w *Writer) Close() error {
	if w.faults.Len() > 0 {
		if err := w.Add(Faults, w.faults.Bytes()); err != nil {
			return err
		}
	}
	if err := w.tar.Close(); err != nil {
		return err
	}
	return w.compressed.Close()
}

// A source remembers how it ended.
type source struct {
	from io.Reader
	err  error
}

func (s *source) Read(b []byte) (n int, err error) {
	n, err = s.from.Read(b)
	s.err = err
	return n, err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
