package co

import (
	"context"
	"fmt"
	"os"

	"github.com/colonyfleet/colony/co/damage"
	"github.com/colonyfleet/colony/internal/begun"
	"github.com/colonyfleet/colony/internal/disk"
)

// openNote looks whether a store of the CO's own that an earlier run has begun is missing, and says so. Stores that replicas
// share are not among them: another one may make them.
func (c *CO) openNote(ctx context.Context, s *stores) error {
	s.damage = damage.New(s.fleet.AddEvent, c.log, c.opts.Registerer)
	var own []begun.Store
	if !c.external() {
		own = append(own, begun.Store{Role: damage.Sessions, Path: "sessions"})
		if c.opts.RegistryDir == "" && !c.opts.RegistryObjects.Given() {
			own = append(own, begun.Store{Role: damage.Registry, Path: "registry/blobs"})
		}
	}
	if len(own) == 0 {
		return nil
	}
	if err := os.MkdirAll(c.opts.StateDir, 0o700); err != nil {
		return fmt.Errorf("create the state directory: %w", err)
	}
	note, found, err := begun.Open(begun.Options{
		Disk: disk.OS, Dir: c.opts.StateDir, File: begun.File{Role: "co/begun", Path: "begun.json"}, Logger: c.log,
	}, own...)
	if err != nil {
		return err
	}
	if s.damage.Report(ctx, found...) == nil { // else it is reported at the next start
		if err := note.Reported(); err != nil {
			c.log.WarnContext(ctx, "which stores are missing is not noted", "err", err)
		}
	}
	c.parts.Go("note of the stores that were begun", note.Run)
	return nil
}
