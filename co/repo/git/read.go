package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/repo/git/names"

	"github.com/colonyfleet/colony/co/repo/git/program"
	"github.com/colonyfleet/colony/protocol"
)

// maxHistory bounds how many revisions History returns.
const maxHistory = 1000

// A Snapshot is the content of one commit.
type Snapshot struct {
	// Commit is the head of the branch.
	Commit string
	// Files maps the path of each regular file to its content. It is shared with
	// other snapshots: read only.
	Files map[string][]byte
	// Blobs maps each path of Files to the id of its content: equal content has an equal id.
	Blobs map[string]string
	// Commits maps each path of Files to the last commit that changed it.
	Commits map[string]string
	// Skipped maps the path of what is not in Files to the reason: a symbolic link,
	// a submodule, a file past the limit of 1 MiB.
	Skipped map[string]string
}

// A Revision is one commit that changed a path.
type Revision struct {
	Commit  string    `json:"commit"` // its hash
	Author  string    `json:"author"` // its name, not verified
	Email   string    `json:"email"`  // not verified
	Time    time.Time `json:"time"`
	Message string    `json:"message"` // of the commit, whole
}

// An object is a blob of a tree.
type object struct {
	id   string
	skip string
}

// snapshotState is what the next Read builds on.
type snapshotState struct {
	Snapshot
	objects map[string]object
}

// Read returns the content of the cache's head, from the remote where the cache is
// empty. It costs as much as changed since the last Read.
func (r *Repo) Read(ctx context.Context) (Snapshot, error) {
	r.snapshotMu.Lock()
	defer r.snapshotMu.Unlock()
	if _, err := r.Head(ctx); err != nil {
		return Snapshot{}, err
	}
	var next *snapshotState
	err := r.repaired(ctx, func() error {
		out, err := r.local(ctx, "rev-parse", "--verify", remoteRef+"^{commit}")
		if err != nil {
			return err
		}
		next, err = r.snapshotAt(ctx, strings.TrimSpace(string(out)))
		return err
	})
	if err != nil {
		return Snapshot{}, err
	}
	r.snapshot = next
	return next.Snapshot, nil
}

func (r *Repo) snapshotAt(ctx context.Context, head string) (*snapshotState, error) {
	last := r.snapshot
	if last == nil {
		last = &snapshotState{}
	}
	if last.Commit == head {
		return last, nil
	}
	objects, err := r.tree(ctx, head)
	if err != nil {
		return nil, err
	}
	next := &snapshotState{objects: objects, Snapshot: Snapshot{
		Commit: head, Files: make(map[string][]byte, len(objects)), Blobs: make(map[string]string, len(objects)), Skipped: map[string]string{},
	}}
	var missing []string
	for p, o := range objects {
		if o.skip == "" {
			next.Blobs[p] = o.id
		}
		switch content, ok := last.Files[p]; {
		case o.skip != "":
			next.Skipped[p] = o.skip
		case ok && last.objects[p] == o:
			next.Files[p] = content
		default:
			missing = append(missing, p)
		}
	}
	if err := r.contents(ctx, missing, next); err != nil {
		return nil, err
	}
	next.Commits, err = r.lastChanges(ctx, head)
	return next, err
}

// tree lists all that a commit holds.
func (r *Repo) tree(ctx context.Context, commit string) (map[string]object, error) {
	out, err := r.local(ctx, "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
	if err != nil {
		return nil, err
	}
	objects := map[string]object{}
	for line := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if line == "" {
			continue
		}
		head, p, _ := strings.Cut(line, "\t")
		f := strings.Fields(head) // mode, type, id, size
		if len(f) != 4 {
			return nil, fmt.Errorf("git ls-tree: unknown line %q", line)
		}
		size, _ := strconv.ParseInt(f[3], 10, 64)
		objects[p] = object{id: f[2], skip: skipReason(f[0], f[1], size)}
	}
	return objects, nil
}

func skipReason(mode, kind string, size int64) string {
	switch {
	case mode == "120000":
		return "a symbolic link is not followed"
	case kind != "blob":
		return "a submodule is not read"
	case size > maxFile:
		return fmt.Sprintf("the file has %d bytes, the limit is %d", size, maxFile)
	}
	return ""
}

// contents reads the files at paths into s.Files, in one run of git.
func (r *Repo) contents(ctx context.Context, paths []string, s *snapshotState) error {
	if len(paths) == 0 {
		return nil
	}
	var ask bytes.Buffer
	for _, p := range paths {
		ask.WriteString(s.objects[p].id + "\n")
	}
	out, err := r.git.Run(ctx, program.Call{Cache: true, Dir: r.bare(), Args: []string{"cat-file", "--batch"}, Stdin: ask.Bytes()})
	if err != nil {
		return err
	}
	for _, p := range paths {
		line, rest, _ := bytes.Cut(out, []byte("\n")) // id, type, size
		f := strings.Fields(string(line))
		if len(f) != 3 {
			return &program.Error{Cache: true, Command: "cat-file", Stderr: p + ": " + string(line), Err: errors.New("object is missing")}
		}
		size, err := strconv.Atoi(f[2])
		if err != nil || size < 0 || size >= len(rest) {
			return &program.Error{Cache: true, Command: "cat-file", Stderr: p + ": " + string(line), Err: errors.New("object is cut short")}
		}
		s.Files[p] = rest[:size:size]
		out = rest[size+1:]
	}
	return nil
}

// FileCommit returns the last commit that changed a path, "" where the head has no
// such path. It is what Change.Expect compares.
func (r *Repo) FileCommit(ctx context.Context, p string) (string, error) {
	if err := names.Path(p); err != nil {
		return "", err
	}
	head, err := r.Head(ctx)
	if err != nil {
		return "", err
	}
	var commit string
	err = r.repaired(ctx, func() error {
		commit, err = r.lastChange(ctx, head, p)
		return err
	})
	return commit, err
}

// lastChange is FileCommit at a head. The caller shares the cache.
func (r *Repo) lastChange(ctx context.Context, head, p string) (string, error) {
	commits, err := r.lastChanges(ctx, head)
	if err != nil {
		return "", err
	}
	if commit, ok := commits[p]; ok {
		return commit, nil
	}
	out, err := r.local(ctx, "ls-tree", "--full-tree", head, "--", p)
	if err != nil || len(out) == 0 {
		return "", err
	}
	out, err = r.local(ctx, "log", "--first-parent", "-1", "--format=%H", head, "--", p) // a folder
	return strings.TrimSpace(string(out)), err
}

// History returns the commits that changed a file or folder, newest first, at most
// 1000. It is empty where there never was one.
func (r *Repo) History(ctx context.Context, p string) ([]Revision, error) {
	if err := names.Path(p); err != nil {
		return nil, err
	}
	list, err := r.logOfHead(ctx, 5, []string{"--first-parent", "-n", strconv.Itoa(maxHistory), "--format=%H%x1f%an%x1f%ae%x1f%cI%x1f%B"}, p)
	if err != nil {
		return nil, err
	}
	var revisions []Revision
	for _, f := range list {
		at, err := time.Parse(time.RFC3339, f[3])
		if err != nil {
			return nil, fmt.Errorf("git log: commit %s: %w", f[0], err)
		}
		revisions = append(revisions, Revision{Commit: f[0], Author: f[1], Email: f[2], Time: at, Message: strings.TrimSpace(f[4])})
	}
	return revisions, nil
}

// logOfHead returns the fields, separated by 0x1f, of each commit that git log prints of the
// head, for some paths.
func (r *Repo) logOfHead(ctx context.Context, fields int, options []string, paths ...string) ([][]string, error) {
	head, err := r.Head(ctx)
	if err != nil {
		return nil, err
	}
	var out []byte
	err = r.repaired(ctx, func() error {
		out, err = r.local(ctx, slices.Concat([]string{"log", "-z"}, options, []string{head, "--"}, paths)...)
		return err
	})
	if err != nil {
		return nil, err
	}
	var list [][]string
	for item := range strings.SplitSeq(string(out), "\x00") {
		if f := strings.SplitN(item, "\x1f", fields); len(f) == fields {
			list = append(list, f)
		}
	}
	return list, nil
}

// At returns a file as a commit has it. Errors are of kind NotFound where the
// branch has no such commit, or the commit no such file.
func (r *Repo) At(ctx context.Context, commit, p string) ([]byte, error) {
	if err := names.Commit(commit); err != nil {
		return nil, err
	}
	if err := names.Path(p); err != nil {
		return nil, err
	}
	if _, err := r.Head(ctx); err != nil {
		return nil, err
	}
	r.cache.RLock()
	defer r.cache.RUnlock()
	out, err := r.git.Run(ctx, program.Call{Cache: true, Dir: r.bare(), Args: []string{"cat-file", "--batch"}, Stdin: []byte(commit + ":" + p + "\n")})
	if err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "read %s at commit %.12s: %w", p, commit, err)
	}
	line, rest, _ := bytes.Cut(out, []byte("\n"))
	f := strings.Fields(string(line))
	if len(f) == 3 && f[1] == "blob" && len(rest) > 0 {
		return rest[:len(rest)-1], nil
	}
	return nil, protocol.Errorf(protocol.NotFound, "commit %.12s has no file %s", commit, p)
}
