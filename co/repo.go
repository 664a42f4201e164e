package co

import (
	"context"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/catalog"
	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/git"
)

// repo is the deployments repo as the API wants it.
type repo struct{ *git.Repo }

// Revisions returns the commits that changed a path, newest first.
func (r repo) Revisions(ctx context.Context, path string) ([]fleet.Revision, error) {
	revisions, err := r.History(ctx, path)
	if err != nil {
		return nil, err
	}
	out := make([]fleet.Revision, len(revisions))
	for i, v := range revisions {
		out[i] = fleet.Revision{Commit: v.Commit, Time: v.Time, Author: v.Author, Message: v.Message}
	}
	return out, nil
}

var _ api.Repo = repo{}

// readSnapshot reads the head as the desired loop wants it.
func readSnapshot(r *git.Repo) func(context.Context) (desired.Snapshot, error) {
	return func(ctx context.Context) (desired.Snapshot, error) {
		s, err := r.Read(ctx)
		return desired.Snapshot{Commit: s.Commit, Files: s.Files, Blobs: s.Blobs, Commits: s.Commits, Skipped: s.Skipped}, err
	}
}

// importResults are the catalog's results as the API shows them.
func importResults(results []catalog.Result) []api.ImportResult {
	out := make([]api.ImportResult, len(results))
	for i, r := range results {
		out[i] = api.ImportResult{Path: r.Path, App: r.App, Version: r.Version, Outcome: string(r.Outcome), Warnings: r.Warnings}
		for _, p := range r.Problems {
			out[i].Problems = append(out[i].Problems, api.Problem{Path: p.Path, Line: p.Line, Message: p.Message})
		}
	}
	return out
}
