package git

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/repo/git/program"
	"github.com/colonyfleet/colony/protocol"
)

// buildRef is the ref of the cache that git fast-import needs for what it makes. It means
// nothing afterwards.
const buildRef = "refs/colony/build"

// build makes a commit for each of the changes in the cache, one on top of the other, and
// returns the last one. A change that makes no difference has no commit: it is given head.
// What it costs does not depend on what else the repository holds.
func (r *Repo) build(ctx context.Context, head string, list []*write) (string, error) {
	r.cache.RLock()
	defer r.cache.RUnlock()
	tip, err := r.buildLocked(ctx, head, list)
	if err != nil && ctx.Err() == nil {
		return "", protocol.Errorf(protocol.Unavailable, "write commit to the git cache: %w", err)
	}
	return tip, err
}

func (r *Repo) buildLocked(ctx context.Context, head string, list []*write) (string, error) {
	commits, err := r.fastImport(ctx, head, list)
	if err != nil {
		return "", err
	}
	names := make([]string, 0, 1+len(commits))
	for _, c := range append([]string{head}, commits...) {
		if c != "" {
			names = append(names, c+"^{tree}")
		}
	}
	out, err := r.local(ctx, append([]string{"rev-parse"}, names...)...)
	if err != nil {
		return "", err
	}
	trees := strings.Fields(string(out))
	if len(trees) != len(names) {
		return "", fmt.Errorf("git rev-parse: %d trees of %d commits", len(trees), len(names))
	}
	if head == "" {
		trees = append([]string{""}, trees...)
	}
	var changed []*write
	for i, w := range list {
		if w.commit = commits[i]; trees[i+1] == trees[i] {
			w.commit = head
		} else {
			changed = append(changed, w)
		}
	}
	switch len(changed) {
	case 0:
		return head, nil
	case len(list):
		return commits[len(commits)-1], nil
	}
	return r.buildLocked(ctx, head, changed)
}

// fastImport makes a commit for each change, whether it makes a difference or not.
func (r *Repo) fastImport(ctx context.Context, head string, list []*write) ([]string, error) {
	var in bytes.Buffer
	for i, w := range list {
		c, message := w.change, strings.TrimRight(w.change.Message, "\n")+"\n"
		fmt.Fprintf(&in, "commit %s\nmark :%d\nauthor %s now\ncommitter %s now\ndata %d\n%s", buildRef, i+1, c.Author, c.Author, len(message), message)
		switch {
		case i > 0:
			fmt.Fprintf(&in, "from :%d\n", i)
		case head != "":
			fmt.Fprintf(&in, "from %s\n", head)
		default:
			fmt.Fprint(&in, "deleteall\n")
		}
		enterFiles(&in, c.Files)
	}
	for i := range list {
		fmt.Fprintf(&in, "get-mark :%d\n", i+1)
	}
	in.WriteString("done\n")
	out, err := r.git.Run(ctx, program.Call{
		Cache: true, Dir: r.bare(), Stdin: in.Bytes(),
		Args: []string{"fast-import", "--quiet", "--force", "--done", "--date-format=now"},
	})
	if err != nil {
		return nil, err
	}
	commits := strings.Fields(string(out))
	if len(commits) != len(list) {
		return nil, fmt.Errorf("git fast-import: %d commits of %d changes", len(commits), len(list))
	}
	return commits, nil
}

// enterFiles enters the files of a change: removals first, so that a file may replace a
// directory.
func enterFiles(in *bytes.Buffer, files map[string][]byte) {
	quote := func(p string) string { return `"` + strings.ReplaceAll(p, `"`, `\"`) + `"` } // names.Path refuses what else is special
	paths := slices.Sorted(maps.Keys(files))
	for _, p := range paths {
		if files[p] == nil {
			fmt.Fprintf(in, "D %s\n", quote(p))
		}
	}
	for _, p := range paths {
		if files[p] != nil {
			fmt.Fprintf(in, "M 100644 inline %s\ndata %d\n%s\n", quote(p), len(files[p]), files[p])
		}
	}
}
