// Package since says which commits came to a branch after one that was seen before, whether they were put on top of it or not.
package since

import (
	"context"
	"strconv"
	"strings"
)

// A Commit is one of the history.
type Commit struct {
	ID string
	// Author is the author that the commit names: "name <address>". It is not verified.
	Author, Subject string
	// Trailers are lines "Key: value" of its message (git-interpret-trailers).
	Trailers []string
	// Paths are those that it changed; of a merge, in comparison with its first parent.
	Paths []string
}

// Values returns the values of its trailers of a key.
func (c *Commit) Values(key string) (values []string) {
	for _, t := range c.Trailers {
		if v, ok := strings.CutPrefix(t, key+": "); ok {
			values = append(values, v)
		}
	}
	return values
}

// Commits are those that came.
type Commits struct {
	// Head is the head now.
	Head string
	// List has the newest, the oldest of them first; More is how many came before them.
	List []Commit
	More int
	// Follows says that the head follows the commit that was asked about.
	Follows bool
}

// A Repo is where they are looked for. The functions are required.
type Repo struct {
	// Head returns the last commit that is known, and Sync asks the remote for it.
	Head, Sync func(ctx context.Context) (string, error)
	// Git runs git in the repository.
	Git func(ctx context.Context, args ...string) ([]byte, error)
}

// Read returns the commits of the head's history that are not in that of after, and up to most of them; none where after is the head, or empty.
// Where after is not known, or the head does not follow it, the remote is asked first: another process may know more of it. Where it is not known
// any more, there are none. after is the name of a commit.
func (r Repo) Read(ctx context.Context, after string, most int) (c Commits, err error) {
	c.Head, err = r.Head(ctx)
	if err == nil && after != "" && !r.follows(ctx, after, c.Head) {
		c.Head, err = r.Sync(ctx)
	}
	if err != nil || after == "" || c.Head == after {
		c.Follows = err == nil
		return c, err
	}
	c.Follows = r.follows(ctx, after, c.Head)
	if err := context.Cause(ctx); err != nil {
		return c, err
	}
	if _, err := r.Git(ctx, "cat-file", "-e", after+"^{commit}"); err != nil {
		return c, context.Cause(ctx)
	}
	span := after + ".." + c.Head
	out, err := r.Git(ctx, "rev-list", "--count", span)
	if err != nil {
		return c, err
	}
	all, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return c, err
	}
	c.More = max(0, all-most)
	out, err = r.Git(ctx, "log", "--topo-order", "--reverse", "-n", strconv.Itoa(most), "--diff-merges=first-parent", "--no-renames", "--name-only", "-z",
		"--format=%x01%H%x1f%an <%ae>%x1f%s%x1f%(trailers:unfold)", span, "--")
	c.List = parse(string(out))
	return c, err
}

// follows reports whether a commit is in the history of another one, as far as is known.
func (r Repo) follows(ctx context.Context, commit, head string) bool {
	_, err := r.Git(ctx, "merge-base", "--is-ancestor", commit, head)
	return err == nil
}

// parse reads a log with the names of what each commit changed.
func parse(log string) (list []Commit) {
	const fields = 4
	for item := range strings.SplitSeq(log, "\x00") {
		item = strings.TrimPrefix(item, "\n")
		head, begins := strings.CutPrefix(item, "\x01")
		switch f := strings.SplitN(head, "\x1f", fields); {
		case begins && len(f) == fields:
			c := Commit{ID: f[0], Author: f[1], Subject: f[2]}
			for line := range strings.Lines(f[3]) {
				if line = strings.TrimSpace(line); line != "" {
					c.Trailers = append(c.Trailers, line)
				}
			}
			list = append(list, c)
		case item != "" && len(list) > 0:
			last := &list[len(list)-1]
			last.Paths = append(last.Paths, item)
		}
	}
	return list
}
