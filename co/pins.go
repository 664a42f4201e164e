package co

import (
	"context"

	"github.com/colonyfleet/colony/protocol"
)

// imageRegistry is what the catalog and the compiler read.
type imageRegistry interface {
	Package(ctx context.Context, ref string) (files map[string][]byte, digest protocol.Digest, err error)
	Tags(ctx context.Context, ref string) ([]string, error)
	Archive(ctx context.Context, repository, revision string) ([]byte, protocol.Digest, error)
	Image(ctx context.Context, ref string) (string, error)
}

// pinnedRegistry is a registry whose Compose archives never change: the first archive
// that was read of a revision, which is at its import, is the only one. Another one is
// an error of kind Conflict.
type pinnedRegistry struct {
	imageRegistry
	pin func(ctx context.Context, repository, revision string, digest protocol.Digest) error
}

// Archive returns the Compose archive of a component.
func (r pinnedRegistry) Archive(ctx context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	tgz, digest, err := r.imageRegistry.Archive(ctx, repository, revision)
	if err != nil {
		return nil, "", err
	}
	if err := r.pin(ctx, repository, revision, digest); err != nil {
		return nil, "", err
	}
	return tgz, digest, nil
}
