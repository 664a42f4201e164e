package co

import (
	"context"
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/damage"
	"github.com/colonyfleet/colony/internal/begun"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/protocol"
)

// openNote logs if a store of the CO's own that an earlier run has begun is missing. Stores that replicas share are not
// among them: another replica may make them.
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

// watchDisk looks whether the disk of the state directory is full.
func (c *CO) watchDisk() {
	c.disk = disk.Watch(disk.OS, c.opts.StateDir)
	c.opts.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "colony_co_disk_full", Help: "1 while the disk of the state directory has no room: nothing can be deployed or pushed.",
	}, func() float64 {
		if c.diskFull() != nil {
			return 1
		}
		return 0
	}))
	c.parts.Go("disk", func(ctx context.Context) {
		c.disk.Run(ctx, func(ctx context.Context, problem string) error {
			if problem == "" {
				c.log.InfoContext(ctx, "the disk has room again")
			} else {
				c.log.ErrorContext(ctx, problem)
			}
			return nil
		})
	})
}

// diskFull says that the disk of the state directory is full; nil: it is not.
func (c *CO) diskFull() error {
	if problem := c.disk.Problem(); problem != "" {
		return protocol.Errorf(protocol.Unavailable, "%s", problem)
	}
	return nil
}
