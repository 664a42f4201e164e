package git

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"path/filepath"

	"github.com/colonyfleet/colony/co/repo/git/names"

	"github.com/colonyfleet/colony/co/repo/git/lastchange"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/protocol"
)

// saveAbove is after how many commits the changes are saved: a process that is killed leaves so many
// to read to the next one.
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
	next := &lastchange.Index{Head: head, Commits: maps.Clone(known)}
	commits := next.Apply(string(out))
	r.setChanges(ctx, next, commits)
	return next.Commits, nil
}

// setChanges takes what follows from so many more commits. r.changesMu is held.
func (r *Repo) setChanges(ctx context.Context, next *lastchange.Index, commits int) {
	r.changes = next
	if r.unsaved += commits; r.unsaved >= saveAbove {
		r.save(ctx, next)
		r.unsaved = 0
	}
}

// pushed notes commits that were put on head, where it is known without git what they changed.
// Others are read when they are needed.
func (r *Repo) pushed(ctx context.Context, head string, list []*write) {
	r.changesMu.Lock()
	defer r.changesMu.Unlock()
	if head == "" || r.changes == nil || r.changes.Head != head {
		return
	}
	next := &lastchange.Index{Head: head, Commits: maps.Clone(r.changes.Commits)}
	commits := 0
	for _, w := range list {
		if w.commit == head {
			continue // it made no difference
		}
		if !next.Put(w.change.Files, w.commit) {
			return
		}
		commits++
	}
	r.setChanges(ctx, next, commits)
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
func (r *Repo) save(ctx context.Context, c *lastchange.Index) {
	b, err := json.Marshal(c)
	if err == nil {
		err = atomicfile.Write(disk.OS, r.changesPath(), append([]byte(protocol.DigestOf(b)+"\n"), b...), 0o600)
	}
	if err != nil {
		r.log.WarnContext(ctx, "which commits changed files is not saved, and is read from the history at the next start", "err", err)
	}
}

// savedChanges returns what an earlier process saved, or nothing where that is not whole.
func (r *Repo) savedChanges() *lastchange.Index {
	b, err := disk.ReadFile(disk.OS, r.changesPath())
	digest, b, _ := bytes.Cut(b, []byte("\n"))
	c := &lastchange.Index{}
	if err != nil || protocol.Digest(digest) != protocol.DigestOf(b) || json.Unmarshal(b, c) != nil || names.Commit(c.Head) != nil {
		return &lastchange.Index{}
	}
	return c
}
