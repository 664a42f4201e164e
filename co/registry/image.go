package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/colonyfleet/colony/protocol"
)

// An ImageFile is a file of an image.
type ImageFile struct {
	Mode    fs.FileMode // permission bits
	Content []byte
}

// An Image describes a container image that is built from files alone, FROM scratch.
// Equal descriptions give equal digests.
type Image struct {
	OS           string // default linux
	Architecture string // default amd64
	Variant      string // of the architecture, such as v7
	// Files maps absolute paths to files, which belong to root.
	Files      map[string]ImageFile
	Entrypoint []string
	Command    []string
	Env        []string // NAME=value
	WorkingDir string
	User       string
	Labels     map[string]string
	Ports      []string // such as 8080/tcp
	StopSignal string
}

// PushImage builds an image and stores it under ref; with several, one for each
// platform, it stores an index of them. It returns the digest under which ref is then
// found.
func (c *Client) PushImage(ctx context.Context, ref string, images ...Image) (protocol.Digest, error) {
	t, err := c.parse(ref)
	if err != nil {
		return "", err
	}
	if len(images) == 0 {
		return "", protocol.Errorf(protocol.Invalid, "push image %s: no image is given", ref)
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	built := make([]v1.Image, len(images))
	for i := range images {
		if built[i], err = images[i].build(); err != nil {
			return "", protocol.Errorf(protocol.Invalid, "build image %s: %w", ref, err)
		}
	}
	var digest v1.Hash
	if len(built) == 1 {
		err = remote.Write(t.dialled, built[0], c.options(ctx)...)
		if err == nil {
			digest, err = built[0].Digest()
		}
	} else {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for i, img := range built {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add: img, Descriptor: v1.Descriptor{Platform: images[i].platform()},
			})
		}
		err = remote.WriteIndex(t.dialled, index, c.options(ctx)...)
		if err == nil {
			digest, err = index.Digest()
		}
	}
	if err != nil {
		return "", failed(ctx, "push image", ref, err)
	}
	return protocol.Digest(digest.String()), nil
}

func (i *Image) platform() *v1.Platform {
	p := &v1.Platform{OS: i.OS, Architecture: i.Architecture, Variant: i.Variant}
	if p.OS == "" {
		p.OS = "linux"
	}
	if p.Architecture == "" {
		p.Architecture = "amd64"
	}
	return p
}

func (i *Image) build() (v1.Image, error) {
	files := make(map[string]ImageFile, len(i.Files))
	for p, f := range i.Files {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			return nil, fmt.Errorf("file %q: want a clean absolute path", p)
		}
		files[p[1:]] = f
	}
	layer, err := tarball(files)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{Layer: &gzipLayer{Layer: static.NewLayer(layer, types.OCILayer), packed: layer}})
	if err != nil {
		return nil, fmt.Errorf("add layer: %w", err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	config = config.DeepCopy()
	p := i.platform()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.History = []v1.History{{CreatedBy: "colony"}}
	config.Config = v1.Config{
		Entrypoint: i.Entrypoint, Cmd: i.Command, Env: i.Env, WorkingDir: i.WorkingDir, User: i.User,
		Labels: i.Labels, StopSignal: i.StopSignal,
	}
	for _, port := range i.Ports {
		if config.Config.ExposedPorts == nil {
			config.Config.ExposedPorts = map[string]struct{}{}
		}
		config.Config.ExposedPorts[port] = struct{}{}
	}
	return mutate.ConfigFile(img, config)
}

// A gzipLayer is a layer whose packed bytes are given. Its DiffID is of the bytes
// before compression, which a static layer does not know.
type gzipLayer struct {
	v1.Layer
	packed []byte
}

// Uncompressed returns the tar.
func (l *gzipLayer) Uncompressed() (io.ReadCloser, error) {
	r, err := gzip.NewReader(bytes.NewReader(l.packed))
	if err != nil {
		return nil, fmt.Errorf("unpack layer: %w", err)
	}
	return r, nil
}

// DiffID returns the digest of the tar.
func (l *gzipLayer) DiffID() (v1.Hash, error) {
	r, err := l.Uncompressed()
	if err != nil {
		return v1.Hash{}, err
	}
	h, _, err := v1.SHA256(r)
	return h, errors.Join(err, r.Close())
}

// tarball packs files and the folders above them, sorted, with no time and no
// owner but root, so that equal files make equal bytes.
func tarball(files map[string]ImageFile) ([]byte, error) {
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

// BuildArchive packs a component's folder, which holds compose.yaml, as a Compose
// archive with the one top-level directory name. Only regular files can be packed.
func BuildArchive(name string, folder fs.FS) ([]byte, error) {
	if strings.ContainsAny(name, "/\\") || !fs.ValidPath(name) || name == "." {
		return nil, protocol.Errorf(protocol.Invalid, "Compose archive %q: not a directory name", name)
	}
	files := map[string]ImageFile{}
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
		files[name+"/"+p] = ImageFile{Mode: info.Mode().Perm()&0o111 | 0o644, Content: content}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pack Compose archive %s: %w", name, err)
	}
	if _, ok := files[name+"/compose.yaml"]; !ok {
		return nil, protocol.Errorf(protocol.Invalid, "Compose archive %s: the folder has no compose.yaml", name)
	}
	return tarball(files)
}
