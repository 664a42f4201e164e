// Package composearchive reads a Compose archive in memory: its layout, its bounds, and the
// files in it by their paths. Nothing is unpacked to disk.
package composearchive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// The bounds of a Compose archive.
const (
	MaxBytes       = 8 << 20   // compressed
	MaxUnpacked    = 16 << 20  // bytes, all files together
	MaxEntries     = 1000      // files, directories and links
	MaxComposeFile = 256 << 10 // bytes
)

// ComposeFile is the only name that Margo allows.
const ComposeFile = "compose.yaml"

// An Archive is a Compose archive in memory.
type Archive struct {
	// Files are those of the top directory, by path within it. ComposeFile is among them.
	Files map[string][]byte
	// Exec are those of Files that can be executed.
	Exec map[string]bool
}

// Read reads and checks a whole archive, a .tar.gz, before any of it is used. An error says
// which entry is wrong, and how.
func Read(tgz []byte) (*Archive, error) {
	fail := func(format string, args ...any) error { return fmt.Errorf("archive: "+format, args...) }
	if len(tgz) > MaxBytes {
		return nil, fail("%d bytes packed, the limit is %d%s", len(tgz), MaxBytes, largest(tgz))
	}
	zr, err := gzip.NewReader(bytes.NewReader(tgz))
	if err != nil {
		return nil, fail("not a gzip file: %w", err)
	}
	a := &Archive{Files: map[string][]byte{}, Exec: map[string]bool{}}
	tops, seen := map[string]bool{}, map[string]bool{}
	tr := tar.NewReader(&boundedReader{r: zr, left: MaxUnpacked + MaxEntries*1024})
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, errUnpacked) {
			return nil, fail("%w%s", err, largest(tgz))
		}
		if err != nil {
			return nil, fail("not a tar file: %w", err)
		}
		name, err := checkEntry(h)
		if err != nil {
			return nil, fail("entry %q: %w", h.Name, err)
		}
		if name == "." {
			continue
		}
		top, inside, _ := strings.Cut(name, "/")
		tops[top] = true
		if seen[name] && h.Typeflag != tar.TypeDir {
			return nil, fail("entry %q stands twice", h.Name)
		}
		if seen[name] = true; len(seen) > MaxEntries {
			return nil, fail("more than %d entries", MaxEntries)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if inside == "" {
			return nil, fail("the file %q lies beside the top directory: put everything into one directory", name)
		}
		if a.Files[inside], err = io.ReadAll(tr); errors.Is(err, errUnpacked) {
			return nil, fail("%w%s", err, largest(tgz))
		}
		if err != nil {
			return nil, fail("entry %q: %w", h.Name, err)
		}
		a.Exec[inside] = h.Mode&0o111 != 0
	}
	if len(tops) != 1 {
		return nil, fail("%d top directories: want exactly one, with a %s", len(tops), ComposeFile)
	}
	return a.finish(fail)
}

// finish finds the Compose file.
func (a *Archive) finish(fail func(string, ...any) error) (*Archive, error) {
	compose := a.Files[ComposeFile]
	if compose == nil {
		for _, other := range []string{"compose.yml", "docker-compose.yaml", "docker-compose.yml"} {
			if a.Files[other] != nil {
				return nil, fail("it has a %s: Margo wants the name %s", other, ComposeFile)
			}
		}
		return nil, fail("it has no %s in its top directory", ComposeFile)
	}
	if len(compose) > MaxComposeFile {
		return nil, fail("%s has %d bytes, the limit is %d", ComposeFile, len(compose), MaxComposeFile)
	}
	return a, nil
}

// checkEntry returns the clean name of an entry, or why it is refused.
func checkEntry(h *tar.Header) (string, error) {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir:
	case tar.TypeXGlobalHeader:
		return ".", nil
	case tar.TypeSymlink, tar.TypeLink:
		return "", errors.New("links are not read: put a copy of the file there")
	default:
		return "", errors.New("want files and directories only")
	}
	if path.IsAbs(h.Name) || strings.ContainsAny(h.Name, "\\\x00") || slices.Contains(strings.Split(h.Name, "/"), "..") {
		return "", errors.New("want a relative path without .. and \\")
	}
	if h.Typeflag == tar.TypeReg && h.Mode&0o6000 != 0 {
		return "", errors.New("setuid and setgid files are refused")
	}
	return path.Clean(h.Name), nil
}

// File returns a file that compose.yaml names by a relative path.
func (a *Archive) File(name string) ([]byte, error) {
	clean := path.Clean(name)
	if path.IsAbs(name) || clean == ".." || strings.HasPrefix(clean, "../") {
		return nil, fmt.Errorf("%q leads out of the archive: want a relative path within it", name)
	}
	b, ok := a.Files[clean]
	if !ok {
		return nil, fmt.Errorf("the archive has no file %q", clean)
	}
	return b, nil
}

// executable is the mode of a file mount that can be executed. Others say none: theirs
// is the default.
const executable = 0o555

// Mode returns the mode of the mount of a file that compose.yaml names by a relative path,
// 0 for the default.
func (a *Archive) Mode(name string) uint32 {
	if a.Exec[path.Clean(name)] {
		return executable
	}
	return 0
}

// Below returns the files in a directory of the archive, by their paths in it.
func (a *Archive) Below(dir string) map[string][]byte {
	files := map[string][]byte{}
	for name, content := range a.Files {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok {
			files[rest] = content
		}
	}
	return files
}

// errUnpacked says that an archive has too many bytes unpacked.
var errUnpacked = fmt.Errorf("more than %d bytes unpacked", MaxUnpacked)

// scanned bounds how much of an archive that is too large is looked through, in bytes unpacked.
const scanned = 16 * MaxUnpacked

// largest names the largest file of an archive that is too large, as far as it can be read, and
// where such files belong.
func largest(tgz []byte) string {
	zr, err := gzip.NewReader(bytes.NewReader(tgz))
	if err != nil {
		return ""
	}
	tr, name, size := tar.NewReader(&boundedReader{r: zr, left: scanned}), "", int64(0)
	for h, err := tr.Next(); err == nil; h, err = tr.Next() {
		if h.Typeflag == tar.TypeReg && h.Size > size {
			name, size = h.Name, h.Size
		}
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; the largest file is %q with %d bytes: put it into an image, or into a directory of the node that an absolute path names", name, size)
}

// A boundedReader fails, instead of ending, past its bound: a bomb must not look
// like a short file.
type boundedReader struct {
	r    io.Reader
	left int
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errUnpacked
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
