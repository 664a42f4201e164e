// Package part works on parts of the file of a log: it frees them, counts their lines, and
// finds in them why the program that wrote them ended.
package part

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/en/engine/logs/crash"
	"github.com/colonyfleet/colony/internal/disk"
)

const (
	// Block is what the system's blocks are a part of: what is punched out of a file ends at one.
	Block = 4096
	// LineWindow is how far behind the place where a log is to begin the beginning of a line is searched.
	LineWindow = 64 << 10

	punchHole, keepSize, collapseRange = 0x2, 0x1, 0x8 // of fallocate(2)
	seekDataWhence                     = 3             // of lseek(2)
)

// Punch frees what a file has before an offset. Offsets stay as they are, and so does what others append
// meanwhile.
func Punch(f *os.File, before int64) error {
	if before -= before % Block; before == 0 {
		return nil
	}
	return fallocate(f, punchHole|keepSize, before)
}

// Collapse takes the first n bytes out of a file, so that all others have an offset less by n.
func Collapse(f *os.File, n int64) error { return fallocate(f, collapseRange, n) }

func fallocate(f *os.File, mode uint32, n int64) error {
	for {
		err := syscall.Fallocate(int(f.Fd()), mode, 0, n)
		if !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("fallocate", err)
		}
	}
}

// SeekData returns where a file of a size has the first byte, from an offset on, that was not punched out.
func SeekData(f *os.File, from, size int64) (int64, error) {
	if from >= size {
		return size, nil
	}
	at, err := f.Seek(from, seekDataWhence)
	switch {
	case errors.Is(err, syscall.ENXIO): // nothing but a hole
		return size, nil
	case errors.Is(err, syscall.EINVAL): // the file system cannot tell
		return from, nil
	}
	return at, err
}

// CountLines counts the ends of lines in a file from an offset to another, and on to the next beginning of a
// line. Where none is found within lineWindow, mid is set and next is to.
func CountLines(f *os.File, from, to int64) (lines, next int64, mid bool, err error) {
	b := make([]byte, 64<<10)
	for from < to {
		n, err := f.ReadAt(b[:min(int64(len(b)), to-from)], from)
		if n == 0 {
			return lines, from, false, err
		}
		lines += Ends(b[:n])
		from += int64(n)
		if from == to && b[n-1] == '\n' {
			return lines, to, false, nil
		}
	}
	n, err := f.ReadAt(b[:LineWindow], to)
	if err != nil && !errors.Is(err, io.EOF) {
		return lines, to, true, err
	}
	if at := bytes.IndexByte(b[:n], '\n'); at >= 0 {
		return lines + 1, to + int64(at) + 1, false, nil
	}
	return lines, to, true, nil
}

// Ends counts the ends of lines.
func Ends(b []byte) int64 { return int64(bytes.Count(b, []byte{'\n'})) }

const (
	// Tail is how much of a run is read for the line that says why it ended, in bytes.
	Tail = 128 << 10
	// MostTraces is how much of it is looked through, in parts of tail, where it ends with the traces of many goroutines, and lapped
	// by how much such parts overlap, for the lines at their borders.
	MostTraces = 4 << 20
	lapped     = 8 << 10
)

// Reason returns the line in a part of a file that says why the program which wrote it ended; "" where there is none.
func Reason(path string, from, to int64) string {
	f, err := disk.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	start := max(from, to-Tail)
	end := textOf(f, start, to)
	found := ""
	if start > from {
		found = panicBefore(f, max(from, to-MostTraces), start, end)
	}
	if found == "" {
		found = crash.Reason(end)
	}
	text, _ := logs.Text([]byte(found))
	return text
}

// panicBefore looks back in a part of a file for the panic whose traces end is the end of, which begins at to; "": there is none.
func panicBefore(f io.ReaderAt, from, to int64, end string) (found string) {
	_, more := crash.Panic(fromLine(end))
	for more && to > from {
		start := max(from, to-Tail)
		text := textOf(f, start, to+lapped)
		text = text[:strings.LastIndexByte(text, '\n')+1]
		if start > from {
			text = fromLine(text)
		}
		found, more = crash.Panic(text)
		to = start
	}
	return found
}

// fromLine is text from its first whole line on.
func fromLine(text string) string {
	_, rest, _ := strings.Cut(text, "\n")
	return rest
}

// part is what a file has from an offset to another; "" where it cannot be read.
func textOf(f io.ReaderAt, from, to int64) string {
	b, err := io.ReadAll(io.NewSectionReader(f, from, to-from))
	if err != nil {
		return ""
	}
	return string(b)
}
