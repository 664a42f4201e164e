package ociclient

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/colonyfleet/colony/co/registry/artifact"
	"github.com/colonyfleet/colony/co/registry/failure"
	"github.com/colonyfleet/colony/co/registry/target"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// Package fetches an application package into the empty folder dir, each file under its
// path in the package, as it arrives: none is held in memory. A failure leaves files
// behind. The digest is that of the artifact.
func (c *Client) Package(ctx context.Context, ref, dir string) (protocol.Digest, error) {
	t, err := c.reach(ref)
	if err != nil {
		return "", err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	m, digest, err := c.manifest(ctx, t)
	if err != nil {
		return "", failure.Of(ctx, "pull package", ref, err)
	}
	titled, untitled, err := artifact.Files(m)
	if err != nil {
		return "", protocol.Errorf(protocol.Invalid, "package %s: %w", ref, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", protocol.Errorf(protocol.Unavailable, "pull package %s: %w", ref, err)
	}
	defer root.Close() //nolint:errcheck // each file was closed
	if err := c.store(ctx, t, titled[artifact.DescriptionFile], root, artifact.DescriptionFile); err != nil {
		return "", failure.Of(ctx, "pull package", ref, err)
	}
	delete(titled, artifact.DescriptionFile)
	placeUntitled(root, titled, untitled)
	for file, layer := range titled {
		if err := c.store(ctx, t, layer, root, file); err != nil {
			return "", failure.Of(ctx, "pull package", ref, err)
		}
	}
	return digest, nil
}

// placeUntitled adds to titled the resources that have a kind and no path, under the path
// that the description has for their kind. It has no use for those that it does not name.
func placeUntitled(root *os.Root, titled, untitled map[string]artifact.Descriptor) {
	if len(untitled) == 0 {
		return
	}
	doc, err := root.ReadFile(artifact.DescriptionFile)
	if err != nil {
		return // the import says what is wrong
	}
	app, err := v1rc3.ParseApplication(doc)
	if err != nil {
		return // likewise
	}
	for key, file := range app.Metadata.Catalog.Application.Files() {
		file = path.Clean(file)
		if _, taken := titled[file]; !taken && untitled[key].Digest != "" && file != artifact.DescriptionFile {
			titled[file] = untitled[key]
		}
	}
}

// store writes a blob of the repository of t into a new file of root. It has the size and
// the digest of d, or there is an error.
func (c *Client) store(ctx context.Context, t target.Target, d artifact.Descriptor, root *os.Root, file string) error {
	want, err := protocol.ParseDigest(d.Digest)
	if err != nil {
		return err
	}
	layer, err := remote.Layer(t.Dialled.Context().Digest(d.Digest), c.options(ctx)...)
	if err != nil {
		return err
	}
	r, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // the digest is checked
	if err := root.MkdirAll(path.Dir(file), 0o700); err != nil {
		return unplaced(t, file, err)
	}
	f, err := root.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return unplaced(t, file, err)
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, hash), io.LimitReader(r, d.Size+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if got := protocol.Digest(fmt.Sprintf("sha256:%x", hash.Sum(nil))); n != d.Size || got != want {
		return protocol.Errorf(protocol.Unavailable, "%s: %s: the registry sent %d bytes with digest %s, want %d with %s", t.Written, file, n, got.Short(), d.Size, want.Short())
	}
	return nil
}

// unplaced is the error of a file that has no place in the folder: where a path leads
// through another file, the package is wrong; else the folder is.
func unplaced(t target.Target, file string, err error) error {
	kind := protocol.Unavailable
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTDIR) {
		kind = protocol.Invalid
	}
	return protocol.Errorf(kind, "%s: no place for %s: %w", t.Written, file, err)
}
