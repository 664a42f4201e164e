package git

import (
	"context"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/repo/git/names"
	"github.com/colonyfleet/colony/co/repo/git/removed"
	"github.com/colonyfleet/colony/co/repo/git/since"
)

// A Removal is a commit that removed a file.
type Removal = removed.Removal

// A Trailer is the value of a trailer in the message of a commit.
type Trailer struct {
	Commit, Author, Value string
}

// Removals returns, for each path that a commit of the head's history removed and that the
// head does not have again, the last such commit. It looks at the commits after since, or at
// the whole history where the head does not follow since, which may be empty.
func (r *Repo) Removals(ctx context.Context, since string) (map[string]Removal, error) {
	head, err := r.Head(ctx)
	if err != nil {
		return nil, err
	}
	span := head
	if since != "" && names.Commit(since) == nil {
		if _, err := r.local(ctx, "merge-base", "--is-ancestor", since, head); err == nil {
			span = since + ".." + head
		}
	}
	var out []byte
	err = r.repaired(ctx, func() error {
		out, err = r.local(ctx, "log", "--first-parent", "--diff-merges=first-parent", "--no-renames", "--diff-filter=AD",
			"--raw", "--no-abbrev", "-z", "--format=%x01%H%x1f%(trailers:unfold)", span, "--")
		return err
	})
	if err != nil {
		return nil, err
	}
	return removed.Parse(string(out)), nil
}

// Line returns the commits of the head along its first parents, the newest first.
func (r *Repo) Line(ctx context.Context) (line []string, err error) {
	head, err := r.Head(ctx)
	if err != nil {
		return nil, err
	}
	return r.list(ctx, "--first-parent", head)
}

// Ancestors returns the commits that one of the head's history follows, itself included.
func (r *Repo) Ancestors(ctx context.Context, commit string) ([]string, error) {
	if err := names.Commit(commit); err != nil {
		return nil, err
	}
	return r.list(ctx, commit)
}

func (r *Repo) list(ctx context.Context, options ...string) (commits []string, err error) {
	err = r.repaired(ctx, func() error {
		out, err := r.local(ctx, slices.Concat([]string{"rev-list"}, options, []string{"--"})...)
		commits = strings.Fields(string(out))
		return err
	})
	return commits, err
}

// Trailers returns the values of a trailer in the messages of the newest 1,000 commits that have it, those
// of merged branches included.
func (r *Repo) Trailers(ctx context.Context, key string) ([]Trailer, error) {
	list, err := r.logOfHead(ctx, 3, []string{
		"--topo-order", "-n", "1000", "--grep=^" + key + ":", "--format=%H%x1f%an <%ae>%x1f%(trailers:key=" + key + ",valueonly,unfold)",
	})
	if err != nil {
		return nil, err
	}
	var all []Trailer
	for _, f := range list {
		for _, value := range removed.Lines(f[2]) {
			all = append(all, Trailer{Commit: f[0], Author: f[1], Value: value})
		}
	}
	return all, nil
}

// Since returns the commits of the head's history after one, see since.Repo.Read.
func (r *Repo) Since(ctx context.Context, after string, most int) (since.Commits, error) {
	if after != "" && names.Commit(after) != nil {
		return since.Commits{}, names.Commit(after)
	}
	return since.Repo{Head: r.Head, Sync: r.Sync, Git: r.local}.Read(ctx, after, most)
}
