// Package pins has the archives of components never change: the first one of a revision that an
// import or a deployment accepted is the only one.
package pins

import (
	"context"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// A Source is what the catalog and the compiler read.
type Source interface {
	// Package pulls an application package into dir, and returns its digest.
	Package(ctx context.Context, ref, dir string) (protocol.Digest, error)
	// Tags returns the tags of a repository.
	Tags(ctx context.Context, ref string) ([]string, error)
	compiler.Resolver
}

// A Store has the archives that are the only ones of their revisions; fleetdb.Store is one.
type Store interface {
	// ArchivePin returns the archive that a revision had before; "" where there is none.
	ArchivePin(ctx context.Context, repository, revision string) (protocol.Digest, error)
	// PinArchive records the archive of a revision; another one than before is an error of kind Conflict.
	PinArchive(ctx context.Context, repository, revision string, digest protocol.Digest) error
}

// A Registry is a source whose Compose archives never change: the first archive of
// a revision that an import or a deployment accepted is the only one. Another one is an
// error of kind Conflict. One that was refused is not pinned: it may be corrected.
type Registry struct {
	Source
	store Store
}

// New returns a Registry that reads from a source.
func New(s Source, pinned Store) Registry { return Registry{s, pinned} }

// Archive returns the Compose archive of a component.
func (r Registry) Archive(ctx context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	tgz, digest, err := r.Source.Archive(ctx, repository, revision)
	if err != nil {
		return nil, "", err
	}
	pinned, err := r.store.ArchivePin(ctx, repository, revision)
	if err != nil {
		return nil, "", err
	}
	if pinned != "" && pinned != digest { // it says how they differ
		return nil, "", r.store.PinArchive(ctx, repository, revision, digest)
	}
	return tgz, digest, nil
}

// Pin makes an archive the only one of its revision.
func (r Registry) Pin(ctx context.Context, repository, revision string, digest protocol.Digest) error {
	return r.store.PinArchive(ctx, repository, revision, digest)
}

// Compile compiles a deployment, and pins its archives once it has.
func (r Registry) Compile(ctx context.Context, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
	read := &readArchives{Registry: r}
	entry, spec, err := compiler.Compile(ctx, d, read)
	if err != nil {
		return entry, nil, err
	}
	for i, c := range d.Spec.Profile.Components {
		if err := r.Pin(ctx, c.Properties.Repository, c.Properties.Revision, read.digests[i]); err != nil {
			return protocol.SiteEntry{}, nil, err
		}
	}
	return entry, spec, nil
}

// readArchives remembers the digests of the archives that it read, in their order.
type readArchives struct {
	Registry
	digests []protocol.Digest
}

// Archive returns the Compose archive of a component.
func (r *readArchives) Archive(ctx context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	tgz, digest, err := r.Registry.Archive(ctx, repository, revision)
	r.digests = append(r.digests, digest)
	return tgz, digest, err
}
