package co

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/audit/keeper"
	"github.com/colonyfleet/colony/internal/disk"
)

// checkpoints are those of the audit that this CO has written.
type checkpoints func() (list []audit.Checkpoint, bad int, err error)

// keepAudit seals the audit, and writes signed checkpoints of it into the state directory.
func (c *CO) keepAudit(s stores) (checkpoints, error) {
	dir := filepath.Join(c.opts.StateDir, "audit")
	file := c.opts.AuditCheckpoints()
	key, err := keeper.Key(filepath.Join(dir, "checkpoint.key"), file, c.log)
	if err != nil {
		return nil, fmt.Errorf("key of the audit's checkpoints: %w", err)
	}
	k := keeper.New(keeper.Options{
		Store: s.audit, Key: key, File: file, Disk: disk.OS, Logger: c.log.With("component", "audit"),
		Lock:    func(ctx context.Context) (context.Context, func(), error) { return s.db.Lease(ctx, "audit") },
		Commits: func(ctx context.Context) (map[string][]string, error) { return commitsOf(ctx, s) },
		Pushes:  s.repo.Since,
	})
	c.parts.Go("audit", k.Run)
	return keeper.NewReader(file, key).Checkpoints, nil
}

// AuditCheckpoints is the file of the signed checkpoints of the audit.
func (o Options) AuditCheckpoints() string {
	return filepath.Join(o.StateDir, "audit", "checkpoints.jsonl")
}

// commitsOf returns the last commits that name an operation in the audit, by the operation.
func commitsOf(ctx context.Context, s stores) (map[string][]string, error) {
	found, err := s.repo.Trailers(ctx, audit.Trailer)
	out := map[string][]string{}
	for _, t := range found {
		out[t.Value] = append(out[t.Value], t.Commit)
	}
	return out, err
}

// stamped adds to the message of a commit whose request it is, and which operation in the audit.
func stamped(ctx context.Context, message string) string {
	return audit.Stamp(ctx, access.Stamp(ctx, message))
}
