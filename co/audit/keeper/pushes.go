package keeper

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/repo/git/since"
)

const (
	pushesEvery = 10 * time.Second
	pushesWait  = 30 * time.Second
	// mostPushes bounds the commits that have a row of their own at a time.
	mostPushes = 1000
)

// pushes records the commits that were pushed to the deployments repo: those that no operation made.
func (k *Keeper) pushes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pushesWait)
	defer cancel()
	from, err := k.o.Store.PushedTo(ctx)
	if err != nil {
		return err
	}
	came, err := k.o.Pushes(ctx, from, mostPushes)
	switch {
	case err != nil || came.Head == from || came.Head == "":
		return err
	case from == "": // what was there before is not the audit's
		return k.o.Store.AddPushes(ctx, from, came.Head, nil)
	}
	var named []string
	for _, c := range came.List {
		named = append(named, c.Values(audit.Trailer)...)
	}
	made, err := k.o.Store.CommitsOf(ctx, named)
	if err != nil {
		return err
	}
	return k.o.Store.AddPushes(ctx, from, came.Head, rowsOf(came, from, made, time.Now()))
}

// rowsOf are the rows of commits that no operation made. made has the commits of operations that there are, by their intents; nil for one
// that has no outcome yet.
func rowsOf(came since.Commits, from string, made map[string][]string, now time.Time) (rows []audit.Row) {
	pushed := func(r audit.Row) {
		r.Kind, r.Principal, r.Operation = audit.Pushed, "git", "git push"
		rows = append(rows, audit.NewRow(now, r))
	}
	if !came.Follows {
		pushed(audit.Row{Commits: []string{came.Head}, Detail: fmt.Sprintf("the history of the deployments repo was written anew: commit %.12s is not in that of the branch any more", from)})
	}
	if came.More > 0 {
		pushed(audit.Row{Detail: fmt.Sprintf("%d commits, after %.12s and before those that follow: see the history of the deployments repo", came.More, from)})
	}
	for _, c := range came.List {
		intents := c.Values(audit.Trailer)
		if by(c.ID, intents, made) {
			continue
		}
		detail := fmt.Sprintf("%q, by %s as the commit says, %d files", c.Subject, c.Author, len(c.Paths))
		if len(intents) > 0 {
			detail += fmt.Sprintf("; it names operation %s, which did not make it as far as the audit has it", strings.Join(intents, ", "))
		}
		pushed(audit.Row{Commits: []string{c.ID}, Target: common(c.Paths), Detail: detail})
	}
	return rows
}

// by reports whether one of the operations that a commit names made it.
func by(commit string, intents []string, made map[string][]string) bool {
	return slices.ContainsFunc(intents, func(intent string) bool {
		commits, there := made[intent]
		return there && (commits == nil || slices.Contains(commits, commit))
	})
}

// common is the file that was changed, or the directory in which all are.
func common(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	at := paths[0]
	for _, p := range paths[1:] {
		for at != "." && p != at && !strings.HasPrefix(p, at+"/") {
			at = path.Dir(at)
		}
	}
	if at == "." {
		return "/"
	}
	return at
}
