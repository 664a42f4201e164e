package compiler

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// The bounds of a Compose archive.
const (
	MaxArchive     = 8 << 20  // bytes, compressed
	maxUnpacked    = 16 << 20 // bytes, all files together
	maxFiles       = 1000
	maxComposeFile = 256 << 10 // bytes
)

// composeFile is the only name that Margo allows.
const composeFile = "compose.yaml"

// An archive is a Compose archive in memory.
type archive struct {
	compose []byte
	files   map[string][]byte // by path within the top directory
	exec    map[string]bool   // those of the files that can be executed
}

// CheckArchive says whether a Compose archive can be compiled, as far as that can
// be known without the values of parameters: its layout, every key of its
// compose.yaml, and every value that depends on no parameter. An import calls it, so
// that a package that can never run is refused at once. Name is that of the
// component, for messages; variables are those that parameters may set. Warnings tell
// what runs and is probably not meant. The component that is returned holds what is
// known by now, for CheckShared. Errors are of kind protocol.Invalid.
func CheckArchive(name string, tgz []byte, variables []string) (component protocol.Component, warnings []string, err error) {
	component.Name = name
	a, err := readArchive(name, tgz)
	if err != nil {
		return component, nil, err
	}
	t := &translation{component: name, archive: a, open: map[string]bool{}, unknown: map[string]bool{}}
	values := map[string]string{}
	for _, v := range variables {
		if !variableName.MatchString(v) {
			return component, nil, protocol.Errorf(protocol.Invalid, "component %s: a parameter has the pointer %q: %s", name, v, wantVariable)
		}
		t.open[v], values[v] = true, placeholder
	}
	t.readVariables(values)
	if component.Containers, err = t.containers(context.Background()); err != nil {
		return component, t.warnings, err
	}
	for i := range component.Containers {
		if c := &component.Containers[i]; t.unknown[c.Name] {
			c.Image = "" // a deployment will say it
		}
	}
	return component, t.warnings, CheckShared([]protocol.Component{component})
}

// readArchive reads and checks a whole archive before any of it is used.
func readArchive(component string, tgz []byte) (*archive, error) {
	fail := func(format string, args ...any) error {
		return protocol.Errorf(protocol.Invalid, "component %s: archive: %w", component, fmt.Errorf(format, args...))
	}
	if len(tgz) > MaxArchive {
		return nil, fail("%d bytes, the limit is %d", len(tgz), MaxArchive)
	}
	zr, err := gzip.NewReader(bytes.NewReader(tgz))
	if err != nil {
		return nil, fail("not a gzip file: %w", err)
	}
	a := &archive{files: map[string][]byte{}, exec: map[string]bool{}}
	tops, seen := map[string]bool{}, map[string]bool{}
	tr := tar.NewReader(&boundedReader{r: zr, left: maxUnpacked + maxFiles*1024})
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
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
		if seen[name] = true; len(seen) > maxFiles {
			return nil, fail("more than %d entries", maxFiles)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if inside == "" {
			return nil, fail("the file %q lies beside the top directory: put everything into one directory", name)
		}
		if a.files[inside], err = io.ReadAll(tr); err != nil {
			return nil, fail("entry %q: %w", h.Name, err)
		}
		a.exec[inside] = h.Mode&0o111 != 0
	}
	if len(tops) != 1 {
		return nil, fail("%d top directories: want exactly one, with a %s", len(tops), composeFile)
	}
	return a.finish(fail)
}

// finish finds the Compose file.
func (a *archive) finish(fail func(string, ...any) error) (*archive, error) {
	a.compose = a.files[composeFile]
	if a.compose == nil {
		for _, other := range []string{"compose.yml", "docker-compose.yaml", "docker-compose.yml"} {
			if a.files[other] != nil {
				return nil, fail("it has a %s: Margo wants the name %s", other, composeFile)
			}
		}
		return nil, fail("it has no %s in its top directory", composeFile)
	}
	if len(a.compose) > maxComposeFile {
		return nil, fail("%s has %d bytes, the limit is %d", composeFile, len(a.compose), maxComposeFile)
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

// file returns a file that compose.yaml names by a relative path.
func (a *archive) file(name string) ([]byte, error) {
	clean := path.Clean(name)
	if path.IsAbs(name) || clean == ".." || strings.HasPrefix(clean, "../") {
		return nil, fmt.Errorf("%q leads out of the archive: want a relative path within it", name)
	}
	b, ok := a.files[clean]
	if !ok {
		return nil, fmt.Errorf("the archive has no file %q", clean)
	}
	return b, nil
}

// executable is the mode of a file mount that can be executed. Others say none: theirs
// is the default.
const executable = 0o555

// mode returns the mode of the mount of a file that compose.yaml names by a relative path.
func (a *archive) mode(name string) uint32 {
	if a.exec[path.Clean(name)] {
		return executable
	}
	return 0
}

// A boundedReader fails, instead of ending, past its bound: a bomb must not look
// like a short file.
type boundedReader struct {
	r    io.Reader
	left int
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("more than %d bytes unpacked", maxUnpacked)
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
