package co

import (
	"context"

	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/repo/git"
)

// history is that of the deployments repo as the desired loop wants it.
type history struct{ *git.Repo }

// Removals returns which commits removed files.
func (h history) Removals(ctx context.Context, since string) (map[string]desired.Removal, error) {
	found, err := h.Repo.Removals(ctx, since)
	out := make(map[string]desired.Removal, len(found))
	for path, r := range found {
		out[path] = desired.Removal(r)
	}
	return out, err
}

// Confirmations returns the trailers of commits that name proposals.
func (h history) Confirmations(ctx context.Context) ([]desired.Confirmation, error) {
	found, err := h.Trailers(ctx, proposal.Trailer)
	out := make([]desired.Confirmation, len(found))
	for i, t := range found {
		out[i] = desired.Confirmation{Proposal: t.Value, Commit: t.Commit, Author: t.Author}
	}
	return out, err
}
