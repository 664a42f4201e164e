package ociclient

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/colonyfleet/colony/co/registry/artifact"
	"github.com/colonyfleet/colony/co/registry/encrypted"
	"github.com/colonyfleet/colony/co/registry/failure"
	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/co/registry/target"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// Archive fetches the Compose archive of a component: the layer of the artifact that
// revision names in repository, which is oci://host/path. The digest, of the archive,
// has been checked, before anybody unpacks it.
func (c *Client) Archive(ctx context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	ref := repository + ":" + revision
	t, err := c.reach(ref)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	m, _, err := c.manifest(ctx, t)
	if err != nil {
		return nil, "", failure.Lacks(failure.Of(ctx, "pull Compose archive", ref, err), "as colony app push does with a package")
	}
	if err := artifact.CheckArchive(m, revision); err != nil {
		return nil, "", protocol.Errorf(protocol.Invalid, "Compose archive %s: %w", ref, err)
	}
	b, err := c.fetch(ctx, t, m.Layers[0])
	if err != nil {
		return nil, "", failure.Of(ctx, "pull Compose archive", ref, err)
	}
	return b, protocol.DigestOf(b), nil
}

// PushArchive stores a Compose archive as the artifact repository:revision and
// returns the digest of the artifact.
func (c *Client) PushArchive(ctx context.Context, repository, revision string, tgz []byte) (protocol.Digest, error) {
	annotations := map[string]string{artifact.TypeAnnotation: "compose", artifact.VersionAnnotation: revision}
	return c.PushArtifact(ctx, repository+":"+revision, artifact.Artifact{
		Kind: artifact.ComposeKind, Annotations: annotations,
		Layers: []artifact.Layer{{Media: artifact.ComposeMedia, Annotations: annotations, Content: tgz}},
	})
}

// PushPackage stores the application package in pkg, a folder with margo.yaml that lets
// no symbolic link lead out of it (os.Root), as the
// artifact ref and returns its digest. The tag of ref must be the version in
// margo.yaml; a ref without a tag gets it.
func (c *Client) PushPackage(ctx context.Context, ref string, pkg fs.FS) (protocol.Digest, error) {
	doc, err := fs.ReadFile(pkg, artifact.DescriptionFile)
	if err != nil {
		return "", protocol.Errorf(protocol.Invalid, "package for %s: %w", ref, err)
	}
	app, err := v1rc3.ParseApplication(doc)
	if err != nil {
		return "", protocol.Errorf(protocol.Invalid, "package for %s: %w", ref, err)
	}
	version := app.Metadata.Version
	if last := ref[strings.LastIndex(ref, "/")+1:]; !strings.Contains(last, ":") {
		ref += ":" + version
	} else if !strings.HasSuffix(last, ":"+version) {
		return "", protocol.Errorf(protocol.Invalid, "package for %s: its version is %s, and the tag must be the same", ref, version)
	}
	a := artifact.Artifact{Kind: artifact.PackageKind, Layers: []artifact.Layer{{
		Media: artifact.DescriptionMedia, Annotations: map[string]string{artifact.TitleAnnotation: artifact.DescriptionFile}, Content: doc,
	}}}
	resources := app.Metadata.Catalog.Application.Files()
	for _, key := range slices.Sorted(maps.Keys(resources)) {
		file := path.Clean(resources[key])
		content, err := fs.ReadFile(pkg, file)
		if err != nil {
			return "", protocol.Errorf(protocol.Invalid, "package for %s: %s: %w", ref, key, err)
		}
		a.Layers = append(a.Layers, artifact.Layer{
			Media:       artifact.PackageMedia + key + ".v1+" + artifact.Format(file),
			Annotations: map[string]string{artifact.TitleAnnotation: file, artifact.ResourceMark: key},
			Content:     content,
		})
	}
	return c.PushArtifact(ctx, ref, a)
}

// PushArtifact writes the blobs and then the manifest. Equal artifacts have equal
// bytes.
func (c *Client) PushArtifact(ctx context.Context, ref string, a artifact.Artifact) (protocol.Digest, error) {
	t, err := c.reach(ref)
	if err != nil {
		return "", err
	}
	body, err := a.Manifest()
	if err != nil {
		return "", fmt.Errorf("encode manifest of %s: %w", ref, err)
	}
	digest := protocol.DigestOf(body)
	ctx, cancel := c.limit(ctx)
	defer cancel()
	known := !c.opts.KeepTags
	if !known {
		there, err := c.keeps(ctx, t, ref, digest)
		// Many registries deny what is not there: then it is asked again when the blobs are.
		if known = protocol.KindOf(err) != protocol.Denied; there || err != nil && known {
			return digest, err
		}
	}
	options := c.options(ctx)
	for _, l := range a.Blobs() {
		if err := remote.WriteLayer(t.Dialled.Context(), static.NewLayer(l.Content, types.MediaType(l.Media)), options...); err != nil {
			return "", failure.Of(ctx, "push", ref, err)
		}
	}
	if !known {
		there, err := c.keeps(ctx, t, ref, digest)
		if protocol.KindOf(err) == protocol.Denied {
			err = protocol.Errorf(protocol.Denied, "push %s: the credentials may push and not read, so that it is unknown whether the tag names something else: use others, or replace tags without asking: %w", ref, err)
		}
		if there || err != nil {
			return digest, err
		}
	}
	if err := remote.Put(t.Dialled, image.Raw{Media: types.OCIManifestSchema1, Body: body}, options...); err != nil {
		return "", failure.Of(ctx, "push", ref, err)
	}
	return digest, nil
}

// keeps reports whether a tag names an artifact already. Where it names another one, the
// error is of kind Conflict.
func (c *Client) keeps(ctx context.Context, t target.Target, ref string, digest protocol.Digest) (bool, error) {
	have, err := c.tagged(ctx, t)
	err = failure.Of(ctx, "push", ref, err)
	switch {
	case err == nil && have == digest:
		return true, nil
	case err == nil:
		return false, protocol.Errorf(protocol.Conflict, "push %s: the registry has other content under this tag (%s, now %s): a version never changes, give this one another number",
			ref, have.Short(), digest.Short())
	case protocol.KindOf(err) == protocol.NotFound:
		return false, nil
	}
	return false, err
}

// tagged returns the digest that a tag names. It asks with the right to push: to a client that may
// only read, some registries answer "denied" for a repository that does not exist.
func (c *Client) tagged(ctx context.Context, t target.Target) (protocol.Digest, error) {
	repository := t.Dialled.Context()
	auth, err := c.Resolve(repository)
	if err != nil {
		return "", err
	}
	next := encrypted.Transport{Next: c.opts.Transport, Plain: c.hosts.Plain()}
	authorized, err := transport.NewWithContext(ctx, repository.Registry, auth, next, []string{repository.Scope(transport.PushScope)})
	if err != nil {
		return "", err
	}
	have, err := remote.Head(t.Dialled, append(c.options(ctx), remote.WithTransport(authorized))...)
	if err != nil {
		return "", err
	}
	return protocol.ParseDigest(have.Digest.String())
}
