// Package image makes container images out of files, without a container engine.
package image

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/colonyfleet/colony/co/registry/archive"
)

// An Image describes a container image that is built from files alone, FROM scratch.
// Equal descriptions give equal digests.
type Image struct {
	OS           string // default linux
	Architecture string // default amd64
	Variant      string // of the architecture, such as v7
	// Files maps absolute paths to files, which belong to root.
	Files      map[string]archive.File
	Entrypoint []string
	Command    []string
	Env        []string // NAME=value
	WorkingDir string
	User       string
	Labels     map[string]string
	Ports      []string // such as 8080/tcp
	StopSignal string
}

// Platform returns the platform that the image is for.
func (i *Image) Platform() *v1.Platform {
	p := &v1.Platform{OS: i.OS, Architecture: i.Architecture, Variant: i.Variant}
	if p.OS == "" {
		p.OS = "linux"
	}
	if p.Architecture == "" {
		p.Architecture = "amd64"
	}
	return p
}

// Build makes the image.
func (i *Image) Build() (v1.Image, error) {
	files := make(map[string]archive.File, len(i.Files))
	for p, f := range i.Files {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			return nil, fmt.Errorf("file %q: want a clean absolute path", p)
		}
		files[p[1:]] = f
	}
	layer, err := archive.Tar(files)
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
	p := i.Platform()
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
