package git

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/protocol"
)

// changes says for each path of a commit which commit changed it last. It is never changed.
type changes struct {
	Head    string            `json:"head"`
	Commits map[string]string `json:"commits"`
}

// saveAbove is after how many commits that were read at once the changes are saved.
const saveAbove = 1000

// lastChanges returns which commit changed each path of head last. It reads the commits since
// it was called last, or since what an earlier process saved; where the head does not follow
// that, it reads the whole history. The caller shares the cache.
func (r *Repo) lastChanges(ctx context.Context, head string) (map[string]string, error) {
	r.changesMu.Lock()
	defer r.changesMu.Unlock()
	if r.changes == nil {
		r.changes = r.savedChanges()
	}
	if r.changes.Head == head {
		return r.changes.Commits, nil
	}
	span, known := head, map[string]string{}
	if r.changes.Head != "" {
		if _, err := r.local(ctx, "merge-base", "--is-ancestor", r.changes.Head, head); err == nil {
			span, known = r.changes.Head+".."+head, r.changes.Commits
		} else if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	out, err := r.local(ctx, "log", "--first-parent", "--diff-merges=first-parent", "--no-renames",
		"--name-status", "-z", "--format=%x01%H", span, "--")
	if err != nil {
		return nil, err
	}
	next := &changes{Head: head, Commits: maps.Clone(known)}
	commits := next.apply(string(out))
	r.changes = next
	if commits >= saveAbove {
		r.save(ctx, next)
	}
	return next.Commits, nil
}

// apply adds a log, the newest commit first, and returns how many commits it has.
func (c *changes) apply(log string) (commits int) {
	seen := map[string]bool{}
	current, status := "", ""
	for item := range strings.SplitSeq(log, "\x00") {
		item = strings.TrimPrefix(item, "\n")
		switch commit, ok := strings.CutPrefix(item, "\x01"); {
		case ok:
			current, status = strings.Clone(commit), ""
			commits++
		case item == "":
		case status == "":
			status = item
		default:
			if !seen[item] {
				seen[item] = true
				if delete(c.Commits, item); status != "D" {
					c.Commits[strings.Clone(item)] = current
				}
			}
			status = ""
		}
	}
	return commits
}

func (r *Repo) changesPath() string { return filepath.Join(r.opts.Dir, "changes.json") }

// saveChanges saves what lastChanges found last.
func (r *Repo) saveChanges(ctx context.Context) {
	r.changesMu.Lock()
	c := r.changes
	r.changesMu.Unlock()
	if c != nil && c.Head != "" {
		r.save(ctx, c)
	}
}

// save writes changes into a file of the cache, behind their digest.
func (r *Repo) save(ctx context.Context, c *changes) {
	b, err := json.Marshal(c)
	if err == nil {
		err = atomicfile.Write(disk.OS, r.changesPath(), append([]byte(protocol.DigestOf(b)+"\n"), b...), 0o600)
	}
	if err != nil {
		r.log.WarnContext(ctx, "which commits changed files is not saved, and is read from the history at the next start", "err", err)
	}
}

// savedChanges returns what an earlier process saved, or nothing where that is not whole.
func (r *Repo) savedChanges() *changes {
	b, err := os.ReadFile(r.changesPath())
	digest, b, _ := bytes.Cut(b, []byte("\n"))
	c := &changes{}
	if err != nil || protocol.Digest(digest) != protocol.DigestOf(b) || json.Unmarshal(b, c) != nil || checkCommit(c.Head) != nil {
		return &changes{}
	}
	return c
}
