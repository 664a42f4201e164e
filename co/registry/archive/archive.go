// Package archive packs files as the layers of images and as Compose archives. Equal files make
// equal bytes, at any time and on any machine.
package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A File is a file to be packed.
type File struct {
	Mode    fs.FileMode // permission bits
	Content []byte
}

// Tar packs files and the folders above them, sorted, with no time and no
// owner but root, so that equal files make equal bytes.
func Tar(files map[string]File) ([]byte, error) {
	folders := map[string]bool{}
	for p := range files {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			folders[d+"/"] = true
		}
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(files)), maps.Keys(folders))
	slices.Sort(names)
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	w := tar.NewWriter(zip)
	for _, n := range names {
		header := &tar.Header{Name: n, Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX, Typeflag: tar.TypeDir}
		if !strings.HasSuffix(n, "/") {
			header.Typeflag, header.Mode, header.Size = tar.TypeReg, int64(files[n].Mode.Perm()), int64(len(files[n].Content))
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("pack %s: %w", n, err)
		}
		if _, err := w.Write(files[n].Content); err != nil {
			return nil, fmt.Errorf("pack %s: %w", n, err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	return out.Bytes(), nil
}

// Build packs a component's folder, which holds compose.yaml, as a Compose
// archive with the one top-level directory name. Only regular files can be packed.
func Build(name string, folder fs.FS) ([]byte, error) {
	if strings.ContainsAny(name, "/\\") || !fs.ValidPath(name) || name == "." {
		return nil, protocol.Errorf(protocol.Invalid, "Compose archive %q: not a directory name", name)
	}
	files := map[string]File{}
	err := fs.WalkDir(folder, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return protocol.Errorf(protocol.Invalid, "Compose archive %s: %s is not a regular file", name, p)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content, err := fs.ReadFile(folder, p)
		files[name+"/"+p] = File{Mode: info.Mode().Perm()&0o111 | 0o644, Content: content}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pack Compose archive %s: %w", name, err)
	}
	if _, ok := files[name+"/compose.yaml"]; !ok {
		return nil, protocol.Errorf(protocol.Invalid, "Compose archive %s: the folder has no compose.yaml", name)
	}
	return Tar(files)
}
