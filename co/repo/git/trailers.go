package git

import (
	"context"
	"strings"

	"github.com/colonyfleet/colony/co/repo/git/names"
	"github.com/colonyfleet/colony/co/repo/git/since"
)

// A Removal is the commit that removed a file.
type Removal struct {
	Commit string
	// Trailers are the trailers of its message (git-interpret-trailers), as lines
	// "Key: value".
	Trailers []string
}

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
			"--name-status", "-z", "--format=%x01%H%x1f%(trailers:unfold)", span, "--")
		return err
	})
	if err != nil {
		return nil, err
	}
	return parseRemovals(string(out)), nil
}

// parseRemovals reads a log with the names of what each commit added and removed.
func parseRemovals(log string) map[string]Removal {
	removals, seen := map[string]Removal{}, map[string]bool{}
	var current Removal
	status := ""
	for item := range strings.SplitSeq(log, "\x00") {
		item = strings.TrimPrefix(item, "\n")
		switch head, ok := strings.CutPrefix(item, "\x01"); {
		case ok:
			commit, trailers, _ := strings.Cut(head, "\x1f")
			current, status = Removal{Commit: commit, Trailers: lines(trailers)}, ""
		case item == "":
		case status == "":
			status = item
		default:
			if status == "D" && !seen[item] {
				removals[item] = current
			}
			seen[item], status = true, ""
		}
	}
	return removals
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
		for _, value := range lines(f[2]) {
			all = append(all, Trailer{Commit: f[0], Author: f[1], Value: value})
		}
	}
	return all, nil
}

// lines returns the lines of a text that are not empty.
func lines(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// Since returns the commits of the head's history after one, see since.Repo.Read.
func (r *Repo) Since(ctx context.Context, after string, most int) (since.Commits, error) {
	if after != "" && names.Commit(after) != nil {
		return since.Commits{}, names.Commit(after)
	}
	return since.Repo{Head: r.Head, Sync: r.Sync, Git: r.local}.Read(ctx, after, most)
}
